"""The halves of a trained model as networks: a party's preparation and bottom; the server's aggregation and top."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.objectives import Objective, predictions
from lightning_vfl.types import Roll


class PartyNetwork(nn.Module):
    """The scaling of a party's features, then its bottom.

    Shapes: input (B, *S) or (B, F) numbers in the precision of the scaling, or whole numbers and truths, which are not
    scaled; output (B, D).

    Args:
        bottom: the party's bottom.
        shape: S, per-record shape of its features.
        shift: (F,), subtracted in its own precision.
        scale: (F,), by which the difference is divided before it is float32.
        clipped: how the party clips its embedding; None: it does not.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        bottom: nn.Module,
        shape: Sequence[int],
        shift: Tensor,
        scale: Tensor,
        clipped: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.bottom = bottom
        self.shape = tuple(shape)
        self.clipped = clipped
        self.register_buffer("shift", shift.contiguous())
        self.register_buffer("scale", scale.contiguous())

    def forward(self, features: Tensor) -> Tensor:
        """(B, D), the embedding."""
        return self.embedding(self.scaled(features))

    def embedding(self, scaled: Tensor) -> Tensor:
        """(B, D), the embedding of scaled features (B, *S)."""
        embedding: Tensor = self.bottom(scaled)
        return embedding if self.clipped is None else self.clipped(embedding).to(embedding.dtype)

    def scaled(self, features: Tensor) -> Tensor:
        """(B, *S), the input of the bottom."""
        flat = features.flatten(1)
        if flat.is_floating_point():
            flat = ((flat - self.shift) / self.scale).float()
        return flat.view(-1, *self.shape)


class ServerNetwork(nn.Module):
    """The aggregate of the embeddings in the clear, the top, and the predictions of the objective.

    Shapes: embeddings of the parties in ``roll``, (B, D_m) each, in their order; present (B, n) bool, which of these
    parties holds which record; output (B, C) or (B,).

    Args:
        networks: the networks of the server, whose weights the program has.
        aggregator: its ``plain`` joins the embeddings.
        head: the server's output for an aggregate, computed by ``networks``.
        objective: makes predictions of the output.
        roll: the parties that count.
        widths: D_m of all M parties.
    """

    def __init__(
        self,
        networks: Iterable[nn.Module],
        aggregator: Aggregator,
        head: Callable[[Tensor], Tensor],
        objective: Objective,
        roll: Roll,
        widths: Sequence[int],
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.objective = objective
        self.aggregator, self.roll, self.widths = aggregator, roll, tuple(widths)
        self.head = head  # a method of a module that has other owners' networks too, so it is no submodule here

    def forward(self, embeddings: Sequence[Tensor], present: Tensor) -> Tensor:
        """(B, C) probabilities, (B,) probabilities of the second of two classes, or (B,) values."""
        members = self.roll.included_parties
        places = {m: place for place, m in enumerate(members)}
        rows = present.shape[0]
        first = embeddings[0]
        h = tuple(
            embeddings[places[m]] if m in places else first.new_zeros(rows, width)
            for m, width in enumerate(self.widths)
        )
        held = torch.stack([present[:, places.get(m, 0)] for m in range(len(self.widths))], dim=1)
        value = self.aggregator.plain(h, self.roll, held)
        return predictions(self.objective, self.head(value))
