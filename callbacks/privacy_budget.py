"""An end by privacy: the training stops before the round that could cost more than was allowed."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl import VerticalBatch
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.events import unit_of_one_release
from lightning_vfl.protocols import RoundVFL
from lightning_vfl.protocols.accounts.charging import joint_ids


class PrivacyBudget(Callback):
    """Ends the training BEFORE the round that could take the privacy loss above a budget.

    Before each round the most that it may release is reserved: everybody in it, or, where parties may be missing, the
    fewest that the aggregate could be of. If that is too much, the rest of the epoch is left out and the training ends;
    the log has ``privacy/epsilon`` of every epoch in this unit and δ.

    Guarantee: ``privacy/epsilon`` never passes the budget, given events that are right. It counts what the run's ledger
        has, so the budget holds for a run that is killed and resumed any number of times.
    Not guaranteed: for the units of a record, what the record tells through the uploads of other records: they hold if
        weights and scaling do not depend on the record, and ``party`` needs no such assumption. Parties that tell the
        server what they drew: the budget is that against the server alone. Privacy of evaluation, of gradients and of
        labels; a budget over several fits of different modules, unless they go on in one ledger (``privacy_ledger``).

    Args:
        target_epsilon: the budget, above 0.
        delta: δ, between 0 and 1.
        unit: what is protected: ``party-record`` (one party's columns of one record), ``record`` (all its columns),
            ``party`` (all of a party's columns), ``record (paper)``, ``party (paper)``.

    Raises:
        ConfigurationError: for numbers that mean nothing; before training, for a protocol whose aggregator accounts for
            nothing, and if a single round would be too much.
    """

    def __init__(self, target_epsilon: float, delta: float = 1e-5, unit: str = "party-record") -> None:
        if not target_epsilon > 0:
            raise ConfigurationError(f"target_epsilon {target_epsilon} allows nothing; use a number above 0")
        if not 0 < delta < 1:
            raise ConfigurationError(f"delta {delta} is no probability to be wrong with; use more than 0, less than 1")
        unit_of_one_release(unit)
        self.target_epsilon = target_epsilon
        self.delta = delta
        self.unit = unit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(pl_module, RoundVFL) or pl_module.aggregator.accounting is None:
            what = type(getattr(pl_module, "aggregator", pl_module)).__name__
            raise ConfigurationError(
                f"PrivacyBudget has nothing to count with {what}; use SplitVFL or CascadeVFL with PoissonBinomial or "
                "LocalGaussian"
            )
        pl_module.privacy.delta, pl_module.privacy.unit = self.delta, self.unit

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: VerticalBatch, batch_idx: int
    ) -> Any:
        module = _of_rounds(pl_module)
        worst = self._reserved(module, batch)
        if worst <= self.target_epsilon:
            return
        if module.privacy.epsilon() == 0.0:
            raise ConfigurationError(
                f"one round alone would cost ε = {worst:.4g} of a {self.unit} at δ = {self.delta:g}, above the budget "
                f"of {self.target_epsilon:g}; use a smaller beta, fewer levels, a smaller width, or a larger "
                "target_epsilon"
            )
        module.end_before_round = True

    def _reserved(self, module: RoundVFL, batch: VerticalBatch) -> float:
        accountant = module.privacy.accountant
        if accountant is None:
            return 0.0
        ids = joint_ids(batch)
        events = module.possible_events()
        return max((accountant.reserve(event, ids, self.delta, self.unit) for event in events), default=0.0)


def _of_rounds(module: LightningModule) -> RoundVFL:
    if not isinstance(module, RoundVFL):
        raise TypeError(f"{type(module).__name__} is no RoundVFL")  # setup has seen that it is
    return module
