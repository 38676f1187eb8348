"""Predictions in a file, one line for each record."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import MultiLabel
from lightning_vfl.protocols import Predictions, VFLModule
from lightning_vfl.trained.predictions import (
    check_ending,
    prediction_table,
    tell_left_out,
    with_absent,
    with_parties,
    write_predictions,
)
from lightning_vfl.types import Tensors
from lightning_vfl.whole_files import refuse_unwritable, whole_path

if TYPE_CHECKING:
    import pandas as pd


class PredictionWriter(Callback):
    """Writes the predictions of ``predict``: the user's own record id, probabilities and decision, or one value.

    Columns: those of ``lightning_vfl.trained.predictions.prediction_table``; classes have the names of the data. If a
    party lacks records (``overlap: keep``, groups), or parties are absent from the prediction, ``parties`` has the
    names of those that took part; a record without a prediction has no numbers and no decision. ``predict --absent``
    adds ``absent``, the names of the others. Records that are not predicted, because some party lacks them, are in
    ``NAME.left_out.csv`` beside the file.

    Args:
        path: the file to write, ``.csv`` or ``.parquet``; None: the table is kept in ``table`` alone.
        at: in a federation, who writes the file: the server, or every party, which the server then tells the predicted
            values, and who took part in each. A party writes the records that it holds. A simulation writes the file
            in any case.

    Guarantee: one line for each record, in the order of the datamodule, for any number of processes. The file appears
        complete or not at all.
    """

    table: "pd.DataFrame | None" = None
    """The table, after a prediction whose file this process writes, or would write if it had a path."""

    def __init__(self, path: str | None = "predictions.csv", at: Literal["server", "parties"] = "server") -> None:
        if at not in ("server", "parties"):
            raise ConfigurationError(f"predictions.at must be 'server' or 'parties'; got '{at}'")
        self.path = Path(path or "predictions.csv")
        self.writes = path is not None
        self.at = at
        check_ending(self.path)
        self._predictions: list[Predictions] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._predictions = []
        self.table = None
        left_out = getattr(getattr(trainer, "datamodule", None), "left_out", {})
        if self.writes and (self._writes(pl_module) or any(map(len, left_out.values()))):
            refuse_unwritable(self.path)  # now, and not after all records are predicted

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        if isinstance(outputs, Predictions) and len(outputs.record_ids):
            parties = None if outputs.parties is None else outputs.parties.cpu()
            self._predictions.append(Predictions(outputs.record_ids.cpu(), outputs.values.cpu(), parties))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = getattr(trainer, "datamodule", None)
        if trainer.is_global_zero:
            place = pl_module.place if isinstance(pl_module, VFLModule) else None
            seat = "" if place is None or place.seat.party is None else f".{data.party_names[place.seat.party]}"
            own = self.path.with_name(f"{self.path.stem}{seat}{self.path.suffix}")  # the parties may share a folder
            tell_left_out(getattr(data, "left_out", {}), own if self.writes else None)
        if not self._writes(pl_module):
            return
        mine = tuple(map(torch.cat, _columns(self._predictions))) if self._predictions else None
        joined = _of_all_processes(trainer, self.path, mine)
        if joined is not None:
            self._write(data, pl_module, *joined)

    def _writes(self, module: LightningModule) -> bool:
        """Whether this process writes the file."""
        if not isinstance(module, VFLModule) or module.place is None:
            return True
        return module.scores_here != (self.at == "parties")

    def _write(self, data: Any, module: LightningModule, found: Tensor, values: Tensor, parties: Tensor) -> None:
        positions, order = found.sort()
        known = _known(data, module, positions)
        positions = positions[known]
        order = order[known]
        rows = positions.numpy()
        ids = rows if data is None else data.records("predict").ids[rows]
        of_labels = (getattr(data, "targets", ()), isinstance(module.objective, MultiLabel))
        table = prediction_table(ids, values[order].numpy(), _class_names(data, module), *of_labels)
        if parties.numel():
            there = parties[order].numpy()
            names = getattr(data, "party_names", ())
            table = with_parties(table, there, names)
            if isinstance(module, VFLModule) and module.predictor is not None:
                table = with_absent(table, there, names)
        self.table = table
        if self.writes:
            write_predictions(table, self.path)
            print(f"{len(table):,} predictions: {self.path}")


def predictions_of(module: VFLModule, data: LightningDataModule) -> "pd.DataFrame":
    """The predictions of a trained model for all records of the data, in a frame with their ids.

    Its columns are those of ``PredictionWriter``. In one process on the CPU; otherwise give a trainer a
    ``PredictionWriter(None)``, whose ``table`` it is.

    Raises:
        ConfigurationError: if there is no record to predict.
    """
    writer = PredictionWriter(None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=[writer],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.predict(module, datamodule=data)
    if writer.table is None:
        raise ConfigurationError("there is no record to predict")
    return writer.table


def _known(data: Any, module: LightningModule, positions: Tensor) -> Tensor:
    """(n,) bool, the records at these positions whose ids this process knows: a party has ids of its own records."""
    party = module.owner if isinstance(module, VFLModule) else None
    present = None if data is None or party is None else data.records("predict").present
    return torch.ones(len(positions), dtype=torch.bool) if present is None else present[positions, party]


def _columns(predictions: Sequence[Predictions]) -> tuple[list[Tensor], ...]:
    """Positions, values, and (N, M) who took part; (N, 0) if every party took part in every prediction."""
    parties = [p.parties for p in predictions]
    wide = max(0 if own is None else own.shape[1] for own in parties)
    everyone = [torch.ones(len(p.record_ids), wide, dtype=torch.bool) for p in predictions]
    took_part = [other if own is None else own for own, other in zip(parties, everyone, strict=True)]
    return [p.record_ids for p in predictions], [p.values for p in predictions], took_part


def _of_all_processes(trainer: Trainer, path: Path, mine: Tensors | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """Positions, values and parties of the predictions of all processes; None in all but the first.

    Args:
        trainer: of these processes.
        path: of the predictions; other processes write theirs beside it for the first one.
        mine: those of this process; None: it has predicted no record.
    """
    found = [mine]
    if trainer.world_size > 1:
        paths = [path.with_name(f".{path.name}.{rank}") for rank in range(trainer.world_size)]
        content = BytesIO()  # torch hides the reason if it cannot write to a file
        torch.save(mine, content)
        try:
            with whole_path(paths[trainer.global_rank]) as part:
                part.write_bytes(content.getbuffer())
            trainer.strategy.barrier("predictions are written")
            found = [torch.load(part, weights_only=True) for part in paths] if trainer.is_global_zero else []
            trainer.strategy.barrier("predictions are joined")
        finally:
            paths[trainer.global_rank].unlink(missing_ok=True)
    predicted = [own for own in found if own is not None]
    if not predicted:
        return None
    ids, values, parties = zip(*predicted, strict=True)
    return torch.cat(ids), torch.cat(values), torch.cat(parties)


def _class_names(data: Any, module: LightningModule) -> Sequence[int | str]:
    """The names of the classes: those of the data, else their numbers; empty for real-valued labels."""
    names: Sequence[int | str] = getattr(data, "class_names", range(module.hparams["num_classes"] or 0))
    return names
