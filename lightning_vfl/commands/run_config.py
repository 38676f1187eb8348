"""A folder of its own for each run, with all its settings in ``config.yaml``."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_vfl.callbacks.logger_records import LoggerRecord, records_of
from lightning_vfl.commands.checkpoints import COMMAND
from lightning_vfl.privacy.ledger import is_unused
from lightning_vfl.protocols.run_folder import run_folder
from lightning_vfl.whole_files import named

_SETTINGS = ("config.yaml", "hparams.yaml")
RUNS = "runs"  # the default folder, which all runs share


class RunConfig(Callback):
    """Writes the settings of a run into the folder of its checkpoints; no file is ever overwritten.

    Lightning's own callback writes into the folder that several runs share, unless the logger is that of CSV files or
    TensorBoard.

    Args:
        text: the settings as YAML.
        command: the sub-command, which is noted in every checkpoint.
    """

    def __init__(self, text: str, command: str) -> None:
        self.text = text
        self._command = command
        self._saved = False
        self._before: set[Path] = set()  # what there was below the root, and the folders above it
        self._root: Path | None = None
        self._records: list[LoggerRecord] = []
        self._works = False  # a batch was trained, tested or predicted

    def take_folder(self, trainer: Trainer) -> None:
        """Choose the run's folder, before the trainer starts.

        Guarantee: two runs never have the same folder, also if they begin at the same moment, because folders and files
            are created exclusively. A folder that is given as a logger's ``version`` is used as it is. Without a
            logger, the first run that is given a ``default_root_dir`` has that folder itself.
        """
        if not trainer.is_global_zero:  # other processes are told the folder by Lightning
            return
        local = [one for one in trainer.loggers if isinstance(one, CSVLogger | TensorBoardLogger)]
        root = local[0].root_dir if local else trainer.default_root_dir
        if _is_local(root):
            self._root = Path(root).absolute()
            self._before = {one for one in (*self._root.parents, *self._root.rglob("*"), self._root) if one.exists()}
        self._records = records_of(trainer.loggers)
        for folder in _folders_of(trainer.loggers):
            self._before |= {
                one for one in (folder, *folder.parents, *folder.glob("*"), *folder.glob("*/*")) if one.exists()
            }
        taken: dict[str, int] = {}
        for logger in trainer.loggers:
            if (
                isinstance(logger, CSVLogger | TensorBoardLogger)
                and logger._version is None
                and _is_local(logger.root_dir)
            ):
                if logger.root_dir not in taken:
                    taken[logger.root_dir] = make_version(Path(logger.root_dir))
                logger._version = taken[logger.root_dir]  # Lightning would count the folders, and two runs count alike
        if not trainer.loggers and _is_local(root):
            try:
                self._save(Path(root), [] if root == RUNS else ["config.yaml"])
            except FileExistsError:  # other runs are there
                folder = Path(root) / f"version_{make_version(Path(root))}"
                trainer._default_root_dir = str(folder)  # type: ignore[attr-defined]  # set in Trainer.__init__

    def remove_unused(self) -> None:
        """After a failure, remove the folder of the run if nothing in it is worth keeping.

        Guarantee: a file that was there before, a checkpoint, metrics and a privacy ledger with a charge stay, and with
            one of them the whole folder.
        """
        if not self._works:
            self._discard_records()
        if self._root is None or not self._root.is_dir():
            return
        made = [one for one in self._root.rglob("*") if one not in self._before]
        files = [one for one in made if not one.is_dir()]
        if not all(one.name in _SETTINGS or is_unused(one) for one in files):
            return
        for file in files:
            file.unlink()
        self._remove_empty([one for one in made if one.is_dir()] + [self._root, *self._root.parents])

    def _discard_records(self) -> None:
        """Remove what W&B or MLflow have stored of a run in which no batch has ended."""
        folders = _folders_of([record.logger for record in self._records])
        for record in self._records:
            record.discard(self._before)
        self._remove_empty([one for folder in folders for one in (folder, *folder.parents)])

    def _remove_empty(self, folders: Iterable[Path]) -> None:
        for folder in sorted({*folders}, key=lambda one: len(one.parts), reverse=True):
            if folder not in self._before and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def on_train_batch_end(self, *_: Any) -> None:
        self._works = True

    def on_test_batch_end(self, *_: Any) -> None:
        self._works = True

    def on_predict_batch_end(self, *_: Any) -> None:
        self._works = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[COMMAND] = self._command

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._saved or not trainer.is_global_zero:
            return
        folder = run_folder(trainer)
        names = chain(["config.yaml"], (f"config-v{number}.yaml" for number in count(1)))  # as Lightning's checkpoints
        if _is_local(folder):
            self._save(Path(folder), names)
            return
        files = get_filesystem(folder)
        name = next(name for name in names if not files.exists(f"{folder}/{name}"))
        with files.open(f"{folder}/{name}", "w") as file:
            file.write(self.text)
        self._saved = True

    def _save(self, folder: Path, names: Iterable[str]) -> None:
        """Write the settings into the first of these files that does not exist.

        Raises:
            FileExistsError: if all of them exist.
        """
        with named(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            with suppress(FileExistsError), named(folder / name), (folder / name).open("x", encoding="utf-8") as file:
                file.write(self.text)
                self._saved = True
                return
        raise FileExistsError(folder)


def _folders_of(loggers: Iterable[Logger]) -> list[Path]:
    """The local folders of W&B and MLflow."""
    named = [(one, one.save_dir) for one in loggers if isinstance(one, WandbLogger | MLFlowLogger)]
    local = [(one, Path(folder).absolute()) for one, folder in named if folder and _is_local(folder)]
    return [folder / "wandb" if isinstance(one, WandbLogger) else folder for one, folder in local]


def make_version(folder: Path) -> int:
    """Make the next folder ``version_N`` in a folder, and return N.

    Raises:
        ConfigurationError: naming the folder, if it cannot be written.
    """
    with named(folder):
        folder.mkdir(parents=True, exist_ok=True)
    numbers = (path.name.removeprefix("version_") for path in folder.glob("version_*"))
    number = max((int(n) for n in numbers if n.isdigit()), default=-1) + 1
    while True:
        try:
            with named(folder):
                (folder / f"version_{number}").mkdir()
        except FileExistsError:
            number += 1
        else:
            return number


def _is_local(folder: str) -> bool:
    return "://" not in str(folder)
