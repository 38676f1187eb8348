"""LocalVFL: one party alone, without the others."""

from collections.abc import Collection
from typing import Any, ClassVar

from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.checks import within
from lightning_vfl.protocols.heads import HeadsVFL
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import Roll


class LocalVFL(HeadsVFL):
    """One party trains and predicts with its own columns. What the others add is measured against this baseline.

    Records that this party does not hold are not trained, and have no prediction when the party is absent.

    Args:
        aggregator: of no use here; it is there because all protocols have one.
        party: the number of the party; None: the active party, or party 0.
        settings: settings of ``VFLModule``; ``top`` makes the party's head.

    Raises:
        ConfigurationError: for a number that no party has; see ``HeadsVFL``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, section 5 (the baseline Local, there averaged over the parties).
    """

    unsupported: ClassVar[Unsupported] = {
        Part.FEDERATION: "it sends no message; use lightning-vfl fit on the host of the party",
    }

    def __init__(self, aggregator: Aggregator | None = None, *, party: int | None = None, **settings: Any) -> None:
        super().__init__(aggregator, **settings)
        self.party = (self.active or 0) if party is None else party

    def build(self) -> None:
        super().build()
        within("party of LocalVFL", self.party, 0, self.roster.parties - 1, whole=True)

    @property
    def learning(self) -> Collection[int]:
        return (self.party,)

    def output_of(
        self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None, columns: Tensor | None = None
    ) -> Tensor:
        output: Tensor = self.top[self.party](h[self.party])
        return output

    def answers(self, there: Tensor) -> Tensor:
        return there[:, self.party]

    def protection(self, uploads: int) -> str | None:
        return f"no embedding leaves party {self.party}, which has the labels; the other parties are not asked"
