"""The callback that audits a training: it keeps what an attacker receives, and runs attacks on it at the end."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_vfl.audit import Attack, Attacker, Finding, Target, Transcript
from lightning_vfl.audit.attacks.labels import TOP_GRADIENTS
from lightning_vfl.audit.attacks.lower_bounds import CanariesInTraining
from lightning_vfl.audit.attacks.membership import MembershipByLoss, members_and_others
from lightning_vfl.audit.attacks.model_completion import ModelCompletion
from lightning_vfl.audit.attacks.usual import usual_attacks
from lightning_vfl.audit.case import Case, JoinedTruth, Truth
from lightning_vfl.audit.harness import refuse_unsuitable, run_attacks
from lightning_vfl.audit.report import metrics_of, print_findings, refuse_report, write_reports
from lightning_vfl.audit.transcript import LIMIT_BYTES, Several, differences
from lightning_vfl.audit.twin import is_protected
from lightning_vfl.audit.verdicts import by_attack, judged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import VFLModule
from lightning_vfl.support import Part, refuse_unsupported

from .injector import protocol


class Audit(Callback):
    """Audits a fit: what does this attacker get from the messages of the training?

    The callback listens to all messages (``module.tap``), keeps copies of those that the attacker's members receive or
    send, and runs the attacks when the fit is over. It prints a table, logs every success as
    ``audit/ATTACKER/ATTACK``, and writes the report.

    Whether an attack that finds nothing could have found something is known if it finds something on an unprotected
    twin of the recipe. ``lightning-vfl audit`` trains one; here the recipe is its own twin if it protects nothing.

    Guarantee: the training has the same bits with and without the callback, unless an attack changes the training
        itself (``ModelCompletion`` with ``active`` or ``rate``, ``CanariesInTraining``). The bytes of the messages that
        it has heard are compared with those of the meter; the report says which the simulation did not compute.
    Not guaranteed: resumed fits: a transcript has the messages of this fit alone.

    Args:
        attacker: ``party:NUMBER``, ``server``, or several joined by ``+``.
        attacks: the attacks; None: all that suit the attacker and the data, with their defaults. What none of them
            reads is not kept; all is kept if there are none.
        report: a file ``*.parquet``, ``*.md`` or ``*.html``, or several of them joined by commas; None: no file.
        limit_bytes: the most memory for what the attacker receives.

    Raises:
        ConfigurationError: before training, for an unknown attacker, several processes, attacks that the data do not
            suit, and aggregators that compute without messages; in the round in which ``limit_bytes`` is passed.
    """

    def __init__(
        self,
        attacker: str,
        attacks: Sequence[Attack] | None = None,
        report: str | None = None,
        limit_bytes: float = LIMIT_BYTES,
    ) -> None:
        self.attacker = Attacker.of(attacker)
        self.attacks = None if attacks is None else list(attacks)
        self.report = report
        self.limit_bytes = limit_bytes
        self.transcript = Transcript(self.attacker, limit_bytes)
        self.findings: list[Finding] = []
        self._case: Case  # from the start of the fit on
        self._joined: JoinedTruth
        self.revise: Callable[[Sequence[Attack], int], list[Attack]] | None = None  # the attacks, of so many epochs
        self.has_twin = False  # whether the caller attacks a twin too: verdicts, table and report are then the caller's
        refuse_report(report)

    # ---- around the fit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        module = protocol(self, pl_module)
        refuse_unsupported(type(module), [Part.AUDIT])
        if module.place is not None:
            raise ConfigurationError(
                "Audit listens to all parties of a simulation, but this process plays one end of a federation; audit "
                "the same recipe with lightning-vfl audit"
            )
        if trainer.world_size > 1:
            raise ConfigurationError(
                f"Audit listens in one process, but {trainer.world_size} train together; use devices: 1"
            )
        if trainer.ckpt_path is not None:
            raise ConfigurationError("Audit needs the whole training, and this fit resumes one; train from the start")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = protocol(self, pl_module)
        if module.datamodule is None:
            raise ConfigurationError("Audit must know the training records; give the trainer a VerticalDataModule")
        if module.wire.traits.equivalent:
            raise ConfigurationError(
                f"{type(module.aggregator).__name__} computes without messages (execution: equivalent), so there is "
                "nothing to listen to; use the other execution"
            )
        self.attacker.refuse_strangers(module.roster.parties)
        self.transcript = Transcript(self.attacker, self.limit_bytes)
        self._case = Case(module, Truth(module.datamodule), self.transcript)
        if self.attacks is None:
            self.attacks = usual_attacks(self._case)
        if self.revise is not None:
            self.attacks = self.revise(self.attacks, max(trainer.max_epochs or 1, 1))
        refuse_unsuitable(self._case, self.attacks)
        if attacks := self.attacks:
            self.transcript.wanted = lambda *entry: any(attack.reads(*entry) for attack in attacks)
        joined = [attack for attack in self.attacks if attack.target == Target.JOINED]
        self._joined = JoinedTruth(
            lambda: any(attack.reads(TOP_GRADIENTS, "up", None, self.transcript.epoch) for attack in joined)
        )
        taps = module.tap, self.transcript, self._joined
        module.tap = Several(*filter(None, taps))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.transcript.epoch = trainer.current_epoch + 1

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for attack in self._of(CanariesInTraining):
            attack.plant(batch, self._case.truth.records, self._case.module.seed)

    def on_before_optimizer_step(self, *_: Any) -> None:
        for attack in self._of(ModelCompletion):
            attack.before_step(self._case.module.bottoms, self.attacker.parties)

    def on_train_batch_end(self, *_: Any) -> None:
        for attack in self._of(ModelCompletion):
            attack.after_step()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Run the attacks, and report."""
        module = self._case.module
        truth = self._case.truth
        module.tap = None
        for difference in differences(module, self.transcript):
            rank_zero_warn(difference)
        inputs, members = members_and_others(module, truth) if self._of(MembershipByLoss) else ({}, None)
        coins = [attack.coins(truth.records, module.seed) for attack in self._of(CanariesInTraining)]
        case = Case(module, truth, self.transcript, inputs, members, coins[0] if coins else None, self._joined.rounds)
        self.findings = run_attacks(case, self.attacks or [])
        for logger in trainer.loggers:
            logger.log_metrics(metrics_of(self.findings), step=trainer.global_step)
            logger.save()
        if self.has_twin:
            return
        twins = None if is_protected(module) else by_attack(judged(self.findings))
        self.findings = judged(self.findings, twins)
        print_findings(self.findings)
        for path in write_reports(self.findings, self.report, module):
            rank_zero_info(f"wrote {path}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(pl_module, VFLModule):
            pl_module.tap = None

    def _of(self, kind: Any) -> list[Any]:
        return [attack for attack in self.attacks or () if isinstance(attack, kind)]
