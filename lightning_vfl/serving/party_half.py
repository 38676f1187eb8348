"""A party's half in production: its program, and its records in an index on the disk or in a database."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_only

from lightning_vfl.datamodules.records.party_tables import CSVForm, csv_forms, kind_of
from lightning_vfl.datamodules.records.work_folders import WorkFolder
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.engines import Runner, open_program
from lightning_vfl.export.manifest import Engine, Kind, Manifest, PartyHalf, Protection
from lightning_vfl.export.party_data import PartyData, read_party
from lightning_vfl.serving.drift import Drift, moments_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

BLOCK = 4096  # records that are checked together
_TRIES = 64  # at most so many parts of a request are encoded to find the records that cannot be


class Source(ABC):
    """Where a party's records are looked up.

    Args:
        kind: ``whole numbers`` or ``text``, of the ids.
        records: how many there are at the start.
        first: (1,) an id.
    """

    waits = False
    """Whether a lookup waits for another process."""

    def __init__(self, kind: str, records: int, first: "NDArray[Any]") -> None:
        self.kind = kind
        self.records = records
        self.first = first

    @abstractmethod
    def all_ids(self) -> "NDArray[Any]":
        """(N,) the ids of all records."""

    @abstractmethod
    def find(self, ids: "NDArray[Any]") -> PartyData:
        """Records, among them those with these ids, if there are such.

        Args:
            ids: (B,) different ids of the kind of the records.

        Raises:
            ConfigurationError: for records that cannot be read now.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open; no record is asked for any more."""


class Readable(Protocol):
    """What names the records of a party, and can open them."""

    def open(self, manifest: Manifest) -> Source:
        """The records, which are checked against the half.

        Raises:
            ConfigurationError: for records that cannot be read or do not fit the half.
        """
        ...


class _Indexed(Source):
    """Records that are encoded at the start."""

    def __init__(self, data: PartyData) -> None:
        ids: NDArray[Any] = data.index.to_numpy()
        super().__init__(kind_of(data.index), len(ids), ids[:1])
        self._data = data
        for start in range(0, len(ids), BLOCK):
            data.features(np.arange(start, min(start + BLOCK, len(ids))))
        data.new.tell()

    def all_ids(self) -> "NDArray[Any]":
        ids: NDArray[Any] = self._data.index.to_numpy()
        return ids

    def find(self, ids: "NDArray[Any]") -> PartyData:
        return self._data

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Records:
    """The file of a party's records, and how it is read.

    Args:
        path: CSV, Parquet, or an array.
        id_column: the column of the ids.
        separator: between the fields of a CSV file.
        encoding: of the text of a CSV file.
        leave_out: columns that are no features.
        work_dir: where the index is made; None: in the folder of the system for temporary files.
    """

    path: Path
    id_column: str = "id"
    separator: str = ","
    encoding: str = "utf-8"
    leave_out: "Collection[str]" = ()
    work_dir: str | None = None

    def read(self, manifest: Manifest) -> PartyData:
        """The records, encoded as in training.

        Raises:
            ConfigurationError: for a file that cannot be read or does not fit the half.
        """
        if not self.path.is_file():
            raise ConfigurationError(f"{self.path} is not a file; correct --table")
        form: CSVForm = csv_forms([manifest.name], self.separator, self.encoding)[manifest.name]
        work = WorkFolder(self.work_dir)
        return read_party(manifest, self.path, self.id_column, form, self.leave_out, work=work)

    def open(self, manifest: Manifest) -> Source:
        """As ``Readable``."""
        return _Indexed(self.read(manifest))


class ServedParty:
    """Embeddings of a party's records.

    Args:
        folder: of the exported half.
        records: of the party.
        engine: what runs the program.

    Raises:
        ConfigurationError: for a folder that is no party's half, and records that the program does not take.
    """

    def __init__(self, folder: Path, records: Readable, engine: Engine = Engine.ONNX) -> None:
        self.manifest = Manifest.read(folder)
        if not isinstance(self.manifest.half, PartyHalf):
            raise ConfigurationError(f"{folder} is the server's half; give it to lightning-vfl gateway")
        self.protection = served(folder, self.manifest.half.protection)
        self.network = self.manifest.half.network
        self.sums_since = self.manifest.half.sums_since
        self._program: Runner = open_program(folder, self.manifest, engine)
        self._width = int(self.manifest.outputs[0].shape[1])
        # steps note what they meet, and the package that does so needs a rank, as Lightning sets it
        rank_zero_only.rank = getattr(rank_zero_only, "rank", 0)  # type: ignore[attr-defined]
        self._source = records.open(self.manifest)
        self.ids = self._source.kind
        self.first = self.embed(self._source.first)[0]  # the first run of a program takes longer
        """(1, D) an embedding."""

    def __len__(self) -> int:
        return self._source.records

    def drift(self, training: Records) -> Drift:
        """The drift of the embeddings of production against those of the records of training."""
        data = training.read(self.manifest)
        starts = range(0, len(data.index), BLOCK)
        places = [np.arange(start, min(start + BLOCK, len(data.index))) for start in starts]
        return Drift(moments_of(np.concatenate([self._program.run([data.features(block)]) for block in places])))

    @property
    def waits(self) -> bool:
        """Whether ``embed`` waits for another process."""
        return self._source.waits

    def close(self) -> None:
        """Close what is open for the records; none is asked for any more."""
        self._source.close()

    def all_ids(self) -> "NDArray[Any]":
        """(N,) the ids of all records."""
        return self._source.all_ids()

    def embed(self, ids: "NDArray[Any]") -> "tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]":
        """Embeddings of records.

        Args:
            ids: (B,) different ids.

        Returns:
            (B, D) the embeddings, zero where there is none; (B,) bool, whether there is one; (B,) bool, the records
            that have none because the half does not take their values.

        Raises:
            ConfigurationError: for records that cannot be read now.
        """
        values = np.zeros((len(ids), self._width), np.float32)
        known, refused = np.zeros((2, len(ids)), np.bool_)
        if (ids.dtype.kind == "i") != (self.ids == "whole numbers"):
            return values, known, refused
        data = self._source.find(ids)
        places = data.places(ids)
        known = places >= 0
        if not known.any():
            return values, known, refused
        try:
            features = data.features(places[known])
        except ConfigurationError:  # of a file, all records were encoded at the start
            refused[known] = ~_taken(data, places[known])
            known &= ~refused
            if not known.any():
                return values, known, refused
            features = data.features(places[known])
        values[known] = self._program.run([features])
        return values, known, refused


def _taken(data: PartyData, places: "NDArray[np.int64]") -> "NDArray[np.bool_]":
    """(B,) bool, the records at these places that can be encoded; others of a request with many that cannot are lost.

    The parts of a request that cannot be encoded are halved, until single records are left or 64 parts were tried.
    """
    taken = np.zeros(len(places), np.bool_)
    parts = [np.arange(len(places))]
    for _ in range(_TRIES):
        if not parts:
            break
        part = parts.pop()
        try:
            data.features(places[part])
        except ConfigurationError:
            parts += np.array_split(part, 2) if len(part) > 1 else []
        else:
            taken[part] = True
    return taken


def served(folder: Path, protection: Protection | None) -> Protection:
    """The protection of a half that can be served.

    Raises:
        ConfigurationError: for a half that was exported by an older version, and a protection that is not offered.
    """
    if protection is None:
        raise ConfigurationError(f"{folder} does not say how embeddings are protected; export the model again")
    if protection.kind is Kind.UNSERVED:
        raise ConfigurationError(
            f"{protection.aggregator} protects embeddings in a way that production does not offer; train with "
            "MaskedSum or LocalGaussian, or export with evaluate: plain"
        )
    return protection
