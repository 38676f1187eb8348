"""Policies for embeddings that are missing when the server stops waiting."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.networks.memory import EmbeddingMemory, LastMessages, LatestEmbeddings
from lightning_vfl.networks.record_table import LIMIT_BYTES, TableDtype
from lightning_vfl.rebuildable import Rebuildable, printed_without
from lightning_vfl.types import Tensors, numbers_in
from lightning_vfl.wire import Message, ServerView

__all__ = ["Exclude", "LastMessage", "MissingPolicy", "PadAfterNorm", "Skip", "Stale", "Zeros"]


class StandIn(ABC):
    """Replaces missing uploads at the server; works only if the server sees the uploads of single parties."""

    @abstractmethod
    def fill(self, message: Message, view: ServerView) -> Message:
        """The message to decode instead of the arrived message; ``view.roll.filled`` are the replaced parties."""


class MissingPolicy(Rebuildable, ABC):
    """The server's policy for parties whose embeddings are missing in a round.

    A missing party's parameters and optimiser state do not change in the round, whatever replaces its embedding.

    Attributes:
        stand_in: replaces missing uploads; None: missing uploads are not replaced.
        memory: earlier embeddings, if the policy stores them between rounds; None: the policy has no memory.
        padding: makes the top's input from z (B, D_out), a norm's output, and the columns (D_out,) bool that are not
            absent; None: it is z.
    """

    stand_in: StandIn | None = None
    memory: EmbeddingMemory | None = None
    padding: Callable[[Tensor, Tensor], Tensor] | None = None

    @abstractmethod
    def plan(self, held: Tensor, included: Tensor) -> Tensor | None:
        """The missing parties that still count in the aggregate: in the divisor of a mean, as candidates of a maximum.

        Args:
            held: (M,) bool, the parties that hold at least one record of the batch.
            included: (M,) bool, the parties whose uploads are in the aggregate.

        Returns:
            (M,) bool, no included party and no party that holds no record; None: the round is given up. No network
            learns, but its time and bytes are counted.
        """

    def __repr__(self) -> str:
        return printed_without(self, ("stand_in", "memory", "padding"))


def refuse_broken_policy(policy: MissingPolicy, parties: int) -> None:
    """Accept a policy that plans made-up rounds as it has to; a policy of a user's own may not.

    Raises:
        ConfigurationError: naming the policy and what it returns.
    """
    everybody = torch.ones(parties, dtype=torch.bool)
    who = f"plan of {type(policy).__name__}"
    for held in (everybody, torch.arange(parties) > 0):
        for number in range(parties + 1):
            included = held & (torch.arange(parties) < number)
            try:
                told = policy.plan(held.clone(), included.clone())
            except Exception as error:
                raise ConfigurationError(
                    f"{who} cannot plan a round with parties {numbers_in(included)} of {parties}: {reason(error)}"
                ) from error
            if told is None:
                continue
            if not (isinstance(told, Tensor) and told.dtype == torch.bool and told.shape == held.shape):
                found = f"{(*told.shape,)} {told.dtype}" if isinstance(told, Tensor) else repr(told)
                raise ConfigurationError(f"{who} must return ({parties},) bool, or None to skip a round; got {found}")
            if bool((told & (included | ~held)).any()):
                raise ConfigurationError(
                    f"{who} returns parties {numbers_in(told)} where {numbers_in(held & ~included)} are missing; "
                    "return no others, such as held & ~included"
                )


def filled_in(stand_in: StandIn, message: Message, view: ServerView) -> Message:
    """The message to decode instead of the arrived message, after a check of what ``fill`` has added.

    Raises:
        ConfigurationError: for an embedding of another shape or dtype, naming the stand-in.
    """
    filled = stand_in.fill(message, view)
    if filled is message:
        return filled
    who = f"fill of {type(stand_in).__name__}"
    rows = len(view.rows.ids)
    if not isinstance(filled, Message) or len(filled.senders) != len(filled.pieces):
        raise ConfigurationError(f"{who} must return a Message with a piece for each sender; got {filled!r}")
    dtypes = {piece.dtype for piece in message.pieces}
    for party, piece in filled.by_sender.items():
        if party in message.senders:
            continue
        if piece.shape != (rows, view.widths[party]) or (dtypes and piece.dtype not in dtypes):
            kind = f" {next(iter(dtypes))}" if dtypes else ""
            raise ConfigurationError(
                f"{who} replaces the embedding of party {party} by {(*piece.shape,)} {piece.dtype}; it must be "
                f"{(rows, view.widths[party])}{kind}"
            )
    return filled


def completed(stand_in: StandIn, arrived: Message, h: Tensors, view: ServerView) -> Tensors:
    """The embeddings ``h`` of the parties that have arrived, replacements for others, and zeros where there is none."""
    filled = filled_in(stand_in, arrived, view)
    pieces = filled.by_sender
    return tuple(pieces[party] if party in pieces else torch.zeros_like(own) for party, own in enumerate(h))


class Exclude(MissingPolicy):
    """Aggregate only the included parties; a mean is divided by their number. With Ignore: FedVS, section 6.2.

    In a concatenation, the segment of a missing party is zero.
    """

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return torch.zeros_like(held)


class _FillsIn(MissingPolicy, ABC):
    """A policy by which every missing party counts, because its embedding is replaced."""

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return held & ~included


class Zeros(_FillsIn):
    """Use zeros as the embeddings of missing parties. A sum is the same as with ``Exclude``; a mean is divided by all.

    DVFL's SplitNN-zeros (section 5.1).
    """

    def __init__(self) -> None:
        self.stand_in = _Nothing()


class _Nothing(StandIn):
    """Return the arrived message: decoding puts zeros for a party that counts but has not sent."""

    def fill(self, message: Message, view: ServerView) -> Message:
        return message


class Skip(MissingPolicy):
    """Give up a round with a missing party: DVFL's SplitNN-skip (section 5.1), vFedSec's discard (section 5.1)."""

    def plan(self, held: Tensor, included: Tensor) -> Tensor | None:
        return None if bool((held & ~included).any()) else torch.zeros_like(held)


class PadAfterNorm(MissingPolicy):
    """Put zeros into the segments of absent groups after the norm over the joint embedding.

    vFedSec (section 3.3): the server discards the segment of an absent group, normalises the joint embedding, and puts
    zeros into the absent segments. A zero before the norm, as with ``Zeros`` and ``Exclude``, is treated as a value:
    the norm shifts it, and it changes the running statistics.

    Shapes: z (B, D_out); columns (D_out,) bool, on any device, False: absent.
    Guarantee: absent columns are exactly zero for any input (also NaN), and so is the gradient of z there. Present
        columns keep their bits, and z itself is returned if all columns are present.
    Not guaranteed: that the norm leaves out absent columns. ``lightning_vfl.networks.joint_norm.JointNorm`` does this
        if it gets the same columns. Without a norm, or if all parties share the columns of the aggregate, the policy is
        the same as ``Exclude``.
    """

    def plan(self, held: Tensor, included: Tensor) -> Tensor:
        return torch.zeros_like(held)

    @staticmethod
    def padding(z: Tensor, columns: Tensor) -> Tensor:
        if bool(columns.all()):
            return z
        return torch.where(columns.to(z.device), z, z.new_zeros(()))


class Stale(_FillsIn):
    """Replace a missing embedding by the latest embedding of the same record, or by zeros if there is none.

    DVFL's SplitNN-buffer (section 5.1), if its buffer keeps the records apart. The table of embeddings is part of
    checkpoints for resuming.

    Args:
        table_dtype: ``float16`` halves the memory of the table.
        limit_bytes: the largest allowed table.

    Raises:
        ConfigurationError: before training, if the table would be larger.
    """

    def __init__(self, table_dtype: TableDtype = "float32", limit_bytes: float = LIMIT_BYTES) -> None:
        self.table_dtype = table_dtype
        self.limit_bytes = limit_bytes
        self.memory = LatestEmbeddings(table_dtype, limit_bytes)
        self.stand_in = _Remembered(self.memory)


class LastMessage(_FillsIn):
    """Replace a missing embedding by the same row of the party's last message, or by zeros if there is none.

    DVFL's SplitNN-buffer (section 5.1), if its buffer keeps one message a guest, as the registers of its hosts do. In
    shuffled batches, a row of the last message belongs to another record. The messages are part of checkpoints for
    resuming.
    """

    def __init__(self) -> None:
        self.memory = LastMessages()
        self.stand_in = _Remembered(self.memory)


class _Remembered(StandIn):
    """Store what arrives, and replace what is missing by what was stored before."""

    def __init__(self, memory: EmbeddingMemory) -> None:
        self.memory = memory

    def fill(self, message: Message, view: ServerView) -> Message:
        ids = view.rows.ids
        if len(message.senders) == len(view.widths):
            self.memory.write_all(ids, message.pieces)
        else:
            for party, piece in message.by_sender.items():
                self.memory.write(ids, party, piece)
        missing = numbers_in(view.roll.filled)
        if not missing:
            return message
        like = message.pieces[0] if message.pieces else torch.empty(len(ids), 0, device=ids.device)
        pieces = (*message.pieces, *self.memory.recall(missing, ids, like))
        return replace(message, senders=(*message.senders, *missing), pieces=pieces)
