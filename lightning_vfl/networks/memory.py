"""State between rounds: an interface, the latest embeddings of every record, and the last message of every party."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.record_table import LIMIT_BYTES, RecordTable, TableDtype
from lightning_vfl.types import Tensors, Widths


class Memory(Protocol):
    """State for every record, kept between rounds and between fits of one module on the same number of records.

    Only checkpoints for resuming contain the state.
    """

    @abstractmethod
    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        """Allocate empty state for N records with embeddings of these widths."""

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Move the state to this device."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: tensors and plain values; empty before ``prepare``."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint, after ``prepare``."""


class Memories(Memory):
    """Several memories as one, by name."""

    def __init__(self, parts: Mapping[str, Memory]) -> None:
        self.parts = parts

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        for part in self.parts.values():
            part.prepare(records, widths, device)

    def move(self, device: torch.device) -> None:
        for part in self.parts.values():
            part.move(device)

    def state(self) -> dict[str, Any]:
        return {name: part.state() for name, part in self.parts.items()}

    def load(self, state: dict[str, Any]) -> None:
        if lacking := [name for name in self.parts if name not in state]:
            raise ConfigurationError(
                f"the checkpoint has no {lacking[0]}; resume it with the compressors that it was trained with"
            )
        for name, part in self.parts.items():
            part.load(state[name])


class EmbeddingMemory(Memory):
    """A memory of embeddings that have arrived."""

    @abstractmethod
    def write(self, ids: Tensor, party: int, h: Tensor) -> None:
        """Store a party's embeddings (B, D_m) of the records ``ids`` (B,)."""

    @abstractmethod
    def write_all(self, ids: Tensor, h: Sequence[Tensor]) -> None:
        """Store the embeddings of all parties."""

    @abstractmethod
    def recall(self, parties: Sequence[int], ids: Tensor, like: Tensor) -> Tensors:
        """What stands for the embeddings of these parties, in the dtype of ``like``."""


class LatestEmbeddings(EmbeddingMemory):
    """The latest embedding of every record from every party; zeros before the first.

    Args:
        table_dtype: ``float16`` halves the memory of the table.
        limit_bytes: the largest allowed table.

    Raises:
        ConfigurationError: in ``prepare``, if the table would be larger.
    """

    def __init__(self, table_dtype: TableDtype = "float32", limit_bytes: float = LIMIT_BYTES) -> None:
        self.table_dtype = table_dtype
        self.limit_bytes = limit_bytes
        self._table: RecordTable | None = None

    @property
    def table(self) -> RecordTable:
        """The table, available after ``prepare``."""
        if self._table is None:
            raise RuntimeError("there is no table of latest embeddings yet; call prepare first")
        return self._table

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self._table = RecordTable(records, widths, self.table_dtype, self.limit_bytes).to(device)

    def move(self, device: torch.device) -> None:
        self.table.to(device)

    def write(self, ids: Tensor, party: int, h: Tensor) -> None:
        self.table.write(ids, party, h)

    def write_all(self, ids: Tensor, h: Sequence[Tensor]) -> None:
        self.table.write_all(ids, tuple(h))

    def recall(self, parties: Sequence[int], ids: Tensor, like: Tensor) -> Tensors:
        latest = self.table.read(ids)
        return tuple(latest[party].to(like.dtype) for party in parties)

    def state(self) -> dict[str, Any]:
        return {} if self._table is None else self._table.state()

    def load(self, state: dict[str, Any]) -> None:
        self.table.load_state(state)


class LastMessages(EmbeddingMemory):
    """The last message of every party, whatever its records were; zeros before the first."""

    def __init__(self) -> None:
        self._widths: Widths = ()
        self._messages: list[Tensor | None] = []

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self._widths = tuple(widths)
        self._messages = [None] * len(widths)

    def move(self, device: torch.device) -> None:
        self._messages = [None if last is None else last.to(device) for last in self._messages]

    def write(self, ids: Tensor, party: int, h: Tensor) -> None:
        self._messages[party] = h.detach()

    def write_all(self, ids: Tensor, h: Sequence[Tensor]) -> None:
        self._messages = [own.detach() for own in h]

    def recall(self, parties: Sequence[int], ids: Tensor, like: Tensor) -> Tensors:
        return tuple(self._last(party, like) for party in parties)

    def _last(self, party: int, like: Tensor) -> Tensor:
        """The party's last message, cut or filled up with zeros to the rows of ``like``, with its device and dtype."""
        rows = like.new_zeros(len(like), self._widths[party])
        last = self._messages[party]
        if last is not None:
            kept = last[: len(rows)]
            rows[: len(kept)] = kept.to(rows)
        return rows

    def state(self) -> dict[str, Any]:
        return {"messages": list(self._messages)} if self._messages else {}

    def load(self, state: dict[str, Any]) -> None:
        self._messages = list(state["messages"])
