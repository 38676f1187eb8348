"""Predictions in a file, one line for each record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import MultiLabel
from lightning_vfl.protocols import Predictions, VFLModule
from lightning_vfl.trained.predictions import (
    check_ending,
    prediction_table,
    with_absent,
    with_parties,
    write_predictions,
)


class PredictionWriter(Callback):
    """Writes the predictions of ``predict``: the user's own record id, probabilities and decision, or one value.

    Columns: those of ``lightning_vfl.trained.predictions.prediction_table``; classes have the names of the data. If
    faults happen in the prediction (``faults_in_evaluation``), ``parties`` has the numbers of those that took part and
    ``absent`` the names of the others; a record without a prediction has no numbers and no decision.

    Args:
        path: the file to write, ``.csv`` or ``.parquet``.
        at: in a federation, who writes the file: the server, or every party, which the server then tells the predicted
            values. A simulation writes it in any case.

    Guarantee: one line for each record, in the order of the datamodule, for any number of processes. The file appears
        complete or not at all.
    """

    def __init__(self, path: str = "predictions.csv", at: Literal["server", "parties"] = "server") -> None:
        if at not in ("server", "parties"):
            raise ConfigurationError(f"predictions.at must be 'server' or 'parties'; got '{at}'")
        self.path = Path(path)
        self.at = at
        check_ending(self.path)
        self._predictions: list[Predictions] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._predictions = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if isinstance(outputs, Predictions) and len(outputs.record_ids):
            parties = None if outputs.parties is None else outputs.parties.cpu()
            self._predictions.append(Predictions(outputs.record_ids.cpu(), outputs.values.cpu(), parties))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        federated = isinstance(pl_module, VFLModule) and pl_module.place is not None
        if federated and pl_module.scores_here == (self.at == "parties"):
            return
        part = self.path.with_name(f".{self.path.name}.{trainer.global_rank}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        mine = self._predictions
        took_part = [p.parties for p in mine if p.parties is not None]
        saved = {"ids": [p.record_ids for p in mine], "values": [p.values for p in mine], "parties": took_part}
        torch.save(saved, part)
        trainer.strategy.barrier("predictions are written")
        if trainer.is_global_zero:
            self._join(trainer, pl_module)
        trainer.strategy.barrier("predictions are joined")
        part.unlink(missing_ok=True)

    def _join(self, trainer: Trainer, module: LightningModule) -> None:
        found, values, parties = [], [], []
        for rank in range(trainer.world_size):
            saved = torch.load(self.path.with_name(f".{self.path.name}.{rank}"), weights_only=True)
            found += saved["ids"]
            values += saved["values"]
            parties += saved["parties"]
        positions, order = torch.cat(found).sort()
        rows, data = positions.numpy(), getattr(trainer, "datamodule", None)
        ids = rows if data is None else data.records("predict").ids[rows]
        of_labels = (getattr(data, "targets", ()), isinstance(module.objective, MultiLabel))
        table = prediction_table(ids, torch.cat(values)[order].numpy(), _class_names(data, module), *of_labels)
        if parties:
            there = torch.cat(parties)[order].numpy()
            names = getattr(data, "party_names", [str(party) for party in range(there.shape[1])])
            table = with_absent(with_parties(table, there), there, names)
        write_predictions(table, self.path)
        print(f"{len(table):,} predictions: {self.path}")


def _class_names(data: Any, module: LightningModule) -> Sequence[int | str]:
    """The names of the classes: those of the data, else their numbers; empty for real-valued labels."""
    names: Sequence[int | str] = getattr(data, "class_names", range(module.hparams["num_classes"] or 0))
    return names
