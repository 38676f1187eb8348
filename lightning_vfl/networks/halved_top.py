"""A top in two halves: the server computes the first, and the party that holds the labels the last (U-shape)."""

from collections.abc import Callable

from torch import Tensor, nn

from lightning_vfl.networks.column_aware import ColumnAwareTop

ACTIVATIONS = "cut activations"  # from the server's half to the active party's
GRADIENTS = "cut gradients"  # and back


class HalvedTop(nn.Module):
    """The server's half, the cut, and the active party's half behind it.

    Args:
        server: from the aggregate (B, D_out) to the cut (B, cut).
        active: from the cut to the output (B, outputs).
        cut: the width of the cut.

    The functions below are used in the next pass, forward and backward, and in no other:

    Attributes:
        seed: is called before the active party's half runs, so that its draws do not depend on those of the server's.
        guard: gets the activations of the cut at the active party, and may change the gradient that it sends back.
        hear: is called with the kind and the values of what crosses the cut, for an audit.
    """

    seed: Callable[[], None] | None = None
    guard: Callable[[Tensor], Tensor] | None = None
    hear: Callable[[str, Tensor], None] | None = None

    def __init__(self, server: nn.Module, active: nn.Module, cut: int) -> None:
        super().__init__()
        self.server = server
        self.active = active
        self.cut = cut

    def forward(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The output (B, outputs); ``columns`` (D_out,) bool: the columns that have arrived, None: all."""
        if isinstance(self.server, ColumnAwareTop):
            crossing: Tensor = self.server(value, columns)
        else:
            crossing = self.server(value)
        hear = self.hear
        self.hear = None
        if hear is not None:
            hear(ACTIVATIONS, crossing.detach())
            if crossing.requires_grad:
                crossing.register_hook(lambda gradient: hear(GRADIENTS, gradient))  # type: ignore[no-untyped-call]
        guard = self.guard
        self.guard = None
        if guard is not None:
            crossing = guard(crossing)
        seed = self.seed
        self.seed = None
        if seed is not None:
            seed()
        output: Tensor = self.active(crossing)
        return output
