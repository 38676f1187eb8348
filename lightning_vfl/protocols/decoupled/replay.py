"""The input buffers of the hosts in decoupled training, and the replacement of lost messages."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.memory import Memory
from lightning_vfl.networks.record_table import RecordTable, TableDtype, table_bytes
from lightning_vfl.types import Widths

Register = Literal["record", "message"]


class ReplayBuffers(Memory):
    """The input buffers of H hosts: for every record, the latest embedding of every guest (zeros before the first).

    All hosts share one table until a connection or a host fails; then every host gets its own table.

    Shapes: N records, M guests with embeddings (B, D_m); ``read`` gives (1, B, Σ D_m) while all hosts have received the
        same messages, and (H, B, Σ D_m) afterwards.
    Guarantee: ``read`` gives the last message about a record that reached the host. With ``register: message`` it gives
        the host's registers at the time of the record's batch: the new message, or the guest's last message.
    Not guaranteed: ``register: message`` is not meaningful if guests hold different records, because equal rows of two
        guests' messages then belong to different records.

    Args:
        hosts: H.
        register: the replacement for a lost message, see ``DecoupledVFL``.
        dtype: ``float16`` halves the memory.
        limit_bytes: the largest allowed size of all tables.

    Raises:
        ConfigurationError: in ``prepare``, for buffers above the limit.

    References:
        DVFL, section 4, appendices C.2 (replay) and D.2 (what faults do to registers and buffers).
    """

    def __init__(
        self,
        hosts: int,
        register: Register = "record",
        dtype: TableDtype = "float32",
        limit_bytes: float = float("inf"),
    ) -> None:
        self.hosts = hosts
        self.register_kind = register
        self.dtype = dtype
        self.limit_bytes = limit_bytes
        self.records = 0
        self.widths: Widths = ()
        self.tables: list[RecordTable] = []  # none before ``prepare``
        self._known: list[Tensor] = []  # by table
        self._registers: list[list[Tensor | None]] = []  # by table, by guest

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self.records = records
        self.widths = tuple(widths)
        self.refuse_above_limit(1)
        self.tables = [self._table(device)]
        self._known = [torch.zeros(records, dtype=torch.bool, device=device)]
        self._registers = [[None] * len(self.widths)]

    def move(self, device: torch.device) -> None:
        for table in self.tables:
            table.to(device)
        self._known = [known.to(device) for known in self._known]
        self._registers = [
            [None if last is None else last.to(device) for last in registers] for registers in self._registers
        ]

    @property
    def table_bytes(self) -> int:
        """Memory of one table."""
        return table_bytes(self.records, self.widths, self.dtype)

    def refuse_above_limit(self, tables: int) -> None:
        """Refuse ``tables`` buffers above the limit: one for all hosts, or one for each host if faults may differ."""
        needed = tables * self.table_bytes
        if needed > self.limit_bytes:
            raise ConfigurationError(
                f"the buffers of {tables} hosts, {self.records:,} records with {sum(self.widths)} numbers each, take "
                f"{needed / 1e6:,.0f} MB, more than limit_bytes = {self.limit_bytes:.0f}; raise limit_bytes, lower "
                "width, or use table_dtype float16"
            )

    def write(self, ids: Tensor, embeddings: Sequence[Tensor], sent: Tensor, hosts: Tensor) -> None:
        """Write the messages of one communication round.

        Args:
            ids: the records, (B,), or (B, M or more) with the records of guest m in column m.
            embeddings: (B, D_m) of every guest.
            sent: (M, H) bool, the messages that arrive.
            hosts: (H,) bool, the hosts that are up. The buffers of the other hosts do not change, but their registers
                do, because the guest writes a register.
        """
        told = torch.cat([sent, hosts[None]]) if self.register_kind == "message" else sent & hosts
        if len(self.tables) == 1 and bool((told != told[:, :1]).any()):
            self._tell_apart()
        for number, registers in enumerate(self._registers):
            through = sent[:, number].tolist()
            if hosts[number]:
                self._write(number, ids, embeddings, through)
            if self.register_kind == "message":
                for m, there in enumerate(through):
                    registers[m] = embeddings[m].detach() if there else registers[m]

    def _write(self, number: int, ids: Tensor, embeddings: Sequence[Tensor], arrived: list[bool]) -> None:
        table = self.tables[number]
        known = self._known[number]
        registers = self._registers[number]
        literal = self.register_kind == "message"
        if all(arrived) and ids.dim() == 1:
            table.write_all(ids, embeddings)
            known[ids] = True
        else:
            for m, there in enumerate(arrived):
                own = ids if ids.dim() == 1 else ids[:, m]
                last = registers[m]
                if there:
                    table.write(own, m, embeddings[m])
                    known[own] = True
                elif literal:  # the register, row by row; zeros if it is shorter than the batch
                    stale = torch.zeros_like(embeddings[m])
                    if last is not None:
                        rows = min(len(last), len(stale))
                        stale[:rows] = last[:rows]
                        known[own[:rows]] = True
                    table.write(own, m, stale)

    def known(self, ids: Tensor) -> tuple[Tensor, bool]:
        """(1 or H, B) bool, the records of which a host has received a message; and whether these are all records."""
        told = torch.stack([known[ids] for known in self._known])
        return told, bool(told.all())

    def read(self, ids: Tensor) -> Tensor:
        """(1 or H, B, Σ D_m), the hosts' inputs."""
        return torch.stack([table.joined(ids) for table in self.tables])

    def state(self) -> dict[str, Any]:
        if not self.tables:
            return {}
        return {
            "rows": [table.rows for table in self.tables],
            "known": list(self._known),
            "registers": [list(registers) for registers in self._registers],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the buffers from a checkpoint.

        Raises:
            ConfigurationError: if the checkpoint has other numbers of records or hosts, or other widths.
        """
        if len(state["rows"]) not in (1, self.hosts):
            raise ConfigurationError(
                f"the checkpoint has buffers of {len(state['rows'])} hosts, but this run has {self.hosts}; resume with "
                "the same number of hosts"
            )
        if len(state["rows"]) > len(self.tables):
            self._tell_apart()
        elif len(state["rows"]) < len(self.tables):  # in the checkpoint, all hosts share one table
            del self.tables[1:]
        for table, rows in zip(self.tables, state["rows"], strict=True):
            table.load_state({"rows": rows})
        device = self._known[0].device
        self._known = [known.to(device, copy=True) for known in state["known"]]
        self._registers = [
            [None if last is None else last.to(device) for last in registers] for registers in state["registers"]
        ]

    def _tell_apart(self) -> None:
        """Give every host its own copy of the shared table."""
        common = self.tables[0]
        for _ in range(1, self.hosts):
            table = self._table(common.rows.device)
            table.rows.copy_(common.rows)
            self.tables.append(table)
        self._known = [self._known[0].clone() for _ in range(self.hosts)]
        self._registers = [list(self._registers[0]) for _ in range(self.hosts)]

    def _table(self, device: torch.device) -> RecordTable:
        unlimited = float("inf")  # the limit is on all tables together
        return RecordTable(self.records, self.widths, self.dtype, unlimited).to(device)
