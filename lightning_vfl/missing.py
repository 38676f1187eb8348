"""What stands in for the embeddings that are missing when the server goes on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_vfl.networks.record_table import LIMIT_BYTES, RecordTable, TableDtype
from lightning_vfl.wire import Message, ServerView

__all__ = ["Exclude", "MissingPolicy", "PadAfterNorm", "Skip", "Stale", "Zeros"]


class MissingPolicy(ABC):
    """What the server does about parties that should have sent and have not.

    Whoever stands in, a missing party learns nothing in the round: no gradient, no optimiser step.

    Class data:
        fills: the missing count in the aggregate (in its divisor, as candidates of its maximum).
        discards: a round with anybody missing is given up: nobody learns, time and bytes are spent.
        needs_visible: the policy reads single embeddings, so the aggregator has to show them.
        remembers: the policy keeps state from round to round, as large as the data.
        pads: absent columns are kept out of the norm over the joint embedding and are zeros behind it.
    """

    fills: ClassVar[bool] = False
    discards: ClassVar[bool] = False
    needs_visible: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        """Make room before training; default: nothing to remember."""
        return

    @abstractmethod
    def before(self, message: Message, view: ServerView) -> Message:
        """What is decoded instead of what has arrived; ``view.roll.filled`` are the missing."""

    def after(self, z: Tensor, columns: Tensor) -> Tensor:
        """What the top is given: z (B, D_out) behind the norm, columns (D_out,) bool, False: absent; default: z."""
        return z

    def arrived_late(self, ids: Tensor, party: int, h: Tensor) -> None:
        """An embedding (B, D_m) has come after its round was closed; default: nobody remembers it."""
        return

    def state(self) -> dict[str, Any]:
        """State for a checkpoint that a run goes on from."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there, after ``prepare``."""
        return

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({settings})"


class Exclude(MissingPolicy):
    """The aggregate of those who are there; a mean is divided by their number. With Ignore, FedVS section 6.2.

    In a concatenation the segment of a missing party is zero.
    """

    def before(self, message: Message, view: ServerView) -> Message:
        return message


class Zeros(MissingPolicy):
    """Zeros count as the embeddings of the missing: on a sum the same as ``Exclude``, a mean is divided by all.

    DVFL's SplitNN-zeros (section 5.1).
    """

    fills: ClassVar[bool] = True

    def before(self, message: Message, view: ServerView) -> Message:
        return message


class Skip(MissingPolicy):
    """The round is discarded: DVFL's SplitNN-skip (section 5.1), vFedSec's discard (section 5.1)."""

    discards: ClassVar[bool] = True

    def before(self, message: Message, view: ServerView) -> Message:
        return message


class PadAfterNorm(MissingPolicy):
    """Zeros stand behind the norm over the joint embedding where the segments of absent groups would.

    vFedSec (section 3.3): the server discards what belongs to the segment of an absent group, norms the joint embedding
    and puts zeros where nothing is. A zero before the norm, as ``Zeros`` and ``Exclude`` leave it, is a value like any
    other: it is shifted by the norm and moves the running statistics.

    Shapes: z (B, D_out); columns (D_out,) bool, on any device, False: absent.
    Guarantee: absent columns are exactly zero, whatever stood there (NaN included), and so is the gradient of z there;
        present columns keep their bits, and z itself is returned if all are present.
    Not guaranteed: that the norm has left absent columns out; ``lightning_vfl.networks.joint_norm.JointNorm`` does that
        when it is given the same columns. Without a norm, and of an aggregate in which all parties share the columns,
        this is ``Exclude``.
    """

    pads: ClassVar[bool] = True

    def before(self, message: Message, view: ServerView) -> Message:
        return message

    def after(self, z: Tensor, columns: Tensor) -> Tensor:
        if bool(columns.all()):
            return z
        return torch.where(columns.to(z.device), z, z.new_zeros(()))


class Stale(MissingPolicy):
    """The latest embedding of the same record stands in; zeros, if none has ever arrived.

    DVFL's SplitNN-buffer (section 5.1). The table of embeddings is part of checkpoints that can be resumed.

    Args:
        table_dtype: ``float16`` halves the memory of the table.
        limit_bytes: the largest table that is built.

    Raises:
        ConfigurationError: before training, if the table would be larger.
    """

    fills: ClassVar[bool] = True
    needs_visible: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def __init__(self, table_dtype: TableDtype = "float32", limit_bytes: float = LIMIT_BYTES) -> None:
        self.table_dtype = table_dtype
        self.limit_bytes = limit_bytes
        self._table: RecordTable | None = None

    @property
    def table(self) -> RecordTable:
        """What is remembered, after ``prepare``."""
        if self._table is None:
            raise RuntimeError("Stale has no table before prepare")
        return self._table

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self._table = RecordTable(records, widths, self.table_dtype, self.limit_bytes).to(device)

    def before(self, message: Message, view: ServerView) -> Message:
        ids = view.rows.ids
        missing = view.roll.filled.nonzero().flatten().tolist()
        if len(message.senders) == len(view.widths):
            self.table.write_all(ids, message.pieces)
        else:
            for party, piece in zip(message.senders, message.pieces, strict=True):
                self.table.write(ids, party, piece)
        if not missing:
            return message
        like = message.pieces[0].dtype if message.pieces else torch.get_default_dtype()
        latest = [piece.to(like) for piece in self.table.read(ids)]
        pieces = (*message.pieces, *(latest[party] for party in missing))
        return replace(message, senders=(*message.senders, *missing), pieces=pieces)

    def arrived_late(self, ids: Tensor, party: int, h: Tensor) -> None:
        self.table.write(ids, party, h)

    def state(self) -> dict[str, Any]:
        return {} if self._table is None else self._table.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.table.load_state(state)
