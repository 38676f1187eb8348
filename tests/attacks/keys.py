"""A server that lies about who is lost or replaces public keys, and coalitions in a sum of few: whose embeddings fall.

Every party has a memory of its own here, and the server carries all messages, so that it can tell each party something
else. Success is the share of the values of one party's embedding that the server reads off to the rounding step.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.consent import SIGNED, Survivors
from lightning_vfl.aggregators.secure.period_keys import Keys, bytes_of
from lightning_vfl.aggregators.secure.recovery import (
    MASKS,
    SELF,
    RoundSecrets,
    own_mask,
    pair_masks,
    reconstruct,
    round_masks,
)
from lightning_vfl.crypto import Identities, KeyPair, MaskNames, PairKeys, PairMasks
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, Message, PartyView, ServerView
from tests.attacks.row import Row

LEVELS, B, D = 2**20, 4, 3
STEP = 8 / LEVELS
NAMES = RoundNames(0, Stage.FIT, 0)
ROWS = Rows(torch.arange(B), 0, B)
Tamper = Callable[[str, int, int, bytes], bytes]  # kind, sender, receiver, what was sent -> what arrives


def embeddings_of(parties: int, width: int = D, seed: int = 0) -> tuple[Tensor, ...]:
    """(B, width) a party, on the grid of the codec, so that rounding changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-LEVELS // 2, LEVELS // 2, (parties, B, width), generator=generator)
    return tuple((x.double() * STEP).float() for x in whole)


def among(who: Iterable[int], parties: int) -> Tensor:
    """(M,) bool."""
    there = torch.zeros(parties, dtype=torch.bool)
    there[list(who)] = True
    return there


def share_read(guess: Tensor, truth: Tensor) -> float:
    """The share of the values that the server has read off."""
    return float(((guess.double() - truth.double()).abs() <= STEP).double().mean())


class Parties:
    """M parties in one round, each with its own memory; the server carries every message.

    Args:
        parties: M.
        tamper: what the server does to a message on its way; None: nothing.
        protected: False: parties answer without what this version has added: signatures, sets of at least t, own
            survival, authenticated round keys.
        settings: of ``MaskedSum``.
    """

    def __init__(self, parties: int, tamper: Tamper | None = None, protected: bool = True, **settings: object) -> None:
        self.roster, self.protected = Roster.singles(parties), protected
        aggregator = MaskedSum(levels=LEVELS, allow_single=not protected, **settings)  # type: ignore[arg-type]
        self.aggregator = aggregator.among(self.roster)
        self.layer = self.aggregator._layer
        self.h = embeddings_of(parties)
        self.views = [
            PartyView(NAMES, self.roster, (m,), torch.ones(parties).bool(), ROWS, Keys()) for m in range(parties)
        ]
        for sent in zip(*(self.aggregator.opening.open(view.memory, view) for view in self.views), strict=True):
            for view in self.views:
                self.aggregator.opening.accept(view.memory, self._carried(sent, view.parties[0], tamper), view)
        self.called: dict[int, tuple[int, ...]] = {}
        self.shares: dict[tuple[int, str], dict[int, Tensor]] = {}  # (owner, kind) -> holder -> share

    def _carried(self, sent: tuple[Message, ...], receiver: int, tamper: Tamper | None) -> Message:
        """One message of all senders, as it arrives at a receiver."""
        pieces = []
        for message in sent:
            (sender,), piece = message.senders, message.pieces[0].clone()
            if tamper is not None and sender != receiver:
                given = piece[receiver].numpy().tobytes()
                piece[:] = bytes_of(tamper(message.kind, sender, receiver, given))  # it looks at its own alone
            pieces.append(piece)
        return Message(sent[0].kind, "peers", tuple(range(len(sent))), tuple(pieces))

    def upload(self, party: int, called: Iterable[int]) -> np.ndarray:
        """What a party sends after the server has said who is called."""
        self.called[party] = tuple(sorted(called))
        view = replace(self.views[party], called=among(called, self.roster.parties))
        if not self.protected:
            view.memory.vault.needed = view.memory.vault.answers = 1
        message = next(self.aggregator.wire.party_side().upload(Embeddings((self.h[party],)), view))
        return message.pieces[0].numpy()

    def told(self, party: int, called: Iterable[int], included: Iterable[int]) -> tuple[PartyView, Tensor]:
        """What a party knows once the server has said who is called and who is in."""
        called, included = set(called), set(included)
        view = replace(self.views[party], called=among(called, self.roster.parties))
        return view, among(included, self.roster.parties)

    def answer(
        self, who: Iterable[int], called: Iterable[int], included: Iterable[int], colluders: Iterable[int] = ()
    ) -> None:
        """Let these parties, told the same, reveal; colluders sign whatever the server wants."""
        who, called, included = sorted(who), sorted(called), sorted(included)
        if not self.protected:
            for party in who:
                for owner in called:
                    kind = SELF if owner in included else MASKS
                    self._keep(owner, kind, party, self.views[party].memory.vault.reveal(party, owner, 0, kind))
            return
        signatures: dict[int, Tensor] = {}
        for party in who:
            view, there = self.told(party, called, included)
            signatures[party] = self.layer.consent(there, view).pieces[0]
        for party in set(colluders) & set(included):
            memory = self.views[party].memory
            survivors = Survivors(memory.session, "fit", 0, tuple(called), tuple(included))
            signatures[party] = bytes_of(survivors.signed_by(memory.signers[party]))
        handed_on = Message(SIGNED, "server", tuple(signatures), tuple(signatures.values()))
        for party in who:
            view, there = self.told(party, called, included)
            revealed = self.layer.reveal(there, view, handed_on)
            for owner in called:
                kind = SELF if owner in included else MASKS
                self._keep(owner, kind, party, revealed.pieces[0][owner])

    def hand_over(self, colluders: Iterable[int]) -> None:
        """The shares that colluders hold of everybody."""
        for party in colluders:
            for owner in range(self.roster.parties):
                x, b = self.views[party].memory.vault.shares[party, owner][0]
                self._keep(owner, MASKS, party, x)
                self._keep(owner, SELF, party, b)

    def _keep(self, owner: int, kind: str, holder: int, share: Tensor) -> None:
        self.shares.setdefault((owner, kind), {})[holder] = share

    def secret(self, owner: int, kind: str) -> bytes:
        """What the server puts together from the shares that it has.

        Raises:
            ConfigurationError: from too few.
        """
        held, n = self.shares.get((owner, kind), {}), self.roster.parties
        assert self.aggregator.recovery is not None
        needed = self.aggregator.recovery.needed(n)
        if len(held) < needed:
            raise RuntimeError(f"{len(held)} shares of the {kind} of party {owner}, and {needed} give it back")
        stacked = torch.stack([share.unsqueeze(0) for share in held.values()])
        return reconstruct(stacked, tuple(held), needed, n)[0]

    def read(self, victim: int, upload: np.ndarray, colluders: Iterable[int] = ()) -> Tensor:
        """The victim's embedding, from its upload and the secrets of it and of those with whom it has masked."""
        members, names = self.called[victim], round_masks(NAMES, ROWS)
        publics = {m: self.views[victim].memory.vault.public(m, 0) for m in members}
        left = upload.copy()
        own_mask(self.secret(victim, SELF), names).add_to(left.reshape(-1), 0, -1)
        for other in members:
            if other == victim:
                continue
            if other in set(colluders):
                secrets = self.views[other].memory.vault.secrets[other, 0]
            else:
                secrets = RoundSecrets(self.secret(other, MASKS), bytes(32))
            masks = pair_masks(other, secrets, publics, 32)
            left += masks.mask_of((other, victim), names, 0, left.shape)  # the other way round, it cancels the victim's
        return clear(left)

    def read_both(self, victim: int, upload: np.ndarray) -> Tensor:
        """The victim's embedding from its upload and its own two secrets."""
        members, names = self.called[victim], round_masks(NAMES, ROWS)
        publics = {m: self.views[victim].memory.vault.public(m, 0) for m in members}
        left = upload.copy()
        own_mask(self.secret(victim, SELF), names).add_to(left.reshape(-1), 0, -1)
        masks = pair_masks(victim, RoundSecrets(self.secret(victim, MASKS), bytes(32)), publics, 32)
        left -= masks.mask_of(members, names, 0, left.shape)
        return clear(left)


def clear(integers: np.ndarray) -> Tensor:
    """The numbers that unmasked integers of one party stand for."""
    return torch.from_numpy((integers.astype(np.int64) - LEVELS // 2) * STEP)


# ---- a server that lies about who is called and who is lost


def one_survivor(protected: bool, recovery: Mapping[str, object] | str = "auto", parties: int = 5) -> float:
    """The server tells everybody, without a colluder, that only party 0's upload has arrived."""
    run, everybody = Parties(parties, protected=protected, recovery=recovery), range(parties)
    uploads = [run.upload(m, everybody) for m in everybody]
    run.answer(everybody, everybody, {0})
    return share_read(run.read(0, uploads[0]), run.h[0])


def another_roster(protected: bool, recovery: Mapping[str, object] | str = "auto", parties: int = 5) -> float:
    """The server tells party 0 that only party 1 is called besides it, and the others that party 1 is lost."""
    run, everybody = Parties(parties, protected=protected, recovery=recovery), range(parties)
    upload = run.upload(0, {0, 1})
    for m in everybody[1:]:
        run.upload(m, everybody)
    run.answer([0], {0, 1}, {0})
    run.answer(everybody[2:], everybody, set(everybody) - {1})
    return share_read(run.read(0, upload), run.h[0])


def two_stories(
    protected: bool, colluders: int, recovery: Mapping[str, object] | str = "auto", parties: int = 5
) -> float:
    """The server tells some honest parties that party 0 is lost and others that it is there; none is asked twice."""
    run, everybody = Parties(parties, protected=protected, recovery=recovery), range(parties)
    assert run.aggregator.recovery is not None
    own = range(parties - colluders, parties)
    honest, each = list(everybody[: parties - colluders]), run.aggregator.recovery.needed(parties) - colluders
    uploads = [run.upload(m, everybody) for m in everybody]
    run.hand_over(own)
    run.answer(honest[:each], everybody, everybody, own)
    run.answer(honest[each : 2 * each], everybody, set(everybody) - {0}, own)
    return share_read(run.read_both(0, uploads[0]), run.h[0])


def many_stories(protected: bool) -> float:
    """Five parties, t = 3, no colluder: nobody is told that it is lost itself, and no told set is below t."""
    run = Parties(5, protected=protected, recovery={"threshold": 3})
    uploads = {m: run.upload(m, range(5)) for m in range(1, 5)}
    uploads[0] = run.upload(0, {0, 1, 2})
    stories = {3: {0, 3, 4}, 4: {0, 3, 4}, 1: {0, 1, 3, 4}, 2: {0, 2, 3, 4}}
    for party, included in stories.items():
        run.answer([party], range(5), included)
    return share_read(run.read(0, uploads[0]), run.h[0])


# ---- a server that replaces keys


def replaced_round_keys(protected: bool) -> float:
    """The server gives party 0 round keys of its own making in the place of the others', and then lets all survive."""
    own = {m: RoundSecrets(os.urandom(32), os.urandom(32)) for m in range(5)}

    def tamper(kind: str, sender: int, receiver: int, sent: bytes) -> bytes:
        return own[sender].pair.public * 5 if kind == "round keys" and receiver == 0 and protected else sent

    run = Parties(5, tamper, protected, recovery="auto")
    victim = run.views[0].memory.vault
    for m in range(1, 5):  # as they were filed before they were bound to the shares
        victim.publics[m] = own[m].pair.public * 5
    uploads = [run.upload(m, range(5)) for m in range(5)]
    run.answer(range(1, 5), range(5), range(5))
    for m in range(1, 5):
        run.views[m].memory.vault.secrets[m, 0] = own[m]  # whose private halves the server has
    return share_read(run.read(0, uploads[0], colluders=range(1, 5)), run.h[0])


@contextmanager
def identity_folder(parties: int) -> Iterator[str]:
    """Identity keys of the parties."""
    with tempfile.TemporaryDirectory() as folder:
        Identities.make(folder, parties)
        yield folder


def replaced_public_keys(identities: str | None) -> float:
    """The server stands between party 0 and all others, with a key pair in the place of each party's."""
    own = {m: KeyPair() for m in range(4)}
    seen: dict[int, bytes] = {}

    def tamper(kind: str, sender: int, receiver: int, sent: bytes) -> bytes:
        if kind != "public keys":
            return sent
        seen[sender] = sent[:32]
        return own[sender].public + sent[32:] if 0 in (sender, receiver) else sent

    run = Parties(4, tamper, identities=identities)
    upload = run.upload(0, range(4)).copy()
    publics = {m: own[m].public for m in range(1, 4)} | {0: seen[0]}
    session = sha256(b"".join(publics[m] for m in range(4))).digest()
    names = MaskNames("embeddings", "fit", 0, 0, 0)
    for m in range(1, 4):
        masks = PairMasks(PairKeys(m, own[m], publics, session), 32)
        upload[0] += masks.mask_of((m, 0), names, 0, upload[0].shape)
    return share_read(clear(upload[0]), run.h[0])


# ---- coalitions in layout segments


def segments_error(colluders: Iterable[int]) -> tuple[dict[tuple[int, int], float], Roster]:
    """By (party, segment) the largest error with which the server and these parties read an embedding off the sums."""
    roster = Roster.singles(4, active=0)
    aggregator = MaskedSum("segments", levels=LEVELS).among(roster)
    h = tuple(embeddings_of(4, width, seed=m)[m] for m, width in enumerate(aggregator.widths(D, roster)))
    view = PartyView(NAMES, roster, (0, 1, 2, 3), torch.ones(4).bool(), ROWS, Keys())
    for message in aggregator.opening.open(view.memory, view):
        aggregator.opening.accept(view.memory, message, view)
    server = ServerView(NAMES, roster, ROWS, Roll.everyone(4), tuple(x.shape[1] for x in h))
    value = Exchange(aggregator, Embeddings(h), view, server).send().value
    sums, found = aggregator._layer.segments(roster), {}
    for segment, members in enumerate(sums.members):
        rest = value[:, segment * D : (segment + 1) * D].clone()
        honest = [m for m in members if m not in set(colluders)]
        for m in set(members) & set(colluders):
            rest -= sums.part(h[m], m, segment)
        for m in honest:
            found[m, segment] = float((rest - sums.part(h[m], m, segment)).abs().max())
    return found, roster


def told(share: float) -> str:
    """A success in words."""
    return f"{100 * share:.0f} % of the values"


def refused(attack: Callable[[], float]) -> str:
    """The attack's success, or that a party has refused to answer."""
    try:
        return told(attack())
    except (RuntimeError, ValueError) as error:
        return f"refused by a party: {str(error).split(';')[0].split(':')[0]}"


def rows() -> list[Row]:
    """The rows of the table."""
    passive, _ = segments_error({1})
    fallen = f"{sum(error <= 1e-6 for error in passive.values())} of {len(passive)} (largest error {passive[0, 0]:.0e})"
    with identity_folder(4) as folder:
        swapped = refused(lambda: replaced_public_keys(folder))
    lies, sees = "the server lies", "uploads and revealed shares, {} of 5 parties collude"
    return [
        Row(
            f"{lies}: only one upload has arrived (`recovery: auto`)",
            sees.format(0),
            told(one_survivor(False)),
            refused(lambda: one_survivor(True)),
            "0 %",
        ),
        Row(
            f"{lies} to one party about who is called (`recovery: auto`)",
            sees.format(0),
            told(another_roster(False)),
            refused(lambda: another_roster(True)),
            "0 %",
        ),
        Row(
            f"{lies}: every party is told other survivors (t = 3)",
            sees.format(0),
            told(many_stories(False)),
            refused(lambda: many_stories(True)),
            "0 %",
        ),
        Row(
            f"{lies}: two halves are told different survivors (`auto`: t = 3 before, 4 now)",
            sees.format(1),
            told(two_stories(False, 1, {"threshold": 3})),
            refused(lambda: two_stories(True, 1)),
            "0 %",
        ),
        Row(
            "the same with `threshold: 3`, which the summary says tolerates no colluder of a lying server",
            sees.format(1),
            told(two_stories(False, 1, {"threshold": 3})),
            refused(lambda: two_stories(True, 1, {"threshold": 3})),
            "0 %",
        ),
        Row(
            "the server replaces the round keys of recovery",
            "uploads and revealed shares",
            told(replaced_round_keys(False)),
            refused(lambda: replaced_round_keys(True)),
            "0 %",
        ),
        Row(
            "the server replaces public keys",
            "uploads",
            told(replaced_public_keys(None)),
            f"{swapped} (with `identities`; without, as before, and the summary says so)",
            "0 %",
        ),
        Row(
            "one passive party colludes with the server, `layout: segments`",
            "the sums and its own embedding",
            f"C_0's columns of its segment: {fallen}",
            "the same, stated in the table of coalitions",
            "none of 5",
        ),
    ]
