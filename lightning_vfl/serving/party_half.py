"""A party's half in production: its program, and its records in an index on the disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.datamodules.records.number_files import WorkFolder
from lightning_vfl.datamodules.records.party_tables import CSVForm, csv_forms, kind_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.engines import Runner, open_program
from lightning_vfl.export.manifest import Engine, Kind, Manifest, PartyHalf, Protection
from lightning_vfl.export.party_data import PartyData, read_party
from lightning_vfl.serving.drift import Drift, moments_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

_BLOCK = 4096  # records that are checked together


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


class ServedParty:
    """Embeddings of a party's records.

    Args:
        folder: of the exported half.
        records: of the party.
        engine: what runs the program.

    Raises:
        ConfigurationError: for a folder that is no party's half, and records that the program does not take.
    """

    def __init__(self, folder: Path, records: Records, engine: Engine = Engine.ONNX) -> None:
        self.manifest = Manifest.read(folder)
        if not isinstance(self.manifest.half, PartyHalf):
            raise ConfigurationError(f"{folder} is the server's half; give it to lightning-vfl gateway")
        self.protection = served(folder, self.manifest.half.protection)
        self.network = self.manifest.half.network
        self.sums_since = self.manifest.half.sums_since
        self._program: Runner = open_program(folder, self.manifest, engine)
        self._data = records.read(self.manifest)
        self.ids = kind_of(self._data.index)
        self._width = int(self.manifest.outputs[0].shape[1])
        for start in range(0, len(self._data.index), _BLOCK):
            self._data.features(np.arange(start, min(start + _BLOCK, len(self._data.index))))
        self.embed(self._data.index[:1].to_numpy())  # the first run of a program takes longer

    def __len__(self) -> int:
        return len(self._data.index)

    def drift(self, training: Records) -> Drift:
        """The drift of the embeddings of production against those of the records of training."""
        data = training.read(self.manifest)
        starts = range(0, len(data.index), _BLOCK)
        places = [np.arange(start, min(start + _BLOCK, len(data.index))) for start in starts]
        return Drift(moments_of(np.concatenate([self._program.run([data.features(block)]) for block in places])))

    @property
    def all_ids(self) -> "NDArray[Any]":
        """(N,) the ids of all records."""
        ids: NDArray[Any] = self._data.index.to_numpy()
        return ids

    def embed(self, ids: "NDArray[Any]") -> "tuple[NDArray[np.float32], NDArray[np.bool_]]":
        """(B, D) the embeddings of records, zero where the party lacks the record, and (B,) bool, whether it has it."""
        import pandas as pd

        values = np.zeros((len(ids), self._width), np.float32)
        numbers = ids.dtype.kind == "i"
        if numbers != (self.ids == "whole numbers"):
            return values, np.zeros(len(ids), np.bool_)
        places = self._data.places(pd.Index(ids))
        known = places >= 0
        if known.any():
            values[known] = self._program.run([self._data.features(places[known])])
        return values, known


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
