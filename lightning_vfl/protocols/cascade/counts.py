"""The counts of cascade training."""

from dataclasses import dataclass, field


@dataclass
class Staleness:
    """The staleness of an epoch's messages, in steps of the collaborator."""

    messages: int = 0
    total: int = 0
    most: int = 0

    def add(self, behind: int) -> None:
        self.messages, self.total, self.most = self.messages + 1, self.total + behind, max(self.most, behind)

    def mean(self) -> float:
        return self.total / self.messages if self.messages else 0.0


@dataclass
class CascadeCounts:
    """The event counts of CascadeVFL.

    Args:
        variant: the variant of the training; "": before the first fit.
        version: the number of steps of the collaborator.
        seen: active party -> the version of its replica.
        sent_back: active party -> whether the collaborator has sent back its last step for this party.
        begun: the number of events that have begun.
        periods: the number of periods of the active party with most periods.
        staleness: the staleness of the epoch's messages.
    """

    variant: str = ""
    version: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    sent_back: dict[int, bool] = field(default_factory=dict)
    begun: int = 0
    periods: int = 0
    staleness: Staleness = field(default_factory=Staleness)
