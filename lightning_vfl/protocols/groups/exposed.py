"""What the updates of a group disclose in the training that is about to begin."""

from math import prod
from typing import Any

from lightning_vfl.protocols.groups.invertible import Exposure
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.types import Stage


def exposure_of(module: SplitModel, group: tuple[int, ...], schedule: Any) -> Exposure:
    """What the updates of a group disclose in this training; without a datamodule, the batches are unknown."""
    trainer = module.trainer
    steps_left = trainer.estimated_stepping_batches - trainer.global_step  # this sets up the loaders too
    member = group[0]  # all members have the same bottom and the same columns
    held = 0
    batches: list[int] = []
    if module.datamodule is not None and schedule is not None:
        records = module.datamodule.records("train")
        held = len(records) if records.present is None else int(records.present[:, list(group)].any(1).sum())
        not_held = len(records) - held  # they may all be in one batch
        sizes = [len(ids) for ids, _ in schedule.epoch(0)]
        batches = [max(0, size - not_held) for size in sizes[: int(trainer.num_training_batches)]]
    return Exposure(
        group,
        module.embedding_widths[member],
        sum(parameter.numel() for parameter in module.bottoms.parties[member].parameters()),
        prod(module.hparams["party_shapes"][member]),
        held,
        batches,
        module.books.rounds.get(Stage.FIT, 0) + steps_left,
    )
