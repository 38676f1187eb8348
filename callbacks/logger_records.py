"""What loggers of experiments keep besides metrics: tables and figures, each in the logger's own form."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from lightning.pytorch.loggers import CometLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_vfl.errors import ConfigurationError

Lines = Sequence[tuple[str, str]]


class LoggerRecord(ABC):
    """A logger, as a place for tables and figures.

    Args:
        logger: the logger.
    """

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def refuse_resuming(self, settings: Mapping[str, Any]) -> None:
        """Accept a run that the logger can go on with, before anything is logged; default: every run.

        Args:
            settings: the module's, which Lightning logs.

        Raises:
            ConfigurationError: saying what to do instead.
        """
        return

    def discard(self, before: Collection[Path]) -> None:
        """Remove the local files of a run that has trained nothing; default: it has none.

        Not guaranteed: the empty store that MLflow makes with its logger stays, because MLflow keeps it open.

        Args:
            before: what was in the folder of the logger before the run.
        """
        return

    def settings(self, values: Mapping[str, Any]) -> None:
        """Store settings of the run; default: as the logger does."""
        self.logger.log_hyperparams(values)

    def begin(self, metrics: Sequence[str]) -> None:
        """Prepare the logger before the first of these metrics is logged; default: nothing."""
        return

    @abstractmethod
    def table(self, name: str, lines: Lines) -> None:
        """Store a table of names and values."""

    @abstractmethod
    def figure(self, name: str, path: Path) -> None:
        """Store a PNG file as an image."""


class WandbRecord(LoggerRecord):
    """Weights & Biases: metrics are drawn against virtual seconds, and validation against bytes too."""

    def refuse_resuming(self, settings: Mapping[str, Any]) -> None:
        """Refuse a second offline run of one id: its steps begin anew, and W&B drops or mixes those of both."""
        experiment = self.logger.experiment  # Lightning has begun it
        if not (self.logger._offline or os.environ.get("WANDB_MODE") in ("offline", "dryrun")):
            return
        run = experiment.id
        mine = Path(experiment.dir).parent
        if earlier := sorted(other for other in mine.parent.glob(f"*run-*-{run}") if other.name != mine.name):
            raise ConfigurationError(
                f"W&B cannot continue the run {run} offline, because {earlier[-1]} has it and the steps of both would "
                f"be mixed; run wandb sync {earlier[-1]} and resume online, or leave out the id (version), which makes "
                "a new run"
            )

    def discard(self, before: Collection[Path]) -> None:
        run = self.logger._experiment
        if run is None:  # it was never begun
            return
        folder = Path(run.dir).parent
        if folder in before:  # somebody else has begun it
            return
        run.finish(exit_code=1)
        rmtree(folder, ignore_errors=True)
        for link in folder.parent.glob("*"):
            if link.is_symlink() and not link.exists():  # to the newest run and its logs
                link.unlink()

    def begin(self, metrics: Sequence[str]) -> None:
        run = self.logger.experiment
        for spent in ("clock/virtual_seconds", "comm/up_bytes"):
            run.define_metric(spent, step_metric="trainer/global_step")
        for name in metrics:
            run.define_metric(name, step_metric="clock/virtual_seconds")
            run.define_metric(f"by_bytes/{name}", step_metric="comm/up_bytes")

    def table(self, name: str, lines: Lines) -> None:
        self.logger.log_table(name, columns=["what", "value"], data=[list(line) for line in lines])

    def figure(self, name: str, path: Path) -> None:
        self.logger.log_image(name, [str(path)])


class TensorBoardRecord(LoggerRecord):
    """TensorBoard: tables are texts."""

    def table(self, name: str, lines: Lines) -> None:
        self.logger.experiment.add_text(name, as_markdown(lines))

    def figure(self, name: str, path: Path) -> None:
        self.logger.experiment.add_image(name, pixels(path), dataformats="HWC")


class MLFlowRecord(LoggerRecord):
    """MLflow: tables and figures are artifacts. A run keeps the first value of a setting; later values are tags."""

    def refuse_resuming(self, settings: Mapping[str, Any]) -> None:
        """Refuse to go on with a run whose module had other settings."""
        run = self.logger.run_id
        kept = self.logger.experiment.get_run(run).data.params
        flat = _texts_of(settings)
        if changed := [name for name, text in flat.items() if kept.get(name, text) != text]:
            name = changed[0]
            self.logger._initialized = False  # else Lightning marks the run, which has ended well, as failed
            raise ConfigurationError(
                f"the MLflow run {run} has {name} = {kept[name]}, this fit has {flat[name]}, and MLflow keeps one "
                "value of a setting; leave out run_id, which makes a new run, or give the same settings"
            )

    def discard(self, before: Collection[Path]) -> None:
        if not (self.logger._initialized and self.logger.save_dir):  # it was never begun, or is in a database
            return
        folder = Path(self.logger.save_dir).absolute()
        run = folder / self.logger.experiment_id / self.logger.run_id
        if run in before:  # it has the results of an earlier training, which this one was to go on with
            return
        rmtree(run, ignore_errors=True)
        self.logger._initialized = False  # else the logger ends a run that is not there
        for experiment in folder.glob("*"):
            if experiment not in before and not any(experiment.glob("*/meta.yaml")):
                rmtree(experiment)

    def settings(self, values: Mapping[str, Any]) -> None:
        client = self.logger.experiment
        run = self.logger.run_id
        kept = client.get_run(run).data.params
        flat = _texts_of(values)
        changed = {name: text for name, text in flat.items() if kept.get(name, text) != text}
        for name, text in changed.items():  # such as max_epochs of a fit that is resumed
            client.set_tag(run, f"resumed.{name}", text)
        self.logger.log_hyperparams({name: text for name, text in flat.items() if name not in changed})

    def table(self, name: str, lines: Lines) -> None:
        self.logger.experiment.log_text(self.logger.run_id, as_markdown(lines), f"{name.replace(' ', '_')}.md")

    def figure(self, name: str, path: Path) -> None:
        self.logger.experiment.log_artifact(self.logger.run_id, str(path))


class CometRecord(LoggerRecord):
    """Comet: tables are CSV files.

    Raises:
        ConfigurationError: in ``begin``, for ``online: false``, with which Lightning's logger stores nothing.
    """

    def begin(self, metrics: Sequence[str]) -> None:
        if self.logger._online is False and self.logger.experiment.disabled:
            raise ConfigurationError(
                "CometLogger with online: false stores nothing; leave online out and set the environment variable "
                "COMET_START_ONLINE=0, which keeps the run in offline_directory"
            )

    def table(self, name: str, lines: Lines) -> None:
        self.logger.experiment.log_table(
            f"{name.replace(' ', '_')}.csv", [list(line) for line in lines], headers=["what", "value"]
        )

    def figure(self, name: str, path: Path) -> None:
        self.logger.experiment.log_image(str(path), name=name)


_RECORDS: tuple[tuple[type[Logger], type[LoggerRecord]], ...] = (
    (WandbLogger, WandbRecord),
    (TensorBoardLogger, TensorBoardRecord),
    (MLFlowLogger, MLFlowRecord),
    (CometLogger, CometRecord),
)


def _texts_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as Lightning's logger for MLflow writes them: one flat name each, at most 250 letters."""
    return {name: str(value)[:250] for name, value in flat(settings).items()}


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings under one name each, as Lightning's loggers write them.

    Examples:
        >>> flat({"model": {"width": 4, "hidden": [8, 8]}, "callbacks": [{"name": "a"}, {"name": "b"}]})
        {'model/width': 4, 'model/hidden': [8, 8], 'callbacks/0/name': 'a', 'callbacks/1/name': 'b'}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}/")
        elif isinstance(value, list) and all(isinstance(inner, Mapping) for inner in value):
            found |= flat({str(place): inner for place, inner in enumerate(value)}, f"{name}/")
        else:
            found[name] = value
    return found


def records_of(loggers: Sequence[Logger]) -> list[LoggerRecord]:
    """The loggers that keep tables and figures."""
    return [record(logger) for logger in loggers for kind, record in _RECORDS if isinstance(logger, kind)]


def as_markdown(lines: Lines) -> str:
    """A table in Markdown.

    Examples:
        >>> print(as_markdown([("rounds", "7")]))
        | what | value |
        | --- | --- |
        | rounds | 7 |
    """
    return "\n".join(["| what | value |", "| --- | --- |", *(f"| {what} | {value} |" for what, value in lines)])


def pixels(path: Path) -> Any:
    """(H, W, 3) bytes of a picture."""
    import numpy as np
    from PIL import Image  # imported here: a picture is drawn once, at the end of a run

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))
