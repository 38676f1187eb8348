"""Short trainings that meet a target ε, to compare widths, numbers of epochs and batch sizes before the real one."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

from lightning.pytorch.callbacks import Checkpoint
from rich.table import Table

from lightning_vfl.callbacks import ExperimentRecord, RunRecord, RunSummary
from lightning_vfl.commands.command import CLI
from lightning_vfl.commands.planned_cost import Plan, planned
from lightning_vfl.commands.run_config import RunConfig
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.terminal import console

ROUNDS = 600  # of a trial, at most
_SMALLER = 4  # by this factor, and its square, epochs are lowered; by this factor batches are enlarged
_FASTER = 10  # by this factor the learning rate is raised for fewer epochs
_NARROWER = (2, 4)  # by these factors widths are lowered
_WRITERS = (Checkpoint, RunConfig, RunSummary, RunRecord, ExperimentRecord)  # a trial leaves no file
_HIGHER, _LOWER = ("val/auroc", "val/accuracy", "val/r2"), ("val/rmse", "val/loss")


@dataclass(frozen=True)
class Setting:
    """What a trial trains with.

    Args:
        width: of the embeddings.
        batch: rows of a batch.
        epochs: of the training.
        rate: the learning rate; None: that of the recipe.
    """

    width: int
    batch: int
    epochs: int
    rate: float | None = None

    @property
    def options(self) -> list[str]:
        """As options of the command line."""
        width, batch, epochs = map(str, (self.width, self.batch, self.epochs))
        options = ["--model.width", width, "--data.batch_size", batch, "--trainer.max_epochs", epochs]
        return options if self.rate is None else [*options, "--optimizer.lr", f"{self.rate:g}"]


@dataclass(frozen=True)
class Trial:
    """A setting, and what was found with it.

    Args:
        setting: the setting.
        found: what meets the target with it, as an option and its value.
        scores: the metrics of validation after the trial.
        rate: the learning rate at the start; None: the optimiser has none.
    """

    setting: Setting
    found: tuple[str, str]
    scores: dict[str, float]
    rate: float | None


def compare(build: Callable[[Sequence[str]], CLI], plan: Plan, solve: Callable[[Plan], float | int]) -> None:
    """Train the recipe and some other settings that meet the same target, print their scores, and recommend the best.

    First fewer epochs are tried, with a higher learning rate, because few rounds learn little at the rate of many; then
    smaller widths with the best so far, and a larger batch with the best of these.

    Args:
        build: makes the recipe with further options.
        plan: of the recipe.
        solve: the largest beta, or number of levels, with which a plan meets the target.

    Guarantee: every trial is seeded as the recipe, and meets the target with all its epochs.
    Not guaranteed: the score of the whole training: a trial has at most ``ROUNDS`` rounds, with the noise of all of
        them, and the scores of validation vary with the seed. And the ε of the trials: a choice by scores tells of the
        records too, and no ledger charges it.

    Raises:
        ConfigurationError: without validation records.
    """
    own = Setting(plan.width, plan.batch, plan.releases.epochs)
    trials = [_trial(own, build, solve)]
    name = next((name for name in (*_HIGHER, *_LOWER) if name in trials[0].scores), None)
    if name is None:
        raise ConfigurationError("--try compares scores of validation, and there are none; set val_share above 0")
    sign = -1.0 if name in _LOWER else 1.0

    def best() -> Trial:
        return max(trials, key=lambda trial: sign * trial.scores[name])

    def add(setting: Setting) -> None:
        if setting.width and all(setting != trial.setting for trial in trials):
            try:
                trials.append(_trial(setting, build, solve))
            except ConfigurationError as error:
                print(f"{' '.join(setting.options)}: {error}")

    rate = trials[0].rate
    for factor in (_SMALLER, _SMALLER**2):
        faster = None if rate is None else _FASTER * rate
        add(replace(own, epochs=max(1, own.epochs // factor), rate=faster))
    for factor in _NARROWER:
        add(replace(best().setting, width=own.width // factor))
    add(_larger_batch(best().setting, plan.records))
    _print(trials, name)
    print(_recommendation(trials[0], best(), name, plan.largest_class))
    print("the trials read the records and are charged in no ledger: use a simulation on records that may be seen")


def _larger_batch(setting: Setting, records: int) -> Setting:
    return replace(setting, batch=max(setting.batch, min(setting.batch * _SMALLER, records // 2)))


def _trial(setting: Setting, build: Callable[[Sequence[str]], CLI], solve: Callable[[Plan], float | int]) -> Trial:
    with TemporaryDirectory() as folder, _quiet():
        options = [*setting.options, "--trainer.logger", "false", "--trainer.default_root_dir", folder]
        options += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
        first = build(options)
        plan = planned(first.model, first.datamodule, first.trainer)
        value = solve(plan)
        found = (f"--model.aggregator.{'levels' if isinstance(value, int) else 'beta'}", f"{value:.6g}")
        steps = plan.schedule().steps
        limit = min(steps, max(1, ROUNDS // setting.epochs))
        cli = build([*options, *found, *(["--trainer.limit_train_batches", str(limit)] if limit < steps else [])])
        trainer = cli.trainer
        trainer.callbacks = [one for one in trainer.callbacks if not isinstance(one, _WRITERS)]
        trainer.fit(cli.model, datamodule=cli.datamodule)
    metrics = trainer.callback_metrics.items()
    scores = {name: float(value) for name, value in metrics if name.startswith("val/")}
    group = trainer.optimizers[0].param_groups[0]
    rate = group.get("initial_lr", group.get("lr"))  # a schedule keeps the first rate
    return Trial(setting, found, scores, None if rate is None else float(rate))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Lightning and the toolkit tell of each trial; the table says what has come of it."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _print(trials: Sequence[Trial], name: str) -> None:
    shown = list(dict.fromkeys(one for one in (name, "val/accuracy") if one in trials[0].scores))
    table = Table(title=f"Trials of at most {ROUNDS} rounds", title_justify="left")
    for head in ("width", "batch", "epochs", "rate", trials[0].found[0].rpartition(".")[2], *shown):
        table.add_column(head, justify="right")
    for trial in trials:
        rate = "" if trial.rate is None else f"{trial.rate:g}"
        numbers = (str(trial.setting.width), str(trial.setting.batch), str(trial.setting.epochs), rate)
        table.add_row(*numbers, trial.found[1], *(f"{trial.scores[one]:.3f}" for one in shown))
    console().print(table)


def _recommendation(own: Trial, best: Trial, name: str, largest_class: float | None) -> str:
    """What to train with, or that nothing tried is better than chance."""
    chance = {"val/auroc": 0.5, "val/accuracy": largest_class}.get(name)
    told = f"{name} {best.scores[name]:.3f} in its trial, and {own.scores[name]:.3f} with the settings of the recipe"
    if chance is not None and best.scores[name] <= chance + 0.02:
        return (
            f"no setting tried is better than chance, {chance:.3f} ({told}); use a larger --target-epsilon, more "
            "parties, or an aggregator with a weaker guarantee"
        )
    options = " ".join((*best.setting.options, *best.found))
    if chance is not None and best.scores[name] < (1 + chance) / 2:
        return (
            f"the best setting tried is nearer to chance, {chance:.3f}, than to 1: {options} ({told}); use a larger "
            "--target-epsilon, more parties or more records"
        )
    return f"recommended: {options} ({told})"
