"""What cascade training counts of its events."""

from dataclasses import dataclass, field


@dataclass
class Staleness:
    """By how many steps of the collaborator messages were out of date, in one epoch."""

    messages: int = 0
    total: int = 0
    most: int = 0

    def add(self, behind: int) -> None:
        self.messages, self.total, self.most = self.messages + 1, self.total + behind, max(self.most, behind)

    def mean(self) -> float:
        return self.total / self.messages if self.messages else 0.0


@dataclass
class CascadeCounts:
    """What is counted of events.

    Args:
        variant: that of the training; "": before the first fit.
        version: steps of the collaborator.
        seen: active party -> the version that its replica has.
        sent_back: active party -> whether the collaborator's last step for it was sent back.
        begun: events.
        periods: of the busiest active party.
        staleness: of the epoch's messages.
    """

    variant: str = ""
    version: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    sent_back: dict[int, bool] = field(default_factory=dict)
    begun: int = 0
    periods: int = 0
    staleness: Staleness = field(default_factory=Staleness)
