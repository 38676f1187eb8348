"""One golden run: trained to the cut, resumed from its checkpoint in a new module, trained to the end."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger

from lightning_vfl.datamodules import Standardise
from tests.another_device import another_device, strategy
from tests.golden import data as records
from tests.golden.build import faults_of, merged, module_of
from tests.golden.cases import Case
from tests.golden.digest import everything

BATCH, SEED = 6, 3


def take_exact_square_roots() -> None:
    """Round square roots correctly, on every processor.

    Torch takes them from MKL's vector library, which begins with the processor's own approximation: every sixth float32
    is not the nearest one, and not the same on processors of two makers. Adam takes a root of every number, unless it
    is fused.
    """
    own = torch.Tensor.sqrt

    def exact(x: torch.Tensor) -> torch.Tensor:
        return own(x.double()).float() if x.dtype == torch.float32 else own(x)

    torch.Tensor.sqrt = exact  # type: ignore[assignment, method-assign]


class Lines(Logger):
    """Keeps what is logged, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "lines"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append((step or 0, {name: float(value) for name, value in metrics.items()}))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        return


def run(case: Case, folder: Path, elsewhere: bool = False) -> dict[str, Any]:
    """The digests of a case; ``elsewhere``: trained on the device that stands in for a GPU."""
    saver = ModelCheckpoint(
        dirpath=folder, filename="cut", every_n_train_steps=case.cut, save_top_k=-1, save_on_train_epoch_end=False
    )
    with another_device() if elsewhere else nullcontext():
        fit(case, folder, case.cut + 1, [saver], elsewhere=elsewhere)
        return resumed(case, folder, folder / "cut.ckpt", elsewhere)


def resumed(case: Case, folder: Path, checkpoint: Path, elsewhere: bool = False) -> dict[str, Any]:
    """The digests of a case that goes on from a checkpoint."""
    return everything(*fit(case, folder, case.rounds, [], checkpoint, elsewhere))


def fit(
    case: Case,
    folder: Path,
    steps: int,
    callbacks: list[Any],
    ckpt_path: Path | None = None,
    elsewhere: bool = False,
) -> tuple[Any, Trainer, list[tuple[int, dict[str, float]]]]:
    """A module that was trained for so many steps, its trainer, and what was logged."""
    config = merged(case.recipes, case.settings)
    module, lines = module_of(config, SEED), Lines()
    where: dict[str, Any] = {"strategy": strategy()} if elsewhere else {"accelerator": "cpu"}
    trainer = Trainer(
        **where,
        max_steps=steps,
        logger=lines,
        log_every_n_steps=3,
        callbacks=[*faults_of(config), *callbacks],
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    datamodule = getattr(records, case.data)(normaliser=Standardise(public=True), batch_size=BATCH)
    torch.manual_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, datamodule=datamodule, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return module, trainer, lines.lines
