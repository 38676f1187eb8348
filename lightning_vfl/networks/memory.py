"""What is kept between rounds and is as large as the data: an interface, and the latest embeddings of every record."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.networks.record_table import LIMIT_BYTES, RecordTable, TableDtype


class Memory(ABC):
    """Room for something of every record, kept from round to round; the fits of one module on as many records share it.

    It stands in checkpoints that a run goes on from, and in no others.
    """

    @abstractmethod
    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        """Make room for N records with embeddings of these widths; nothing is remembered then."""

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Go on with what is remembered on this device."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Tensors and plain values; empty before ``prepare``."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Go on from there, after ``prepare``."""


class LatestEmbeddings(Memory):
    """The latest embedding of every record from every party; zeros where none has arrived.

    Args:
        table_dtype: ``float16`` halves the memory of the table.
        limit_bytes: the largest table that is built.

    Raises:
        ConfigurationError: in ``prepare``, if the table would be larger.
    """

    def __init__(self, table_dtype: TableDtype = "float32", limit_bytes: float = LIMIT_BYTES) -> None:
        self.table_dtype = table_dtype
        self.limit_bytes = limit_bytes
        self._table: RecordTable | None = None

    @property
    def table(self) -> RecordTable:
        """The table, after ``prepare``."""
        if self._table is None:
            raise RuntimeError("there is no table of latest embeddings before prepare")
        return self._table

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self._table = RecordTable(records, widths, self.table_dtype, self.limit_bytes).to(device)

    def move(self, device: torch.device) -> None:
        self.table.to(device)

    def write(self, ids: Tensor, party: int, h: Tensor) -> None:
        """Keep the embeddings (B, D_m) of these records (B,)."""
        self.table.write(ids, party, h)

    def state(self) -> dict[str, Any]:
        return {} if self._table is None else self._table.state()

    def load(self, state: dict[str, Any]) -> None:
        self.table.load_state(state)
