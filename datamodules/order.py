"""The order of training batches: the protocol's schedule, or for ``overfit_batches`` its first epoch each time."""

from typing import Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.schedules.blocks import BlockShuffled, shuffled

from .records.records import Records


def training_order(trainer: Any, records: Records, batch_size: int, seed: int, drop_last: bool) -> Schedule:
    """The order of the training batches.

    Args:
        trainer: the trainer of the datamodule; None: there is none, and the records are shuffled.
        records: the training records.
        batch_size: rows of a joint batch.
        seed: seeds the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Raises:
        ConfigurationError: for ``overfit_batches`` with a protocol whose epochs depend on earlier epochs, and for
            records that are read in blocks with a protocol that has an order of its own.
    """
    module = None if trainer is None else trainer.lightning_module
    if isinstance(module, VFLModule):
        schedule = module.schedule(records, batch_size, seed, drop_last)
    else:
        schedule = shuffled(records, batch_size, seed, drop_last)
    if records.blocks is not None and not isinstance(schedule, BlockShuffled):
        raise ConfigurationError(
            f"the order of records in {type(module).__name__} goes over all records at once, but these data are read "
            "in blocks; use SplitVFL with an aggregator without set-up, or CSVTables"
        )
    overfits = getattr(trainer, "overfit_batches", 0)
    return schedule.repeated() if overfits else schedule
