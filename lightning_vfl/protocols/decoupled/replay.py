"""What the hosts of decoupled training have been told: their input buffers, and what stands in for a lost message."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.memory import Memory
from lightning_vfl.networks.record_table import RecordTable, TableDtype, table_bytes

Register = Literal["record", "message"]


class ReplayBuffers(nn.Module):
    """The input buffers of H hosts: of every record, the latest embedding of every guest, zeros before the first.

    All hosts have one table until a connection or a host fails and tells them apart; from then on each has its own.

    Shapes: N records, M guests with embeddings (B, D_m); what is read is (1, B, Σ D_m) while all hosts know the same,
        (H, B, Σ D_m) afterwards.
    Guarantee: what is read of a record is the last message about it that reached the host. With ``register: message``
        it is what the host's registers held when the record's batch came: fresh, or the guest's last message.
    Not guaranteed: a meaning of ``register: message`` where guests have records of their own: rows of a message then
        have nothing in common with those of another guest.

    Args:
        records: N.
        widths: D_m of the guests.
        hosts: H.
        register: what stands in for a lost message.
        dtype: ``float16`` halves the memory.
        limit_bytes: the most that all tables may take.

    Raises:
        ConfigurationError: for buffers above the limit, and a register that is not known.

    References:
        DVFL, section 4, appendices C.2 (replay) and D.2 (what faults do to registers and buffers).
    """

    def __init__(
        self,
        records: int,
        widths: Sequence[int],
        hosts: int,
        register: Register = "record",
        dtype: TableDtype = "float32",
        limit_bytes: float = float("inf"),
    ) -> None:
        super().__init__()
        if register not in get_args(Register):
            raise ConfigurationError(f"register {register!r} is not known; use 'record' or 'message'")
        self.records, self.widths, self.hosts = records, tuple(widths), hosts
        self.register_kind, self.dtype, self.limit_bytes = register, dtype, limit_bytes
        self.refuse_above_limit(1)
        self.tables = nn.ModuleList([self._table()])
        self._known = [torch.zeros(records, dtype=torch.bool)]
        self._registers: list[list[Tensor | None]] = [[None] * len(self.widths)]  # by table, by guest

    @property
    def table_bytes(self) -> int:
        """Memory of one table."""
        return table_bytes(self.records, self.widths, self.dtype)

    def refuse_above_limit(self, tables: int) -> None:
        """Refuse buffers that are too large: one for all hosts, or, where faults may tell them apart, one each."""
        needed = tables * self.table_bytes
        if needed > self.limit_bytes:
            raise ConfigurationError(
                f"the buffers of {tables} hosts, {self.records:,} records with {sum(self.widths)} numbers each, take "
                f"{needed / 1e6:,.0f} MB, more than limit_bytes = {self.limit_bytes:.0f}; raise the limit, lower "
                "width, or use table_dtype float16"
            )

    def write(self, ids: Tensor, embeddings: Sequence[Tensor], sent: Tensor, hosts: Tensor) -> None:
        """One communication round.

        Args:
            ids: the records, (B,), or (B, M or more), where column m has those of guest m.
            embeddings: (B, D_m) of every guest.
            sent: (M, H) bool, which messages get through.
            hosts: (H,) bool, which hosts are up; the buffers of the others stay as they are. Their registers do not:
                a register is written by the guest.
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
        table, known, registers = self._all()[number], self._known[number], self._registers[number]
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
                elif literal:  # the register as it is, row by row; zeros where it has never been so long
                    stale = torch.zeros_like(embeddings[m])
                    if last is not None:
                        rows = min(len(last), len(stale))
                        stale[:rows] = last[:rows]
                        known[own[:rows]] = True
                    table.write(own, m, stale)

    def known(self, ids: Tensor) -> tuple[Tensor, bool]:
        """(1 or H, B) bool, of which records a host has been told anything; and whether it is all of them."""
        told = torch.stack([known[ids] for known in self._known])
        return told, bool(told.all())

    def read(self, ids: Tensor) -> Tensor:
        """(1 or H, B, Σ D_m), the hosts' inputs."""
        return torch.stack([table.joined(ids) for table in self._all()])

    def state(self) -> dict[str, Any]:
        """For a checkpoint that a run goes on from."""
        return {
            "rows": [table.rows for table in self._all()],
            "known": list(self._known),
            "registers": [list(registers) for registers in self._registers],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ConfigurationError: if the records, widths or hosts are others.
        """
        if len(state["rows"]) not in (1, self.hosts):
            raise ConfigurationError(
                f"the checkpoint has the buffers of {len(state['rows'])} hosts, this run has {self.hosts}; resume with "
                "the same hosts"
            )
        if len(state["rows"]) > len(self.tables):
            self._tell_apart()
        elif len(state["rows"]) < len(self.tables):  # of a time when all hosts knew the same
            del self.tables[1:]
        for table, rows in zip(self._all(), state["rows"], strict=True):
            table.load_state({"rows": rows})
        device = self._known[0].device
        self._known = [known.to(device, copy=True) for known in state["known"]]
        self._registers = [
            [None if last is None else last.to(device) for last in registers] for registers in state["registers"]
        ]

    def _tell_apart(self) -> None:
        """A table for every host, all with what they know in common."""
        common = self._all()[0]
        for _ in range(1, self.hosts):
            table = self._table().to(common.rows.device)
            table.rows.copy_(common.rows)
            self.tables.append(table)
        self._known = [self._known[0].clone() for _ in range(self.hosts)]
        self._registers = [list(self._registers[0]) for _ in range(self.hosts)]

    def _table(self) -> RecordTable:
        return RecordTable(self.records, self.widths, self.dtype, float("inf"))  # the limit is on all together

    def _all(self) -> list[RecordTable]:
        return list(self.tables)  # type: ignore[arg-type]  # nothing else is appended

    def _apply(self, fn: Any, recurse: bool = True) -> "ReplayBuffers":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self._all()[0].rows.device
        self._known = [known.to(device) for known in self._known]
        self._registers = [
            [None if last is None else last.to(device) for last in registers] for registers in self._registers
        ]
        return self


class HostMemory(Memory):
    """The hosts' buffers, from the first fit on.

    Args:
        hosts: H.
        register: as in ``ReplayBuffers``.
        dtype: as in ``ReplayBuffers``.
        limit_bytes: as in ``ReplayBuffers``.
    """

    def __init__(self, hosts: int, register: Register, dtype: TableDtype, limit_bytes: float) -> None:
        self.settings = hosts, register, dtype, limit_bytes
        self._buffers: ReplayBuffers | None = None

    @property
    def buffers(self) -> ReplayBuffers:
        """The buffers, after ``prepare``."""
        if self._buffers is None:
            raise RuntimeError("the hosts have no buffers before prepare")
        return self._buffers

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self._buffers = ReplayBuffers(records, widths, *self.settings).to(device)

    def move(self, device: torch.device) -> None:
        self.buffers.to(device)

    def state(self) -> dict[str, Any]:
        return {} if self._buffers is None else self._buffers.state()

    def load(self, state: dict[str, Any]) -> None:
        self.buffers.load_state(state)
