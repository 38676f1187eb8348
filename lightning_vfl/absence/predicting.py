"""Predictions of a trained model without some of its parties."""

from collections.abc import Callable
from functools import partial

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.absence.asked import Asked, Subset
from lightning_vfl.absence.measure import moments_of, output_without, refuse
from lightning_vfl.absence.stand_ins import AbsentStandIn, Moments
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.objectives import predictions
from lightning_vfl.protocols import Predictions, VFLModule
from lightning_vfl.types import Roll, VerticalBatch, mask_of


class PredictWithout(Callback):
    """Lets ``predict`` do without some parties: their embeddings are left out, or replaced by a stand-in.

    Guarantee: the predictions are those that ``test --absent`` scores, computed in real arithmetic and in the clear.

    Args:
        absent: the numbers of the absent parties; called when the data have named their parties.
        stand_in: the replacement.

    Raises:
        ConfigurationError: before the first batch, for parties that do not exist and models that cannot do it.
    """

    def __init__(self, absent: Callable[[], Subset], stand_in: AbsentStandIn) -> None:
        self._absent = absent
        self._stand_in = stand_in

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = pl_module
        if not isinstance(module, VFLModule):
            raise ConfigurationError(f"--absent needs a protocol of this toolkit; got {type(module).__name__}")
        if module.aggregator.accounting is not None and module.protected_evaluation:
            raise ConfigurationError(
                f"--absent predicts without the noise of {type(module.aggregator).__name__}, so its ε would not cover "
                "these predictions; use --model.evaluate plain, which says that embeddings were sent in the clear"
            )
        absent = self._absent()
        moments = None
        refuse(module, Asked((absent,), ()), self._stand_in)
        if self._stand_in.learns and module.datamodule is not None:
            module.datamodule.setup("fit")
            with torch.no_grad(), evaluating(module):
                moments = moments_of(module, module.datamodule.train_dataloader())
        module.predictor = partial(self._predict, module, absent, moments)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _forget(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        _forget(pl_module)

    def _predict(self, module: VFLModule, absent: Subset, moments: Moments | None, batch: VerticalBatch) -> Predictions:
        h = module.bottoms(batch.features)
        answered, output = output_without(module, h, batch.present, absent, self._stand_in, moments)
        there = ~mask_of(absent, module.roster.parties)
        parties = Roll.of(there).holders(batch.record_ids, batch.present)
        if output is None:
            return Predictions(batch.record_ids, torch.full((len(answered),), float("nan")), parties)
        predicted = predictions(module.objective, output)
        values = predicted.new_full((len(answered), *predicted.shape[1:]), float("nan"))
        values[answered] = predicted
        return Predictions(batch.record_ids, values, parties)


def _forget(module: LightningModule) -> None:
    if isinstance(module, VFLModule):
        module.predictor = None
