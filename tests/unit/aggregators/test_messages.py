"""What the checks of messages say and let pass; that every aggregator calls them is held by test_malformed.py."""

from dataclasses import replace

import pytest
import torch

from lightning_vfl.aggregators import LagrangeCoded, Mean
from lightning_vfl.aggregators.messages import check_message, gradients_in, refuse_infinite, refuse_outside
from lightning_vfl.aggregators.secure.recovery import reconstruct, share
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.missing import Stale
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Message, PartyView, ServerView
from tests.unit.aggregators.sides import decoded

NAMES = RoundNames(0, Stage.FIT, 3)
SHAPES = dict.fromkeys(range(3), (2, 3))


def message(**changes):
    pieces = tuple(torch.full((2, 3), float(m)) for m in range(3))
    return replace(Message("embeddings", "server", (0, 1, 2), pieces, round=NAMES), **changes)


def check(given, **settings):
    check_message(given, "embeddings", "server", SHAPES, None, NAMES, **settings)


def test_a_message_that_does_not_name_its_round_is_taken():
    check(message(round=None), required=3)
    for other in (NAMES._replace(round=2), NAMES._replace(stage=Stage.TEST), NAMES._replace(seed=1)):
        with pytest.raises(MalformedMessage, match=r"parties 0, 1, 2 sent 'embeddings' of round \d of .*, but this is"):
            check(message(round=other))


def test_an_error_says_what_was_given_and_what_is_due():
    wide = torch.zeros(2, 4)
    with pytest.raises(MalformedMessage) as error:
        check(message(pieces=(torch.zeros(2, 3), wide, torch.zeros(2, 3))))
    assert str(error.value) == (
        "'embeddings' of party 1 has shape (2, 4) where (2, 3) was expected; all must run the same recipe"
    )
    with pytest.raises(
        MalformedMessage, match=r"'embeddings' of party 0 is torch.float64 where torch.float32 was expected"
    ):
        check(message(pieces=(torch.zeros(2, 3).double(), torch.zeros(2, 3), torch.zeros(2, 3))))


def test_who_has_to_be_there():
    few = message(senders=(0, 2), pieces=(torch.zeros(2, 3),) * 2)
    check(few, required=2)
    check(few, required=(0, 2))
    with pytest.raises(MalformedMessage, match="'embeddings' of party 1 is missing"):
        check(few, required=(0, 1))
    with pytest.raises(MalformedMessage, match="2 of 3 needed 'embeddings' have come, and those of party 1 have not"):
        check(few, required=3)


def test_large_numbers_are_not_infinite():
    """Their sum is."""
    refuse_infinite(message(pieces=(torch.full((2, 3), 3e38),) * 3))
    with pytest.raises(MalformedMessage, match="party 2 holds NaN"):
        refuse_infinite(message(pieces=(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0.0, float("nan")]))))


@pytest.mark.parametrize("wrong", [-1, 11, 2**62, -(2**63)])
def test_numbers_outside_the_field_are_their_senders(wrong):
    pieces = torch.zeros(3, 4, dtype=torch.int64)
    refuse_outside(pieces, (5, 6, 7), "shares", 11)
    refuse_outside(pieces[:, :0], (5, 6, 7), "shares", 11)
    pieces[1, 2] = wrong
    with pytest.raises(MalformedMessage, match=r"'shares' of party 6 holds numbers outside \[0, 11\)"):
        refuse_outside(pieces, (5, 6, 7), "shares", 11)


def test_reconstruction_names_the_holders():
    shares = share([bytes(32)], 2, 3)
    assert reconstruct(shares[:2], (0, 1), 2, 3) == [bytes(32)]
    with pytest.raises(MalformedMessage, match="party 1 holds numbers outside"):
        reconstruct(torch.stack([shares[0], shares[1] - 2**31]), (0, 1), 2, 3)
    with pytest.raises(MalformedMessage, match=r"what parties \[0, 1\] have revealed is wrong"):
        reconstruct(torch.stack([shares[0], (shares[1] + 2**29) % (2**31 - 1)]), (0, 1), 2, 3)
    with pytest.raises(ConfigurationError, match="cannot be told apart"):
        reconstruct(shares[[0, 0]], (0, 0), 2, 3)


def test_what_a_policy_puts_in_keeps_its_round():
    """And what stands in is accepted."""
    here = torch.tensor([True, False, True])
    roll = Roll(torch.ones(3, dtype=torch.bool), here, here, ~here)
    rows, policy = Rows(torch.arange(2), 0, 2), Stale()
    view = ServerView(NAMES, Roster.singles(3), rows, roll, (3, 3, 3))
    policy.memory.prepare(2, (3, 3, 3), torch.device("cpu"))
    arrived = message(senders=(0, 2), pieces=(torch.zeros(2, 3), torch.ones(2, 3)))
    filled = policy.stand_in.fill(arrived, view)
    assert (filled.senders, filled.round) == ((0, 2, 1), NAMES)
    assert decoded(Mean(), (filled,), view).value.mean() == pytest.approx(1 / 3)
    with pytest.raises(MalformedMessage, match="party 2 is missing"):
        decoded(Mean(), (message(senders=(0, 1), pieces=(torch.zeros(2, 3),) * 2),), view)


def test_an_answer_of_the_server_that_does_not_fit_is_refused():
    view = PartyView(NAMES, Roster.singles(3), (0, 2), torch.ones(3).bool(), Rows(torch.arange(2), 0, 2))
    leaves = (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64))
    pieces = (torch.ones(2, 3), torch.full((2, 3), 2.0))
    answer = Message("gradients", "parties", (), pieces, receivers=(1, 2), round=NAMES)
    first, second = gradients_in(answer, leaves, view)
    assert not first.any()
    assert torch.equal(second, torch.full((2, 3), 2.0, dtype=torch.float64))
    for wrong, said in (
        ({"kind": "embeddings"}, "the server sent 'embeddings' to parties where 'gradients' to parties were expected"),
        ({"to": "peers"}, "the server sent 'gradients' to peers"),
        ({"round": NAMES._replace(round=2)}, "were expected in round 3"),
        ({"receivers": (1, 1)}, "2 'gradients' to parties 1, 1; each party gets one"),
        ({"receivers": (2,)}, "2 'gradients' to party 2"),
        ({"receivers": None}, "2 'gradients' to no party"),
        (
            {"pieces": (pieces[0], pieces[1][:1])},
            r"party 2 are torch.float32 of shape \(1, 3\) where .* shape \(2, 3\)",
        ),
        ({"pieces": (pieces[0], pieces[1].long())}, "party 2 are torch.int64"),
    ):
        with pytest.raises(MalformedMessage, match=said):
            gradients_in(replace(answer, **wrong), leaves, view)


def test_where_wrong_answers_are_corrected_a_number_outside_the_field_is_one():
    from .test_lagrange_coded import Parties

    parties = Parties([1] * 5, [1] * 5, 6)
    aggregator = LagrangeCoded(blocks=1, privacy=1, wrong=1)
    ids = torch.arange(6)
    sent, server = parties.uploads(aggregator, ids)
    honest = decoded(aggregator, (sent,), server)
    sent.pieces[3][0, 0] = -(2**63)
    aggregate = decoded(aggregator, (sent,), server)
    assert aggregate.corrected == (3,)
    assert torch.equal(aggregate.value, honest.value)
