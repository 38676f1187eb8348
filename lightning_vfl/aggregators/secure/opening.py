"""The beginning of a round under the Secure Layer: keys, when they are due, and sealed record ids."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import check_message, refuse_lacking
from lightning_vfl.aggregators.parts import Opening
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.period_keys import (
    COMMITMENTS,
    KEYS,
    Keys,
    content_of,
    exchanging,
    file_once,
    to_everybody,
)
from lightning_vfl.aggregators.secure.recovery import LIMBS, ROUND_KEYS, SHARES, Sharing, Vault
from lightning_vfl.crypto import PairKeys, PairMasks, Sealed
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.crypto.sealed import OVERHEAD
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.types import Roster, numbers_in
from lightning_vfl.wire import Gate, Leg, Message, PartyView

ID_BYTES = 8  # a record's position
NOT_HELD = -1  # stands for a record that the receiver does not hold
IDS = "record ids"  # kind of the message


@dataclass(frozen=True)
class LayerOpening(Opening):
    """Fresh keys in the first round of a period, and in every round the record ids from the active party.

    Args:
        layer: how long a period is, and what keys are for.
        equivalent: nothing is sent, because rounds run without masks; traffic is counted all the same.
    """

    layer: SecureLayer
    equivalent: bool = False

    def legs(self, rows: int, roster: Roster, called: Tensor, round: int, last: int) -> tuple[Leg, ...]:
        """As in ``Opening``. The keys of absent parties, which they send when they are back, are counted here."""
        every = self.layer.rekey_every
        due = last < 0 or last // every != round // every
        others = 0  # to which the active party sends ids
        if roster.active is not None:
            others = int(called.sum()) - int(called[roster.active])
        return _legs(self.layer, rows, roster, others, due)

    def empty_memory(self, view: PartyView) -> Keys:
        return Keys()

    def open(self, memory: Keys, view: PartyView) -> Iterator[Message]:
        if self.equivalent:
            return
        layer = self.layer
        roster = view.roster
        period = view.names.round // layer.rekey_every
        if view.renew or (memory.stage, memory.period) != (view.names.stage, period):
            exchange = layer.exchange(roster)
            exchange.begin(memory, view, period)
            yield from exchange.messages(memory, view)
            if layer.sharing is not None:
                yield from self._share_secrets(layer.sharing, memory, view)
        memory.ids.clear()
        if roster.active in view.parties:
            yield self._selection(roster.active, memory, view)
        elif roster.active is not None:  # this process waits for the ids at the same place
            yield Message(IDS, "peers", (), (), round=view.names)

    def accept(self, memory: Keys, message: Message, view: PartyView) -> Keys:
        # shares in a ring are for neighbours alone; a party that lacks those of a neighbour will mask nothing
        partly = message.kind == SHARES and self.layer.masked_with(view.roster.parties) is not None
        check_opening(message, _lengths(self.layer, len(view.rows.ids), view.roster), view, partly)
        if message.kind in (COMMITMENTS, KEYS):
            complete = self.layer.exchange(view.roster).file(memory, message, view)
            for party in view.parties if complete else ():
                keys = PairKeys(party, memory.pairs[party], memory.publics, memory.session)
                memory.masks[party] = PairMasks(keys, self.layer.bits)
        elif message.kind == ROUND_KEYS:
            for sender, piece in zip(message.senders, message.pieces, strict=True):
                file_once(memory.vault.publics, sender, content_of(piece), ROUND_KEYS)
        else:
            self._unseal(memory, message, view)
        return memory

    def _unseal(self, memory: Keys, message: Message, view: PartyView) -> None:
        """Open what was sealed for the hosted parties: record ids, or shares of secrets."""
        of_ids = message.kind == IDS
        receivers = range(view.roster.parties) if message.receivers is None else message.receivers
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            for party in view.parties:
                if party == sender or party not in receivers or (of_ids and not view.called[party]):
                    continue
                seal = self._seal(party, sender, sender, message.kind, memory, view)
                sealed = piece[receivers.index(party)].numpy().tobytes()
                if of_ids:
                    memory.ids[party] = unsealed(seal, sealed, view.names.round, sender, IDS)
                else:
                    shares = _opened_shares(seal, sealed, sender, memory)
                    memory.vault.keep(party, sender, shares)

    def _share_secrets(self, sharing: Sharing, memory: Keys, view: PartyView) -> Iterator[Message]:
        """With recovery: the keys of the period's rounds, and everybody's shares of the secrets behind them.

        In a ring, each hosted party's shares are a message of their own, because only its neighbours get any.
        """
        names = view.names
        every = self.layer.rekey_every
        seeded = self.layer.insecure_seeded_secrets
        parties = view.roster.parties
        first = memory.period * every
        rounds = range(first, first + every)  # of the period
        refuse_lacking(memory.publics, exchanging(view), KEYS)
        in_ring = sharing.neighbours(parties) is not None
        vault = memory.vault = Vault(
            rounds,
            sharing.threshold(parties),
            sharing.answers(parties),
            sharing.circles(parties, memory.session),
            memory.session if in_ring else b"",
            frozenset(memory.publics),  # between processes, some may be gone
        )
        vault.draw(view.parties, names, seeded)
        yield to_everybody(ROUND_KEYS, vault.publics, view)
        pieces = {}
        for party in view.parties:
            seed = (names.seed, names.stage, memory.period, party) if seeded else None
            shares = vault.shares_of(party, seed)
            length = len(shares[party])
            sealed = {}
            for other in vault.circles[party]:
                if other != party and other in vault.keyed:
                    seal = self._seal(party, other, party, SHARES, memory, view)
                    sealed[other] = seal.seal(shares[other], memory.period, vault.publics[party])
            if in_ring:
                receivers = tuple(m for m in vault.circles[party] if m != party)
                piece = _by_receiver(sealed, receivers, length)
                yield Message(SHARES, "peers", (party,), (piece,), receivers=receivers, round=names)
            else:
                pieces[party] = _by_receiver(sealed, range(parties), length)
        if not in_ring:
            yield Message(SHARES, "peers", view.parties, tuple(pieces.values()), round=names)

    def _selection(self, active: int, memory: Keys, view: PartyView) -> Message:
        """One sealed list for each called party, all of one length, so that nobody can tell who holds which records."""
        selected = _lists(view.rows.ids, view.present, range(view.roster.parties))
        sealed = {}
        for party in numbers_in(view.called):
            if party != active:
                seal = self._seal(active, party, active, IDS, memory, view)
                sealed[party] = seal.seal(selected[party], view.names.round)
        piece = _by_receiver(sealed, range(view.roster.parties), len(selected[active]))
        return Message(IDS, "peers", (active,), (piece,), round=view.names)

    def _seal(self, own: int, other: int, sender: int, purpose: str, memory: Keys, view: PartyView) -> Sealed:
        """One end of a one-way channel between two parties; each rank has a channel of its own for its rows."""
        channel = sender, purpose, view.names.stage, view.rows.start
        name = own, other, *channel
        if name not in memory.seals:
            refuse_lacking(memory.publics, exchanging(view), KEYS)
            key = memory.masks[own].keys.key(other, *channel)
            memory.seals[name] = Sealed(key)
        return memory.seals[name]


def check_selection(memory: Keys, view: PartyView) -> None:
    """Check that every hosted party computes the records that the active party has selected.

    Raises:
        RuntimeError: if a party has another batch.
    """
    if not memory.ids:
        return
    own = _lists(view.rows.ids, view.present, view.parties)
    for party, ids in memory.ids.items():
        if ids != own[party]:
            raise RuntimeError(f"party {party} computes other records than the active party has selected")


def check_opening(message: Message, lengths: Mapping[str, int], view: PartyView, partly: bool) -> None:
    """Bytes that parties send each other at the beginning of a round; ``lengths``: to one receiver, by kind.

    ``partly``: the message may be for some of the hosted parties only.

    Raises:
        MalformedMessage: naming the party.
    """
    parties = view.roster.parties
    senders: Sequence[int | None] = [view.roster.active] if message.kind == IDS else range(parties)
    shapes = {m: (lengths.get(message.kind, 0),) for m in senders if m is not None}
    due = message.kind if message.kind in lengths else " or ".join(lengths)
    holders = () if partly else view.parties
    check_message(message, due, "peers", shapes, torch.uint8, view.names, 0, holders, parties)


def unsealed(seal: Sealed, sealed: bytes, number: int, sender: int, kind: str) -> bytes:
    """The content of a sealed message.

    Raises:
        MalformedMessage: if it was changed, is of another number, or was sealed for somebody else.
    """
    try:
        return seal.open(sealed, number)
    except ValueError as error:
        raise MalformedMessage(f"'{kind}' of party {sender} cannot be opened: {error}") from error


def _opened_shares(seal: Sealed, sealed: bytes, owner: int, memory: Keys) -> bytes:
    """A party's shares of the owner's secrets; the seal binds them to the owner's round keys."""
    try:
        return seal.open(sealed, memory.period, memory.vault.publics.get(owner, b""))
    except ValueError as error:
        raise ValueError(
            f"the round keys of party {owner} are refused: they are not those to which it has bound its seed "
            f"shares, or its shares were changed on the way ({error})"
        ) from error


def _lists(ids: Tensor, present: Tensor | None, parties: Sequence[int]) -> dict[int, bytes]:
    """The list that each party is sent: the ids (B,) that it holds, ``NOT_HELD`` in place of the others."""
    positions = ids.cpu().numpy().astype("<i8", copy=False)
    if present is None:
        return dict.fromkeys(parties, positions.tobytes())
    held = present.cpu().numpy()
    return {m: np.where(held[:, column], positions, NOT_HELD).tobytes() for column, m in enumerate(parties)}


def _by_receiver(sealed: Mapping[int, bytes], receivers: Sequence[int], length: int) -> Tensor:
    """(receivers, length + OVERHEAD) uint8, a sealed content for each receiver; zeros where there is none."""
    piece = np.zeros((len(receivers), length + OVERHEAD), np.uint8)
    for row, receiver in enumerate(receivers):
        if receiver in sealed:
            piece[row] = np.frombuffer(sealed[receiver], np.uint8)
    return torch.from_numpy(piece)


@lru_cache(maxsize=256)
def _lengths(layer: SecureLayer, rows: int, roster: Roster) -> dict[str, int]:
    """Bytes of a message to one receiver by kind, in the order in which they are sent."""
    exchange = layer.exchange(roster)
    lengths = {COMMITMENTS: SIZE} if exchange.commits else {}
    lengths[KEYS] = exchange.size
    if layer.recovery is not None:
        lengths[ROUND_KEYS] = layer.rekey_every * SIZE
        lengths[SHARES] = layer.rekey_every * 2 * LIMBS * 4 + OVERHEAD
    lengths[IDS] = rows * ID_BYTES + OVERHEAD
    return lengths


@lru_cache(maxsize=256)
def _legs(layer: SecureLayer, rows: int, roster: Roster, others: int, due: bool) -> tuple[Leg, ...]:
    """The traffic of fresh keys if they are ``due``, and of the ids of so many rows for so many others."""
    parties = roster.parties
    sizes = {}  # (M,) bytes by kind, in the order in which the messages are sent
    for kind, length in _lengths(layer, rows, roster).items():
        if kind != IDS and due:
            others_of = parties - 1 if kind != SHARES else (layer.masked_with(parties) or parties - 1)
            sizes[kind] = torch.full((parties,), others_of * length)
        elif kind == IDS and roster.active is not None:
            sizes[IDS] = torch.zeros(parties, dtype=torch.int64)
            sizes[IDS][roster.active] = others * length
    return tuple(Leg(kind, "peers", size, 8, gate=Gate.ALL) for kind, size in sizes.items())
