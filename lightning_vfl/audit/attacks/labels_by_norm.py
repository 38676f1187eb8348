"""Labels of two classes from the norms of gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_vfl.audit.attack import Attack, Guesses, Known, Seen, Target
from lightning_vfl.audit.attacks.gradients import reads_gradients, sent_gradients
from lightning_vfl.errors import ConfigurationError


@dataclass
class LabelsByNorm(Attack):
    """Records of the rarer class have larger gradients, because the model is less certain of them.

    The guess is the norm of the gradient of a record's embedding, in one epoch that is fixed beforehand. The class 1 is
    taken as the rarer one, so the sign is fixed too. No side knowledge.

    Args:
        epoch: 1 for the first.

    Raises:
        ConfigurationError: for more than two classes.

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, section 3.1.
    """

    target = Target.RANKS
    epoch: int = 3

    def check(self, seen: Seen) -> None:
        if seen.classes != 2:
            raise ConfigurationError(
                f"LabelsByNorm tells two classes apart, and the data have {seen.classes}; use LabelsByDirection"
            )

    def choices(self, epochs: int) -> Sequence[Mapping[str, Any]]:
        return [{"epoch": epoch} for epoch in sorted({1, (epochs + 1) // 2, epochs})]

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return reads_gradients(kind, way)

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, rows = sent_gradients(seen, self.epoch)
        return Guesses(ids, rows.norm(dim=1), f"gradients of epoch {self.epoch}")
