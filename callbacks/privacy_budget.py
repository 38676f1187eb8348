"""A privacy budget: training stops before a round that could exceed the budget, and an evaluation is refused."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl import VerticalBatch
from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import rounded_up, shown
from lightning_vfl.privacy.events import unit_of_one_release
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.accounts.charging import joint_ids, next_evaluation
from lightning_vfl.types import Stage

from .injector import protocol


class PrivacyBudget(Callback):
    """Ends the training BEFORE a round that could raise the privacy loss above a budget; refuses such an evaluation.

    Before each round, the callback computes ε after the most costly release that the round may make (with all parties,
    or, if parties may be missing, with fewer), and after the validation that may follow, if it goes through the
    protocol. If this ε, rounded up to four digits as in the log, is above the budget, the rest of the epoch is left out
    and the training ends. ``validate``, ``test`` and ``predict`` through the protocol are refused before their first
    batch. The log has ``privacy/epsilon`` of every epoch, for this unit and δ.

    Guarantee: ``privacy/epsilon`` never exceeds the budget, if the privacy events are correct. It counts all charges in
        the ledger, so the budget holds for a run that is killed and resumed any number of times, and for evaluations
        and predictions of its checkpoints.
    Not guaranteed: for the units of a record, information about the record in the uploads of other records: these
        figures hold if weights and scaling do not depend on the record. ``party`` needs no such assumption. Protection
        against parties that disclose their draws to the server: the budget holds against the server alone. Privacy of
        records that are evaluated in the clear (training records among them are refused), of gradients and of labels.
        One budget for several fits of different modules, unless they continue one ledger (``privacy_ledger``, or the
        ledger of a party's seat).

    Args:
        target_epsilon: the budget, above 0.
        delta: δ, between 0 and 1.
        unit: the protected unit: ``party-record`` (one party's columns of one record), ``record`` (all its columns),
            ``party`` (all of a party's columns), ``record (paper)``, ``party (paper)``.

    Raises:
        ConfigurationError: for invalid numbers; before training, for a protocol whose aggregator does not account for
            privacy, and if a single round would exceed the budget.
    """

    def __init__(self, target_epsilon: float, delta: float = 1e-5, unit: str = "party-record") -> None:
        unit_of_one_release(unit)
        self.target_epsilon = positive("target_epsilon", target_epsilon)
        self.delta = within("delta", delta, above=0, below=1)
        self.unit = unit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, VFLModule) or pl_module.aggregator.accounting is None:
            what = type(getattr(pl_module, "aggregator", pl_module)).__name__
            raise ConfigurationError(
                f"PrivacyBudget needs an aggregator that accounts for privacy; got {what}; use SplitVFL or CascadeVFL "
                "with PoissonBinomial or LocalGaussian"
            )
        privacy = pl_module.privacy
        privacy.delta = self.delta
        privacy.unit = self.unit
        privacy.target = self.target_epsilon

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: VerticalBatch, *_: Any) -> Any:
        module = protocol(self, pl_module)
        worst = self._reserved(module, batch)
        if worst <= self.target_epsilon:
            return
        if module.privacy.epsilon() == 0.0:
            raise ConfigurationError(
                f"one round would already cost ε = {shown(worst)} of a {self.unit} at δ = {self.delta:g}, above the "
                f"budget of {self.target_epsilon:g}; use more noise (of PoissonBinomial: a smaller beta, fewer "
                "levels or a smaller width), or a larger target_epsilon"
            )
        module.end_before_round = True

    def _reserved(self, module: VFLModule, batch: VerticalBatch) -> float:
        if module.privacy.accountant is None:
            return 0.0
        validated = next_evaluation(module)  # it may read the ledger again
        accountant = module.privacy.accountant
        ids = torch.cat([module.privacy.places[Stage.FIT][joint_ids(batch)], validated])
        events = module.possible_events()
        return rounded_up(max((accountant.reserve(event, ids, self.delta, self.unit) for event in events), default=0.0))
