"""The beginning of a round under the Secure Layer: keys, when they are due, and sealed record ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import refuse_lacking
from lightning_vfl.aggregators.parts import Opening
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.messages import check_opening, file_once, unsealed
from lightning_vfl.aggregators.secure.period_keys import KEYS, NONCES, Keys, content_of, exchanging, to_everybody
from lightning_vfl.aggregators.secure.recovery import LIMBS, ROUND_KEYS, SHARES, Vault
from lightning_vfl.crypto import PairKeys, PairMasks, Sealed, key_period
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.crypto.sealed import OVERHEAD
from lightning_vfl.types import Roster
from lightning_vfl.wire import Gate, Leg, Message, PartyView

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        layer = self.layer
        due = last < 0 or key_period(last, layer.rekey_every) != key_period(round, layer.rekey_every)
        others = 0 if roster.active is None else int(called.sum()) - int(called[roster.active])
        keys = (layer.exchange.size, layer.identities is not None)
        return _legs(rows, roster, others, layer.rekey_every if due else 0, layer.recovery is not None, keys)

    def empty_memory(self, view: PartyView) -> Keys:
        return Keys()

    def open(self, memory: Keys, view: PartyView) -> Iterator[Message]:
        if self.equivalent:
            return
        layer, period = self.layer, key_period(view.names.round, self.layer.rekey_every)
        if view.renew or (memory.stage, memory.period) != (view.names.stage, period):
            layer.exchange.begin(memory, view, period)
            yield from layer.exchange.messages(memory, view)
            if layer.recovery is not None:
                yield from self._share_secrets(layer.recovery.needed(view.roster.parties), memory, view)
        memory.ids.clear()
        if view.roster.active in view.parties:
            yield self._selection(view.roster.active, memory, view)
        elif view.roster.active is not None:
            yield Message(IDS, "peers", (), (), round=view.names)

    def accept(self, memory: Keys, message: Message, view: PartyView) -> Keys:
        check_opening(message, self._lengths(view), IDS, view)
        if message.kind in (NONCES, KEYS):
            if self.layer.exchange.file(memory, message, view):
                for party in view.parties:
                    keys = PairKeys(party, memory.pairs[party], memory.publics, memory.session)
                    memory.masks[party] = PairMasks(keys, self.layer.bits)
            return memory
        if message.kind == ROUND_KEYS:
            for sender, piece in zip(message.senders, message.pieces, strict=True):
                file_once(memory.vault.publics, sender, content_of(piece), ROUND_KEYS)
            return memory
        number = view.names.round if message.kind == IDS else memory.period
        receivers = range(view.roster.parties) if message.receivers is None else message.receivers
        place = {party: i for i, party in enumerate(receivers)}
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            sealed = piece.numpy()
            for party in view.parties:
                if party == sender or (message.kind == IDS and not view.called[party]):
                    continue
                seal = self._seal(party, sender, sender, message.kind, memory, view)
                if message.kind == IDS:
                    memory.ids[party] = unsealed(seal, sealed[place[party]].tobytes(), number, sender, IDS)
                else:
                    memory.vault.keep(party, sender, _opened_shares(seal, sealed[place[party]], sender, memory))
        return memory

    def _lengths(self, view: PartyView) -> dict[str, int]:
        """Bytes of a message to one receiver, by kind."""
        layer = self.layer
        lengths = {KEYS: layer.exchange.size, IDS: len(view.rows.ids) * ID_BYTES + OVERHEAD}
        if layer.identities is not None:
            lengths |= {NONCES: SIZE}
        if layer.recovery is not None:
            lengths |= {ROUND_KEYS: layer.rekey_every * SIZE, SHARES: layer.rekey_every * 2 * LIMBS * 4 + OVERHEAD}
        return lengths

    def _share_secrets(self, needed: int, memory: Keys, view: PartyView) -> Iterator[Message]:
        """With recovery: the keys of the period's rounds, and everybody's shares of the secrets behind them."""
        every, seeded = self.layer.rekey_every, self.layer.insecure_seeded_secrets
        first, parties, names = memory.period * every, view.roster.parties, view.names
        vault = memory.vault = Vault(range(first, first + every), needed)
        vault.draw(view.parties, names, seeded)
        yield to_everybody(ROUND_KEYS, vault.publics, view)
        pieces = []
        for party in view.parties:
            seed = (names.seed, names.stage, memory.period, party) if seeded else None
            contents, bound = vault.shares_of(party, needed, parties, seed), vault.publics[party]
            piece = np.zeros((parties, len(contents[0]) + OVERHEAD), np.uint8)
            for other in range(parties):
                if other != party and (view.renew is None or other in memory.publics):
                    seal = self._seal(party, other, party, SHARES, memory, view)
                    piece[other] = np.frombuffer(seal.seal(contents[other], memory.period, bound), np.uint8)
            pieces.append(torch.from_numpy(piece))
        yield Message(SHARES, "peers", view.parties, tuple(pieces), round=view.names)

    def _selection(self, active: int, memory: Keys, view: PartyView) -> Message:
        """One sealed list for each called party, all of one length, so that nobody can tell who holds which records."""
        selected = _lists(view.rows.ids, view.present, range(view.roster.parties))
        piece = np.zeros((view.roster.parties, len(selected[active]) + OVERHEAD), np.uint8)
        for party in view.called.nonzero().flatten().tolist():
            if party != active:
                sealed = self._seal(active, party, active, IDS, memory, view).seal(selected[party], view.names.round)
                piece[party] = np.frombuffer(sealed, np.uint8)
        return Message(IDS, "peers", (active,), (torch.from_numpy(piece),), round=view.names)

    def _seal(self, own: int, other: int, sender: int, purpose: str, memory: Keys, view: PartyView) -> Sealed:
        """One end of a one-way channel between two parties; each rank has a channel of its own for its rows."""
        name = own, other, sender, purpose, view.names.stage, view.rows.start
        if name not in memory.seals:
            refuse_lacking(memory.publics, exchanging(view), KEYS)
            memory.seals[name] = Sealed(memory.masks[own].keys.key(other, *name[2:]))
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


def _opened_shares(seal: Sealed, sealed: "NDArray[Any]", owner: int, memory: Keys) -> bytes:
    """A party's shares of the owner's secrets; the seal binds them to the owner's round keys."""
    try:
        return seal.open(sealed.tobytes(), memory.period, memory.vault.publics.get(owner, b""))
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


@lru_cache(maxsize=256)
def _legs(
    rows: int, roster: Roster, others: int, rounds: int, recovery: bool, keys: tuple[int, bool]
) -> tuple[Leg, ...]:
    """Keys for so many rounds, and ids of so many rows for so many others.

    ``keys`` are the bytes of one public key, and whether nonces are sent before it.
    """
    m, nothing = roster.parties, torch.zeros(roster.parties, dtype=torch.float64)
    sent = {}
    if rounds:
        size, nonces = keys
        if nonces:
            sent[NONCES] = torch.full((m,), (m - 1) * SIZE)
        sent[KEYS] = torch.full((m,), (m - 1) * size)
        if recovery:
            sent[ROUND_KEYS] = torch.full((m,), (m - 1) * SIZE * rounds)
            sent[SHARES] = torch.full((m,), (m - 1) * (2 * rounds * LIMBS * 4 + OVERHEAD))
    if roster.active is not None:
        sent[IDS] = torch.zeros(m, dtype=torch.int64)
        sent[IDS][roster.active] = others * (rows * ID_BYTES + OVERHEAD)
    return tuple(Leg(kind, "peers", size, 8, nothing, gate=Gate.ALL) for kind, size in sent.items())
