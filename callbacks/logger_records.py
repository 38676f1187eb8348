"""What loggers of experiments keep besides metrics: tables and figures, each in the logger's own form."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
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
    """MLflow: tables and figures are artifacts."""

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
