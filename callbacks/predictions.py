"""Predictions in a file, one line for each record."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import Predictions

if TYPE_CHECKING:
    import pandas as pd


class PredictionWriter(Callback):
    """Writes the predictions of ``predict``: the user's own record id, then the class probabilities or one value.

    Columns: ``record``; ``class_0`` .. ``class_{C-1}`` for several classes, ``probability`` for two (of class 1),
    ``value`` for real-valued labels.

    Args:
        path: the file to write, ``.csv`` or ``.parquet``.

    Guarantee: one line for each record, in the order of the datamodule, for any number of processes. The file appears
        complete or not at all.
    """

    def __init__(self, path: str = "predictions.csv") -> None:
        if Path(path).suffix not in (".csv", ".parquet"):
            raise ConfigurationError(f"predictions need a .csv or .parquet file; got '{path}'; change the ending")
        self.path = Path(path)
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
            self._predictions.append(Predictions(outputs.record_ids.cpu(), outputs.values.cpu()))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        part = self.path.with_name(f".{self.path.name}.{trainer.global_rank}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        mine = self._predictions
        torch.save({"ids": [p.record_ids for p in mine], "values": [p.values for p in mine]}, part)
        trainer.strategy.barrier("predictions are written")
        if trainer.is_global_zero:
            self._join(trainer, pl_module)
        trainer.strategy.barrier("predictions are joined")
        part.unlink(missing_ok=True)

    def _join(self, trainer: Trainer, module: LightningModule) -> None:
        ids, values = [], []
        for rank in range(trainer.world_size):
            saved = torch.load(self.path.with_name(f".{self.path.name}.{rank}"), weights_only=True)
            ids += saved["ids"]
            values += saved["values"]
        positions, order = torch.cat(ids).sort()
        table = _table(torch.cat(values)[order], module)
        data = getattr(trainer, "datamodule", None)
        table.insert(0, "record", positions.numpy() if data is None else data.records("predict").ids[positions.numpy()])
        whole = self.path.with_name(f".{self.path.name}")
        if self.path.suffix == ".csv":
            table.to_csv(whole, index=False)
        else:
            table.to_parquet(whole, index=False)
        whole.replace(self.path)
        print(f"{len(table):,} predictions: {self.path}")


def _table(values: torch.Tensor, module: LightningModule) -> "pd.DataFrame":
    import pandas as pd  # imported here, because the import takes 0.5 s

    if values.ndim == 1:
        name = "value" if module.hparams["num_classes"] is None else "probability"
        return pd.DataFrame({name: values.numpy()})
    return pd.DataFrame(values.numpy(), columns=[f"class_{c}" for c in range(values.shape[1])])
