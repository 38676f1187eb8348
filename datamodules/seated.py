"""The seat of a process in a federation: which party's features it has, and whether it has the labels."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import Fitted, FittedParty
from lightning_vfl.types import Seat

from .batched import BatchedDataModule
from .records.layout import Layout
from .records.records import Records, SplitName
from .records.seated_records import SeatedRecords

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.generic] | Sequence[str]


class SeatedFiles(ABC):
    """The files of one seat, for data whose parties have a file each; see ``lightning_vfl.types.SeatedData``."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The form of a record: the widths of all parties, without names of columns."""

    @abstractmethod
    def own_ids(self) -> "NDArray[np.generic]":
        """(n,) sorted ids of the seat's table, read from the file."""

    @abstractmethod
    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        """The common ids of each split, in order."""

    @abstractmethod
    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids]") -> None:
        """Take the ids of each split, and at the server those of the parties."""

    @abstractmethod
    def own_shape(self) -> tuple[int, ...]:
        """The per-record shape of the party's features."""

    @abstractmethod
    def told_shapes(
        self, shapes: Sequence[Sequence[int]], num_classes: int | None, class_names: Sequence[int | str] | None
    ) -> None:
        """Take the shapes of all parties, and the classes."""

    @property
    @abstractmethod
    def labels_digest(self) -> str:
        """What the labels of all divided records are compared by."""

    @abstractmethod
    def prepare(self, missing: Sequence[SplitName]) -> Mapping[SplitName, SeatedRecords]:
        """The records of these splits, scaled; a split without records is left out."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what depends on the fitted values; the common order stays."""


class SeatedDataModule(BatchedDataModule, ABC):
    """Batches for one seat: own features, own labels, and NaN in place of everything else.

    Without a seat the process has the records of all parties: a simulation. Data of one file are loaded whole in every
    process, and the part of other seats is dropped in ``setup``; this serves processes on one machine. Data with
    ``own_files`` are aligned first, see ``lightning_vfl.types.SeatedData``.
    """

    own_files: ClassVar[bool] = False
    """Whether every party has a file of its own, so that the parties may be on different hosts."""
    everybody_holds: bool = True
    """Whether every party holds every record of the common order, for data with ``own_files``."""
    seat: Seat | None = None
    """The seat of this process; None: it has the records of all parties."""
    labels_at: int | None = None
    """The party that has the labels; None: the server has them."""
    copies: bool = False
    """Whether every party has the labels too."""
    fitted: Fitted | None
    _files: SeatedFiles | None = None

    @property
    @abstractmethod
    def party_names(self) -> tuple[str, ...]:
        """The names of the parties, in the order of their numbers."""

    @property
    def has_labels(self) -> bool:
        """Whether this process has the labels."""
        return self.seat is None or self.copies or self.seat.party == self.labels_at

    @classmethod
    def refuse_seats(cls) -> None:
        """Refuse data that are not divided between processes; default: all data are.

        Raises:
            ConfigurationError: naming what to use instead.
        """

    def take_seat(
        self,
        seat: Seat,
        party_names: Sequence[str] | None = None,
        labels_at: int | None = None,
        copies: bool = False,
    ) -> None:
        """Say which seat this process has; see ``lightning_vfl.types.SeatedData``.

        Raises:
            ConfigurationError: after ``setup``, and for parties that are not those of the data.
        """
        self.refuse_seats()
        if self._records:
            raise ConfigurationError("the records are set up already; call take_seat before setup")
        self.seat = seat
        self.labels_at = labels_at
        self.copies = copies
        self._files = self._files_of(seat, party_names)

    def own_ids(self) -> "NDArray[np.generic]":
        """(n,) sorted ids of the seat's own table, int64 or text; the file is read at this moment."""
        return self._own_files().own_ids()

    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        """The common ids of each split, in order; called in the process that has the labels.

        Args:
            ids_by_party: ``own_ids`` of the other processes; empty: all have the ids of this process.

        Raises:
            ConfigurationError: in a process without the labels, for ids of different kinds and repeated ids, and
                without an id in common.
        """
        return self._own_files().split_records(ids_by_party)

    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids] | None" = None) -> None:
        """Take the ids of each split, in the common order.

        Args:
            order: the ids of each split; see ``lightning_vfl.types.SeatedData``.
            ids_by_party: at the server, the ids of the parties, where they need not hold every record.

        Raises:
            ConfigurationError: for repeated ids, and for ids that this process's table does not have, where every party
                holds every record.
        """
        self._own_files().align(order, ids_by_party or {})

    def own_shape(self) -> tuple[int, ...]:
        """The per-record shape of this party's features, after ``align``.

        Raises:
            ConfigurationError: for the server, before ``align``, and for a table without features.
        """
        return self._own_files().own_shape()

    def told_shapes(
        self,
        shapes: Sequence[Sequence[int]],
        num_classes: int | None = None,
        class_names: Sequence[int | str] | None = None,
    ) -> None:
        """Take the shapes of all parties and, where the labels are in another process, the classes.

        Args:
            shapes: per-record shape of each party.
            num_classes: classes of the labels; None for real values.
            class_names: the classes as the labels' file names them; None: their numbers.

        Raises:
            ConfigurationError: for another number of shapes than parties, and another shape than this party's own.
        """
        self._own_files().told_shapes(shapes, num_classes, class_names)

    def labels_digest(self) -> str:
        """What the labels of all divided records are compared by, if every party has them; after ``align``."""
        return self._own_files().labels_digest

    # ---- inside

    def _files_of(self, seat: Seat, party_names: Sequence[str] | None) -> SeatedFiles | None:
        """The files of a seat; None, the default: the data are one file. Data with ``own_files`` replace this."""
        return None

    def _own_files(self) -> SeatedFiles:
        if self.seat is None:
            raise ConfigurationError(f"{type(self).__name__} has no seat yet; call take_seat first")
        if self._files is None:
            raise ConfigurationError(
                f"{type(self).__name__} is one file that a simulation cuts; run lightning-vfl cut, or federate --local"
            )
        return self._files

    def _clear(self) -> None:
        """Drop the loaded records, and what the seat's files have been made into; the common order stays."""
        self._records.clear()
        if self._files is not None:
            self._files.forget()

    def _of_seat(self, records: Records) -> Records:
        """The part of the records that the seat has."""
        if self.seat is None or isinstance(records, SeatedRecords):
            return records
        return SeatedRecords.of(records, self.seat, self.has_labels)

    def _forget_others(self) -> None:
        """Drop the scaling of other parties."""
        if self.seat is not None and self.fitted is not None:
            self.fitted = replace(
                self.fitted,
                parties=tuple(
                    party if m == self.seat.party else unknown_scaling(party)
                    for m, party in enumerate(self.fitted.parties)
                ),
            )


def unknown_scaling(party: FittedParty) -> FittedParty:
    """The party with NaN in place of its scaling."""
    nan = torch.full_like(party.shift, torch.nan)
    return replace(party, shift=nan, scale=nan)
