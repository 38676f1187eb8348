"""What happens about the embeddings that are missing when the server goes on."""

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from lightning_vfl.networks.memory import LatestEmbeddings
from lightning_vfl.networks.record_table import LIMIT_BYTES, TableDtype
from lightning_vfl.wire import Message, ServerView

__all__ = ["Exclude", "MissingPolicy", "PadAfterNorm", "Skip", "Stale", "Zeros"]


class StandIn(ABC):
    """What the server puts in the place of missing uploads; it has to see the upload of a single party for that."""

    @abstractmethod
    def fill(self, message: Message, view: ServerView) -> Message:
        """The message that is decoded instead of the one that has arrived; ``view.roll.filled`` are the missing."""


class Padding(ABC):
    """How absent columns of the joint embedding are treated behind a norm over it."""

    @abstractmethod
    def pad(self, z: Tensor, columns: Tensor) -> Tensor:
        """What the top is given.

        Args:
            z: (B, D_out), behind the norm.
            columns: (D_out,) bool, False: absent; on any device.
        """


class MissingPolicy(ABC):
    """What the server does about parties that should have sent and have not.

    A missing party's parameters and optimiser state do not change in the round, whatever stands in for it.

    Attributes:
        stand_in: what is put in the place of missing uploads; None: nothing.
        memory: the latest embeddings, where the policy keeps them from round to round; None: it keeps nothing.
        padding: what is done behind a norm over the joint embedding; None: nothing.
    """

    stand_in: StandIn | None = None
    memory: LatestEmbeddings | None = None
    padding: Padding | None = None

    @abstractmethod
    def plan(self, held: Tensor, included: Tensor) -> Tensor | None:
        """The missing parties that count in the aggregate all the same: in its divisor, as candidates of its maximum.

        Args:
            held: (M,) bool, the parties that hold at least one record of the batch.
            included: (M,) bool, those whose uploads are in.

        Returns:
            (M,) bool; None: the round is given up. Nobody learns from it, its time and bytes are spent.
        """

    def __repr__(self) -> str:
        hidden = ("stand_in", "memory", "padding")
        settings = (f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_") and k not in hidden)
        return f"{type(self).__name__}({', '.join(settings)})"


class Exclude(MissingPolicy):
    """The aggregate of those who are there; a mean is divided by their number. With Ignore, FedVS section 6.2.

    In a concatenation the segment of a missing party is zero.
    """

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return torch.zeros_like(held)


class Zeros(MissingPolicy):
    """Zeros count as the embeddings of the missing: on a sum the same as ``Exclude``, a mean is divided by all.

    DVFL's SplitNN-zeros (section 5.1).
    """

    def __init__(self) -> None:
        self.stand_in = _Nothing()

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return held & ~included


class _Nothing(StandIn):
    """The message as it has arrived: decoding puts zeros where a party that counts has sent nothing."""

    def fill(self, message: Message, view: ServerView) -> Message:
        return message


class Skip(MissingPolicy):
    """A round with a missing party is given up: DVFL's SplitNN-skip (section 5.1), vFedSec's discard (section 5.1)."""

    def plan(self, held: Tensor, included: Tensor) -> Tensor | None:
        return None if bool((held & ~included).any()) else torch.zeros_like(held)


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

    def __init__(self) -> None:
        self.padding = _ZerosBehind()

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return torch.zeros_like(held)


class _ZerosBehind(Padding):
    def pad(self, z: Tensor, columns: Tensor) -> Tensor:
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

    memory: LatestEmbeddings

    def __init__(self, table_dtype: TableDtype = "float32", limit_bytes: float = LIMIT_BYTES) -> None:
        self.table_dtype = table_dtype
        self.limit_bytes = limit_bytes
        self.memory = LatestEmbeddings(table_dtype, limit_bytes)
        self.stand_in = _Latest(self.memory)

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return held & ~included


class _Latest(StandIn):
    def __init__(self, memory: LatestEmbeddings) -> None:
        self.memory = memory

    def fill(self, message: Message, view: ServerView) -> Message:
        """Keep what has arrived, and read what is missing."""
        ids, table = view.rows.ids, self.memory.table
        missing = view.roll.filled.nonzero().flatten().tolist()
        if len(message.senders) == len(view.widths):
            table.write_all(ids, message.pieces)
        else:
            for party, piece in zip(message.senders, message.pieces, strict=True):
                table.write(ids, party, piece)
        if not missing:
            return message
        like = message.pieces[0].dtype if message.pieces else torch.get_default_dtype()
        latest = [piece.to(like) for piece in table.read(ids)]
        pieces = (*message.pieces, *(latest[party] for party in missing))
        return replace(message, senders=(*message.senders, *missing), pieces=pieces)
