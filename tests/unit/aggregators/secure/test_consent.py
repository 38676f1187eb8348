"""The consistency round: all coalitions of up to six parties with a server that lies, and what a party refuses."""

import itertools
from dataclasses import replace

import pytest
import torch

from lightning_vfl.aggregators.secure.consent import Survivors
from lightning_vfl.aggregators.secure.recovery import MASKS, SELF, Recovery, round_masks, unmask
from lightning_vfl.crypto import Signer
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.wire import Message
from tests.attacks.keys import (
    NAMES,
    ROWS,
    Parties,
    among,
    another_roster,
    clear,
    many_stories,
    one_survivor,
    two_stories,
)

EVERY = [(n, t) for n in range(2, 7) for t in range(n // 2 + 1, n + 1)]


# ---- the model: pure sets, party 0 is the victim, the last c parties collude


def subsets(of, least=0):
    return [set(s) for size in range(least, len(of) + 1) for s in itertools.combinations(sorted(of), size)]


def statements(n, t):
    """All that a server can say to a party: who was called, and who is in the sum."""
    return [(called, left) for called in subsets(range(n), t) for left in subsets(called, t)]


def can_sign(statement, signed_by, masked, honest, needed):
    """Whether t signatures can be had: of colluders in the set, and of these honest parties that masked so."""
    called, left = statement
    willing = {w for w in signed_by if w in left and masked.get(w, called) == called}
    return len(willing) + len(left - honest) >= needed


def recovered(n, t, c):
    """Whether a lying server and c colluders can read the embedding of party 0, by enumeration of what it may say.

    The server learns s of the lost and b of the survivors of each set with t signatures; an honest party signs one set,
    with itself in it, of those with whom it has masked. It reads x_0 from b_0 and either s_0 or s of all honest parties
    that party 0 has masked with.
    """
    honest = set(range(n - c))
    said = statements(n, t)

    def exposed(sets, masked_with):
        lost = set().union(*(called - left for called, left in sets))
        there = set().union(*(left for _, left in sets))
        others = (masked_with & honest) - {0}
        return 0 in there and (0 in lost or others <= lost)

    for masked_with in subsets(range(n), t):
        if 0 not in masked_with:
            continue
        for one in said:  # one set is signed
            if exposed([one], masked_with) and can_sign(one, honest, {0: masked_with}, honest, t):
                return True
    if 2 * (t - c) > n - c:
        return False  # each of two sets needs t - c honest signers of its own
    for one, other in itertools.combinations(said, 2):  # two sets are signed, by different honest parties
        for masked_with in (one[0], other[0]):
            if 0 in masked_with and exposed([one, other], masked_with):
                for first in subsets(honest):
                    own = {0: masked_with}
                    if can_sign(one, first, own, honest, t) and can_sign(other, honest - first, own, honest, t):
                        return True
    return False


@pytest.mark.parametrize(("n", "t"), EVERY)
def test_a_lying_server_needs_more_colluders_than_are_tolerated(n, t):
    """All coalitions: nothing falls up to the stated number; one more reads an embedding, or is everybody else."""
    tolerated = Recovery(t).tolerated(n)
    for c in range(n - 1):
        assert recovered(n, t, c) == (c > tolerated), c
    assert recovered(n, t, n - 1)


@pytest.mark.parametrize(("n", "t"), EVERY)
def test_a_truthful_server_needs_t_colluders(n, t):
    """Nobody is away: b of everybody is revealed, and colluders have x of a party among themselves if they are t."""
    for c in range(n):
        honest = set(range(n - c))
        fallen = c >= t or honest == {0}
        assert (c > Recovery(t).tolerated(n, lies=False)) == fallen


def test_auto_tolerates_a_third():
    for n in range(2, 40):
        t = Recovery().needed(n)
        assert n // 2 < t <= n
        assert Recovery().tolerated(n) >= min(n // 3, n - 2), n
        assert 2 * t - n - 1 >= n // 3, n
        assert 2 * (t - 1) - n - 1 < -(-n // 3), n  # a smaller t would not do for all


# ---- the model's coalitions on the real code


@pytest.mark.parametrize(("n", "t"), [(n, t) for n, t in EVERY if 2 * t - n <= n - 2])
def test_two_stories_read_an_embedding_with_one_colluder_too_many_and_with_no_fewer(n, t):
    """No honest party is asked twice; it signs one set with itself in it, of at least t, called as it has masked."""
    enough = Recovery(t).tolerated(n) + 1
    assert two_stories(True, enough, {"threshold": t}, n) == 1.0
    with pytest.raises(RuntimeError, match=rf"signed the set .*, and {t} signatures are needed"):
        two_stories(True, enough - 1, {"threshold": t}, n)


def test_without_signatures_no_colluder_was_needed():
    """Shares of the survivors' and the lost ones' secrets, as they were answered before: one embedding, to the step."""
    for attack in (one_survivor, another_roster, many_stories):
        assert attack(False) == 1.0
        with pytest.raises((RuntimeError, ConfigurationError)):
            attack(True)


# ---- what a party refuses


def survivors(called=(0, 1, 2, 3), included=(0, 1, 2), round=3, stage="fit", session=b"s"):
    return Survivors(session, stage, round, tuple(called), tuple(included))


@pytest.mark.parametrize(
    ("told", "masked", "said"),
    [
        (survivors(), None, "it has sent no upload in this round"),
        (survivors(), (0, 1, 2), r"it masked with parties \(0, 1, 2\) and is told that \(0, 1, 2, 3\) were called"),
        (survivors(included=(1, 2, 3)), (0, 1, 2, 3), "is told that the upload is lost"),
        (survivors((0, 1, 2), (0, 1, 3)), (0, 1, 2), r"only \(0, 1, 2\) were called"),
        (survivors(included=(0, 1)), (0, 1, 2, 3), "at least 3 parties have to be"),
    ],
)
def test_sets_that_no_party_signs(told, masked, said):
    with pytest.raises(RuntimeError, match=f"party 0 signs no set of survivors of round 3: .*{said}"):
        told.refuse(0, masked, 3)
    survivors().refuse(0, (0, 1, 2, 3), 3)


def test_every_field_is_signed():
    """Of all statements over three parties and two rounds, stages and sessions no two have the same digest."""
    sets = [tuple(sorted(s)) for s in subsets(range(3))]
    every = [
        survivors(called, included, round, stage, session)
        for called, included in itertools.product(sets, repeat=2)
        for round, stage, session in itertools.product((1, 11), ("fit", "test"), (b"", b"1"))
    ]
    assert len({told.digest for told in every}) == len(every) == 64 * 8


@pytest.fixture(scope="module")
def signers():
    return {m: Signer() for m in range(4)}


def handed_on(signers, told, who):
    pieces = tuple(torch.frombuffer(bytearray(told.signed_by(signers[m])), dtype=torch.uint8) for m in who)
    return Message("survivor signatures", "server", tuple(who), pieces)


def test_t_signatures_of_one_set_are_enough_and_fewer_are_not(signers):
    verify, told = {m: signer.public for m, signer in signers.items()}, survivors()
    told.refuse_unsigned(0, handed_on(signers, told, (0, 1, 2)), verify, 3, range(4))
    for few in (None, handed_on(signers, told, ()), handed_on(signers, told, (0, 2))):
        with pytest.raises(RuntimeError, match=r"party 0 reveals nothing in round 3: .* and 3 signatures are needed"):
            told.refuse_unsigned(0, few, verify, 3, range(4))


@pytest.mark.parametrize(
    "other",
    [
        survivors(included=(0, 1, 2, 3)),
        survivors((0, 1, 2), (0, 1, 2)),
        survivors(round=4),
        survivors(stage="test"),
        survivors(session=b"t"),
    ],
)
def test_a_signature_of_something_else_is_refused_and_the_signer_named(signers, other):
    verify, told = {m: signer.public for m, signer in signers.items()}, survivors()
    signed = handed_on(signers, told, (0, 1))
    wrong = handed_on(signers, other, (2,))
    mixed = Message(signed.kind, "server", (0, 1, 2), (*signed.pieces, *wrong.pieces))
    with pytest.raises(RuntimeError, match="the signature of party 2 is not on the set"):
        told.refuse_unsigned(0, mixed, verify, 3, range(4))


def test_malformed_signatures_are_refused_and_the_signer_named(signers):
    verify, told = {m: signer.public for m, signer in signers.items()}, survivors()
    signed = handed_on(signers, told, (0, 1, 2))
    for piece in (signed.pieces[2][:63], signed.pieces[2].to(torch.int64), signed.pieces[2].view(8, 8), torch.zeros(0)):
        with pytest.raises(RuntimeError, match="the signature of party 2 is not on the set"):
            told.refuse_unsigned(0, replace(signed, pieces=(*signed.pieces[:2], piece)), verify, 3, range(4))
    for senders in ((0, 1, 1), (0, 1, 3), (0, 1, 7)):
        with pytest.raises(RuntimeError, match=f"it was handed a signature of party {senders[2]}, which is not among"):
            told.refuse_unsigned(0, replace(signed, senders=senders), verify, 3, range(4))


def test_a_party_answers_for_the_set_that_it_has_signed_and_for_no_other():
    """Signatures of a round are of no use in another, and a party that has not signed reveals nothing."""
    run = Parties(4, recovery={"threshold": 3})
    for m in range(4):
        run.upload(m, range(4))
    view, everybody = run.told(0, range(4), range(4))
    signed = [run.layer.consent(among(range(4), 4), run.told(m, range(4), range(4))[0]) for m in (1, 2, 3)]
    others = Message(signed[0].kind, "server", (1, 2, 3), tuple(message.pieces[0] for message in signed))
    with pytest.raises(RuntimeError, match="it has not signed the set"):
        run.layer.reveal(everybody, view, others)
    run.layer.consent(everybody, view)
    assert run.layer.reveal(everybody, view, others).senders == (0,)
    with pytest.raises(RuntimeError, match="it has signed"):
        run.layer.consent(among((0, 1, 2), 4), view)


# ---- round keys


def test_an_honest_round_of_parties_with_memories_of_their_own():
    """The messages alone suffice: every party's memory has heard the server's copies and nothing else."""
    run = Parties(4, recovery={"threshold": 3})
    uploads = [run.upload(m, range(4)) for m in range(4)]
    run.answer((0, 1, 2), range(4), (0, 1, 2))
    total = uploads[0] + uploads[1] + uploads[2]
    seeds = {m: run.secret(m, SELF) for m in (0, 1, 2)}
    publics = {m: run.views[0].memory.vault.public(m, 0) for m in (0, 1, 2)}
    unmask(total, seeds, {3: run.secret(3, MASKS)}, publics, 32, round_masks(NAMES, ROWS), 0)
    expected = sum(run.h[m].double() for m in (0, 1, 2))
    assert torch.equal(clear(total[0]) - 2 * 4.0, expected)


@pytest.mark.parametrize("victim", [0, 2])
def test_swapped_round_keys_are_refused_and_their_owner_named(victim):
    swapped = {m: Signer().public * 5 for m in range(3)}

    def tamper(kind, sender, receiver, sent):
        return swapped[sender] if (kind, sender, receiver) == ("round keys", 1, victim) else sent

    with pytest.raises(ValueError, match="the round keys of party 1 are refused"):
        Parties(3, tamper, recovery="auto")


def test_round_keys_cannot_be_replaced_after_they_have_been_checked():
    run = Parties(3, recovery="auto")
    view = run.views[0]
    again = Message("round keys", "peers", (1,), (torch.zeros(3, 160, dtype=torch.uint8),))
    with pytest.raises(ValueError, match="party 1 sent 'round keys' a second time"):
        run.aggregator.opening.accept(view.memory, again, view)
    with pytest.raises(ValueError, match="'round keys' of party 1 has shape"):
        run.aggregator.opening.accept(view.memory, replace(again, pieces=(again.pieces[0][:, 1:],)), view)
    with pytest.raises(ValueError, match="party 3 sent 'round keys', which only parties 0, 1, 2 may send"):
        run.aggregator.opening.accept(view.memory, replace(again, senders=(3,)), view)


def test_nothing_is_masked_under_round_keys_that_nothing_authenticates():
    run = Parties(3, recovery="auto")
    del run.views[0].memory.vault.shares[0, 2]
    with pytest.raises(RuntimeError, match="the seed shares of party 2 have not arrived"):
        run.upload(0, range(3))
    with pytest.raises(RuntimeError, match="party 1 sends no upload in round 0: 2 parties are called, and at least 3"):
        run.upload(1, (0, 1))
