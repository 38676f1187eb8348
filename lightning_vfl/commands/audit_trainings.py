"""Further trainings of an audited recipe: a shadow on which attacks are tuned, and an unprotected twin."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import is_dataclass, replace
from datetime import timedelta
from math import inf, isnan, nan
from statistics import mean
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, Timer

from lightning_vfl.audit import Attack
from lightning_vfl.audit.twin import is_protected, unprotect
from lightning_vfl.audit.verdicts import Twins, by_attack, judged, label
from lightning_vfl.callbacks import Audit, FaultInjector
from lightning_vfl.commands.command import CLI
from lightning_vfl.errors import ConfigurationError

MEASURED = 2.0  # seconds of training that tell how long it takes
_RECORDS = Checkpoint, EarlyStopping, LearningRateMonitor, DeviceStatsMonitor

Settings = Mapping[str, Any]
Tuned = Mapping[type[Attack], Settings]


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
        # attacks of one attacker with one limit share one fit; attacks without a limit take seconds
        limits = sum(sum({getattr(attack, "seconds", 0.0) for attack in one.attacks or ()}) for one in self.audits)
        print(
            f"this audit takes about {training:.0f} s of training and at most {limits:.0f} s of fits, in all at most "
            f"{2 * (training + limits):.0f} s if an attack finds nothing and an unprotected twin is trained too",
            flush=True,
        )
        self._began = inf


def may_be_tuned(audits: Sequence[Audit]) -> bool:
    """Whether an attack has choices; of the usual ones, those of parties have."""
    return any(
        bool(one.attacker.parties) if one.attacks is None else any(attack.choices(1) for attack in one.attacks)
        for one in audits
    )


def tune(cli: CLI, audits: Sequence[Audit], seconds: float) -> Tuned:
    """The settings with which attacks have most success in a shadow training on data of the attacker's own.

    The shadow training is the recipe on its validation records, whose labels and features the attacker is taken to
    know. Each kind of attack gets the settings of ``Attack.choices`` with the largest mean success.

    Args:
        cli: built; the recipe has to be built again afterwards.
        audits: with the attackers and attacks; they are not used again.
        seconds: the longest that the shadow may train.

    Returns:
        Settings by kind of attack; empty if there is nothing to choose, or the shadow training was refused or too long.
    """
    for audit in audits:
        audit.revise = _all_choices
    began = monotonic()
    try:
        _train_again(cli, audits, _on_own_data, max_time=timedelta(seconds=seconds))
    except ConfigurationError as refused:
        print(f"attacks are not tuned: {refused}")
        return {}
    if any(isinstance(one, Timer) and (one.time_remaining() or 0) <= 0 for one in cli.trainer.callbacks):
        print(f"attacks are not tuned: the shadow training takes more than {seconds:g} s; raise --tune")
        return {}
    successes = defaultdict[type[Attack], defaultdict[tuple[Any, ...], list[float]]](lambda: defaultdict(list))
    for audit in audits:
        for attack, finding in zip(audit.attacks or (), audit.findings, strict=True):
            chosen = tuple((name, getattr(attack, name)) for name in attack.choices(1)[0])
            successes[type(attack)][chosen].append(-inf if isnan(finding.success) else finding.success)
    best: dict[type[Attack], Settings] = {}
    for kind, by_choice in successes.items():
        means = {choice: mean(found) for choice, found in by_choice.items()}
        best_choice = max(means, key=means.__getitem__)
        best[kind] = dict(best_choice)
    said = ", ".join(f"{kind.__name__} {name}={value}" for kind, own in best.items() for name, value in own.items())
    print(f"tuned attacks on a shadow training in {monotonic() - began:.0f} s: {said}", flush=True)
    return best


def with_settings(attacks: Sequence[Attack], tuned: Tuned) -> list[Attack]:
    """The attacks with tuned settings in place of their own."""
    return [_new(attack, tuned.get(type(attack), {})) for attack in attacks]


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
    again = [twin for twin in (_again(one, weak, cli.datamodule.party_names) for one in audits) if twin.attacks]
    try:
        _train_again(cli, again, lambda built: unprotect(built.model), max_steps=cli.trainer.global_step)
    except ConfigurationError as refused:
        print(f"there is no unprotected twin of this recipe: {refused}")
        return {}
    finally:
        cli.trainer, cli.model, cli.datamodule = recipe
    return by_attack(judged([found for one in again for found in one.findings]))


def _train_again(cli: CLI, audits: Sequence[Audit], change: Callable[[CLI], None], **settings: Any) -> None:
    """Build the recipe again, change it, and fit it with these audits; it leaves no files.

    Args:
        cli: built.
        audits: of this training.
        change: what is done to the command line before the fit.
        settings: of the trainer, for this training alone.
    """
    earlier = cli.trainer.callbacks  # those that a caller has given are in every trainer
    given = cli.given.trainer
    settings["logger"] = False
    before = {name: given[name] for name in settings}
    try:
        for name, value in settings.items():
            given[name] = value
        cli.build()
    finally:
        for name, value in before.items():
            given[name] = value
    change(cli)
    kept = [one for one in cli.trainer.callbacks if one not in earlier and _changes_training(one)]
    cli.trainer.callbacks = [*kept, *audits]
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


def _on_own_data(cli: CLI) -> None:
    """Put the validation records in place of the training records, which the attacker does not have."""
    data = cli.datamodule
    load = data.load

    def own(names: Sequence[str]) -> dict[str, Any]:
        splits = load(tuple(dict.fromkeys((*names, "val"))))
        if "val" not in splits:
            raise ConfigurationError("the data have no validation records for a shadow training")
        data.batch_size = min(data.batch_size, len(splits["val"].features))
        return dict.fromkeys(names, splits["val"])

    data.load = own


def _all_choices(attacks: Sequence[Attack], epochs: int) -> list[Attack]:
    """Each attack with each of its choices; attacks without choices are left out."""
    return [_new(attack, choice) for attack in attacks for choice in attack.choices(epochs)]


def _again(audit: Audit, weak: Collection[tuple[str, str]], names: Sequence[str]) -> Audit:
    """The audit of the same attacker with new attacks; what it has heard of the recipe is not needed any more."""
    audit.transcript.entries.clear()
    who = str(audit.attacker)
    attacks = [_new(attack, {}) for attack in audit.attacks or () if (who, label(attack, names)) in weak]
    twin = Audit("server", attacks, None, audit.limit_bytes)
    twin.attacker = audit.attacker
    twin.has_twin = True
    return twin


def _new(attack: Attack, settings: Settings) -> Attack:
    """The attack with other settings, as it was before it ran: some remember what they have seen."""
    new: Any = replace(attack, **settings) if is_dataclass(attack) else copy(attack)
    made: Attack = new
    return made


def _changes_training(callback: Callback) -> bool:
    """Whether a further training keeps a callback: faults, and callbacks of the user's own."""
    if isinstance(callback, _RECORDS):
        return False
    return isinstance(callback, FaultInjector) or not type(callback).__module__.startswith("lightning_vfl.")
