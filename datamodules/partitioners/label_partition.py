"""Which party holds which labels, for several active parties (CVFL)."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import even_shares

from .over import PartitionerOver
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOBODY = -1


class LabelPartition(PartitionerOver):
    """The parts of another partitioner, with the labels of the training records divided between the first parties.

    Labels are divided evenly at random (``active``), by class (``classes``), or by a ``file``. The parties that hold
    labels are the active parties.

    Args:
        partitioner: divides the columns into M parts; None: the data set's default partitioner.
        active: L, the number of parties, the first ones, that get equal shares of a random order; None: all M.
        classes: for each of the first parties the classes whose labels it holds. The records of a class of several
            parties are divided evenly between them, at random.
        file: CSV with the columns ``id`` and ``party``: a training record's id and the number of the party that holds
            its label. No party holds the labels of records that are not in the file.
        seed: names the random division.

    Shapes: ``label_holders`` (N,).
    Guarantee: exactly one party holds each label, except for records that are not in the ``file``. The division
        depends on seed, N and, with ``classes``, the labels only. Shares differ by at most one record (with
        ``classes``, in every class), and the first are the larger.
    Not guaranteed: anything about validation and test labels; only training labels are divided.

    Raises:
        ConfigurationError: for settings that exclude each other; before training, for a class that no party holds, a
            party that would hold no label, a file with unknown parties or without the ids of training records.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = LabelPartition(ContiguousColumns(2), classes=[[0, 1], [1, 2]])
        >>> cut.label_holders(np.array([0, 1, 1, 2, 0]), np.arange(5), 2).tolist()[::3]
        [0, 1]

    References:
        Xia, Li, Zhang, Wu, Yuan, "A Vertical Federated Learning Framework for Horizontally Partitioned Labels" (CVFL),
        sections 5.1 (equal shares) and 5.4.2 (by class).
    """

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        active: int | None = None,
        classes: Sequence[Sequence[int]] | None = None,
        file: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        if sum(said is not None for said in (active, classes, file)) > 1:
            raise ConfigurationError("only one of active, classes and file can be given; leave the others out")
        if active is not None and active < 1:
            raise ConfigurationError(f"active must be at least 1; got {active}")
        if classes is not None and (not classes or not all(classes)):
            raise ConfigurationError(
                "classes must have at least one class for each of the first parties; add classes or leave the party out"
            )
        if classes is not None and any(len(set(own)) < len(own) for own in classes):
            raise ConfigurationError(f"classes must name each class once for a party; got {classes}")
        super().__init__(partitioner)
        self.active = active
        self.classes = None if classes is None else tuple(tuple(int(k) for k in own) for own in classes)
        self.file = None if file is None else str(file)
        self.seed = seed

    def label_holders(
        self, labels: "NDArray[np.generic]", ids: "NDArray[np.generic]", parties: int
    ) -> "NDArray[np.int64]":
        if self.classes is not None:
            holders = self._by_class(labels, self.classes)
        elif self.file is not None:
            holders = self._from_file(ids, self.file, parties)
        else:
            active = parties if self.active is None else self.active
            if active > len(labels):
                raise ConfigurationError(
                    f"active must be at most {len(labels)}, the number of training labels; got {active}"
                )
            holders = even_shares(len(labels), active, self.seed, "labels")
        if (most := int(holders.max(initial=NOBODY))) >= parties:
            raise ConfigurationError(
                f"labels are given to party {most}, but the parties are 0 to {parties - 1}; give them to these"
            )
        return holders

    def _by_class(self, labels: "NDArray[np.generic]", classes: tuple[tuple[int, ...], ...]) -> "NDArray[np.int64]":
        holders = np.full(len(labels), NOBODY, dtype=np.int64)
        for k in np.unique(labels).tolist():
            owners = np.array([party for party, own in enumerate(classes) if k in own], dtype=np.int64)
            if not len(owners):
                raise ConfigurationError(
                    f"the labels of class {k:g} are given to no party; name it in classes, or leave its records out"
                )
            of_class = np.flatnonzero(labels == k)
            holders[of_class] = owners[even_shares(len(of_class), len(owners), self.seed, "labels", "class", int(k))]
        empty = [party for party in range(len(classes)) if not (holders == party).any()]
        if empty:
            raise ConfigurationError(
                f"party {empty[0]} would hold no label: no training record of its classes {list(classes[empty[0]])} is "
                "left for it; give it other classes"
            )
        return holders

    def _from_file(self, ids: "NDArray[np.generic]", file: str, parties: int) -> "NDArray[np.int64]":
        try:
            with open(file, newline="", encoding="utf-8") as stream:
                rows = list(csv.DictReader(stream))
            said = {row["id"]: int(row["party"]) for row in rows}
        except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{file} cannot be read ({error}); give a CSV file with the columns id and party"
            ) from error
        if len(said) < len(rows):
            raise ConfigurationError(f"{file} names {len(rows) - len(said)} records twice; name each once")
        strangers = [(key, party) for key, party in said.items() if not 0 <= party < parties]
        if strangers:
            raise ConfigurationError(
                f"{file} gives the label of record {strangers[0][0]} to party {strangers[0][1]}, but the parties are 0 "
                f"to {parties - 1}; correct its number"
            )
        holders = np.array([said.get(str(key), NOBODY) for key in ids.tolist()], dtype=np.int64)
        if (holders == NOBODY).all():
            raise ConfigurationError(
                f"{file} names none of the {len(ids)} training records, whose ids are like {ids[0]}; use their ids"
            )
        return holders
