"""Records of a split with faults in the features of some parties."""

from collections.abc import Sequence

import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation.data_faults import DataFault, PartyData
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import Seat

from .layout import Part
from .records import Records, SplitName, VerticalRecords


def refuse_unchangeable(fault: DataFault, seat: Seat | None, parts: Sequence[Part], fitted: Fitted | None) -> None:
    """Refuse a fault that cannot be played with these data.

    Raises:
        ConfigurationError: in a federation, for a party that does not exist, and for records that it cannot change.
    """
    name = type(fault).__name__
    if seat is not None:
        raise ConfigurationError(f"{name} changes records in simulations only; leave it out of a federation")
    if fault.party >= len(parts):
        raise ConfigurationError(f"{name} names party {fault.party}, but the last is {len(parts) - 1}; correct it")
    shape = parts[fault.party].shape
    if fault.needs_pictures and len(shape) not in (2, 3):
        raise ConfigurationError(
            f"{name} needs pictures, and a record of party {fault.party} has the shape {shape}; use Noise"
        )
    dtype = fitted.parties[fault.party].dtype if fitted is not None else ""
    if dtype and not fault.moves_records:
        raise ConfigurationError(
            f"{name} makes real numbers, and party {fault.party} has {dtype}; use Misaligned or StaleTable"
        )


def faulty(
    records: Records, split: SplitName, faults: Sequence[tuple[DataFault, int]], fitted: Fitted | None
) -> VerticalRecords:
    """The records after all faults, in the order in which they were added; features not held stay zero.

    Args:
        records: in memory.
        split: their split.
        faults: each with its seed.
        fitted: has the scaling of the parties.

    Raises:
        ConfigurationError: for records that are read from a file.
    """
    if not isinstance(records, VerticalRecords) or not isinstance(records.table, torch.Tensor) or fitted is None:
        raise ConfigurationError(
            f"{type(faults[0][0]).__name__} changes records in memory, and these are read from files during the "
            "training; use fewer records, or a data set that is loaded whole"
        )
    everyone = torch.arange(len(records))
    features = records.numbers(everyone)
    for fault, seed in faults:
        begin = sum(records.widths[: fault.party])
        columns = slice(begin, begin + records.widths[fault.party])
        rows = everyone if records.present is None else everyone[records.present[:, fault.party]]
        scaling = fitted.parties[fault.party]
        x = features[rows, columns].view(-1, *records.shapes[fault.party])
        changed = fault.change(x, PartyData(seed, split, scaling.shift, scaling.scale))
        features[rows, columns] = changed.reshape(len(rows), -1)
    about = (records.labels, records.ids, records.present, records.label_holders, records.weights)
    changed_records = VerticalRecords(features, records.shapes, *about, dtypes=records.dtypes)
    changed_records.scope = records.scope
    return changed_records
