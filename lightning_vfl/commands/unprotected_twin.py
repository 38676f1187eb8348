"""The unprotected twin of an audited recipe: what attacks get where nothing is protected."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import is_dataclass, replace
from math import inf, isnan, nan
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, Timer

from lightning_vfl.audit import Attack
from lightning_vfl.audit.finding import label
from lightning_vfl.audit.twin import is_protected, unprotect
from lightning_vfl.audit.verdicts import Twins, by_attack, judged
from lightning_vfl.callbacks import Audit, FaultInjector
from lightning_vfl.commands.command import CLI
from lightning_vfl.errors import ConfigurationError

MEASURED = 2.0  # seconds of training that tell how long it takes

# the twin makes as many steps as the recipe has made, and leaves no files
_RECORDS = Checkpoint, EarlyStopping, LearningRateMonitor, DeviceStatsMonitor, Timer


class SaysTime(Callback):
    """Says how long an audit takes, as soon as two seconds of the training show it.

    Args:
        audits: of the training.
    """

    def __init__(self, audits: Sequence[Audit]) -> None:
        self.audits = audits
        self._began = nan  # the first step, which prepares much, has ended

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Measure the steps after the first."""
        if isnan(self._began):
            self._began = monotonic()
            return
        seconds = monotonic() - self._began
        if seconds < MEASURED or inf in (self._began, trainer.estimated_stepping_batches):
            return
        training = seconds * trainer.estimated_stepping_batches / trainer.global_step
        limits = {getattr(attack, "seconds", 0.0) for one in self.audits for attack in one.attacks or ()}
        print(
            f"this audit trains for about {training:.0f} s and has attacks with limits of {sum(limits):.0f} s in all; "
            "if an attack finds nothing, an unprotected twin takes as long again at most",
            flush=True,
        )
        self._began = inf


def attack_twin(cli: CLI, audits: Sequence[Audit], weak: Collection[tuple[str, str]], seconds: float) -> Twins:
    """The findings of the attacks that found nothing in the recipe, on its unprotected twin.

    The twin has the recipe's data, networks, seed, faults and number of steps. Its aggregator sends embeddings in the
    clear, and it has neither noise nor a downlink. The command line has the recipe's objects again afterwards.

    Args:
        cli: after the fit of the recipe.
        audits: of the recipe, which have run.
        weak: attacker and attack of the findings that are no leaks.
        seconds: the time that the recipe has taken.

    Returns:
        Judged findings by attacker and attack; empty if the twin is refused.
    """
    if not weak:
        return {}
    if not is_protected(cli.model):
        return by_attack(judged([found for one in audits for found in one.findings]))
    print(
        f"training an unprotected twin, for {len(weak)} attacks that found nothing: about {seconds:.0f} s", flush=True
    )
    recipe = cli.trainer, cli.model, cli.datamodule
    again = [twin for twin in (_again(one, weak) for one in audits) if twin.attacks]
    cli.given.trainer.max_steps = cli.trainer.global_step
    cli.given.trainer.logger = False
    try:
        cli.build()
        unprotect(cli.model)
        kept = [one for one in cli.trainer.callbacks if _changes_training(one, recipe[0].callbacks)]
        cli.trainer.callbacks = [*kept, *again]
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    except ConfigurationError as refused:
        print(f"there is no unprotected twin of this recipe: {refused}")
        return {}
    finally:
        cli.trainer, cli.model, cli.datamodule = recipe
    return by_attack(judged([found for one in again for found in one.findings]))


def _again(audit: Audit, weak: Collection[tuple[str, str]]) -> Audit:
    """The audit of the same attacker with new attacks; what it has heard of the recipe is not needed any more."""
    audit.transcript.entries.clear()
    who = str(audit.attacker)
    attacks = [_new(attack) for attack in audit.attacks or () if (who, label(attack)) in weak]
    twin = Audit("server", attacks, None, audit.limit_bytes)
    twin.attacker = audit.attacker
    twin.has_twin = True
    return twin


def _new(attack: Attack) -> Attack:
    """The attack as it was before it ran: some remember what they have seen."""
    new: Any = replace(attack) if is_dataclass(attack) else copy(attack)
    made: Attack = new
    return made


def _changes_training(callback: Callback, of_recipe: Sequence[Callback]) -> bool:
    """Whether the twin keeps a callback: faults, and callbacks of the user's own."""
    if callback in of_recipe or isinstance(callback, _RECORDS):
        return False
    return isinstance(callback, FaultInjector) or not type(callback).__module__.startswith("lightning_vfl.")
