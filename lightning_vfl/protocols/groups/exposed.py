"""What the updates of a group disclose in the training that is about to begin."""

from math import prod
from typing import Any

from lightning_vfl.protocols.groups.invertible import Exposure
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.types import Stage


def exposure_of(module: SplitModel, group: tuple[int, ...], schedule: Any) -> Exposure:
    """What the updates of a group disclose in this training; without a datamodule, the batches are unknown."""
    data = module.datamodule
    planned = module.trainer.estimated_stepping_batches
    records = 0
    batches = []
    if data is not None and schedule is not None:
        present = data.records("train").present
        records = len(data.records("train")) if present is None else int(present[:, list(group)].any(1).sum())
        batches = [len(ids) for ids, _ in schedule.epoch(0)][: int(module.trainer.num_training_batches)]
        if records < len(data.records("train")):  # records that the group does not hold may all be in one batch
            batches = [max(0, size - len(data.records("train")) + records) for size in batches]
    done = module.books.rounds.get(Stage.FIT, 0)
    return Exposure(
        group,
        module.embedding_widths[group[0]],
        sum(p.numel() for p in module.bottoms.parties[group[0]].parameters()),
        prod(module.hparams["party_shapes"][group[0]]),
        records,
        batches,
        done + planned - module.trainer.global_step,
    )
