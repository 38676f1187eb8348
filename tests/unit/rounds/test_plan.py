"""Rounds planned against closed forms, one for each waiting rule, and who learns in them."""

import dataclasses

import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, Skip, Stale, Zeros
from lightning_vfl.networks.flops import Work
from lightning_vfl.rounds.plan import RoundCosts, check_pair, plan_round
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.types import Roster
from lightning_vfl.waiting import Deadline, Fastest, Ignore, Threshold, WaitForAll
from lightning_vfl.wire import Leg

M, ROWS, WIDTH = 4, 10, 25
ROSTER = Roster.singles(M)
NOTHING = RoundOutcome.nothing(ROSTER)
# 1000 bytes at 1 MB/s: 1 ms up, 1 ms down; bottoms 10 ms forward and 20 ms back; the server 5 ms
CLOCK = VirtualClock(bandwidth=8e6, speed=1e6, server_speed=2e6)
UP, DOWN, FORWARD, BACKWARD, SERVER = 1e-3, 1e-3, 10e-3, 20e-3, 5e-3


def costs(*legs):
    elements, none = torch.full((M,), ROWS * WIDTH), torch.zeros(M).double()
    up = legs or (Leg("embeddings", "server", elements, 32, none),)
    down = Leg("gradients", "parties", elements, 32, none)
    return RoundCosts.of(up, down, ROWS, [Work(1000, 2000)] * M, Work(400, 600), CLOCK)


def outcome(**changes):
    seconds = ("delay", "slowdown")
    return dataclasses.replace(
        NOTHING, **{k: torch.tensor(v, dtype=torch.float64 if k in seconds else None) for k, v in changes.items()}
    )


def plan(rule=None, policy=None, forward=NOTHING, backward=NOTHING, held=(1, 1, 1, 1), slow=(0, 0, 0, 0), needed=1):
    held, slow = (torch.tensor(x, dtype=torch.bool) for x in (held, slow))
    return plan_round(costs(), rule or WaitForAll(), policy or Exclude(), held, forward, backward, slow, needed)


def who(mask):
    return mask.nonzero().flatten().tolist()


LATE = outcome(delay=[0.0, 0.4, 0.1, 0.2])
REST = SERVER + DOWN + BACKWARD


@pytest.mark.parametrize(
    ("rule", "included", "closes"),
    [
        (WaitForAll(), [0, 1, 2, 3], 0.4 + FORWARD + UP),
        (WaitForAll(timeout=0.25), [0, 2, 3], 0.25),
        (Fastest(2), [0, 2], 0.1 + FORWARD + UP),
        (Fastest(4), [0, 1, 2, 3], 0.4 + FORWARD + UP),
        (Deadline(0.15), [0, 2], 0.15),
        (Deadline(9.0), [0, 1, 2, 3], 0.4 + FORWARD + UP),
        (Threshold(), [0], FORWARD + UP),
        (Ignore(), [0, 2], 0.1 + FORWARD + UP),
    ],
)
def test_the_time_of_a_round_has_a_closed_form(rule, included, closes):
    done = plan(rule, forward=LATE, slow=(0, 1, 0, 1))
    assert who(done.roll.included) == who(done.learners) == included
    assert done.seconds == pytest.approx(closes + REST, rel=1e-12)
    assert not done.skipped


def test_everything_sent_is_counted_late_uploads_too():
    done = plan(Fastest(2), forward=LATE)
    assert [who(sent) for sent in done.sent] == [[0, 1, 2, 3]]
    assert who(done.answered) == [0, 2]
    assert who(plan(Ignore(), forward=LATE, slow=(0, 1, 0, 0)).sent[0]) == [0, 2, 3]


def test_a_slow_machine_computes_longer_and_sends_as_fast():
    slow = outcome(slowdown=[1.0, 3.0, 1.0, 1.0])
    done = plan(forward=slow, backward=slow)
    assert done.seconds == pytest.approx(3 * FORWARD + UP + SERVER + DOWN + 3 * BACKWARD, rel=1e-12)


def test_an_announced_absence_is_not_waited_for_and_a_silent_one_costs_the_timeout():
    announced = plan(WaitForAll(timeout=1.0), forward=outcome(announced=[True, False, True, True]))
    assert announced.seconds == pytest.approx(FORWARD + UP + REST)
    assert who(announced.roll.called) == who(announced.sent[0]) == [0, 2, 3]
    silent = plan(WaitForAll(timeout=1.0), forward=outcome(sends=[True, False, True, True]))
    assert silent.seconds == pytest.approx(1.0 + REST)
    assert who(silent.roll.called) == [0, 1, 2, 3]
    assert who(silent.sent[0]) == who(silent.roll.included) == [0, 2, 3]


def test_a_dead_link_swallows_what_was_sent():
    done = plan(WaitForAll(timeout=1.0), forward=outcome(links=[[True], [True], [False], [True]]))
    assert who(done.sent[0]) == [0, 1, 2, 3]
    assert who(done.roll.included) == [0, 1, 3]


@pytest.mark.parametrize(
    "lost", [{"receives": [True, False, True, True]}, {"links": [[True], [False], [True], [True]]}]
)
def test_whoever_does_not_hear_the_answer_counts_and_does_not_learn(lost):
    done = plan(backward=outcome(**lost))
    assert who(done.roll.included) == who(done.answered) == [0, 1, 2, 3]
    assert who(done.learners) == [0, 2, 3]
    assert done.learning == (0, 2, 3)


def test_a_dead_server_has_called_the_parties_and_nobody_learns():
    done = plan(backward=outcome(hosts=[False]))
    assert done.skipped
    assert who(done.sent[0]) == [0, 1, 2, 3]
    assert who(done.answered) == who(done.learners) == []
    assert done.seconds == pytest.approx(FORWARD + UP)


def test_skip_gives_up_a_round_with_anybody_missing():
    silent = plan(WaitForAll(timeout=1.0), Skip(), forward=outcome(sends=[True, False, True, True]))
    assert silent.skipped
    assert silent.seconds == 1.0
    assert who(silent.sent[0]) == [0, 2, 3]
    known = plan(WaitForAll(), Skip(), forward=outcome(announced=[True, False, True, True]))
    assert known.skipped
    assert known.seconds == 0.0
    assert who(known.sent[0]) == []
    assert not plan(WaitForAll(), Skip()).skipped


def test_who_holds_no_row_is_not_missed():
    done = plan(WaitForAll(), Skip(), held=(1, 1, 0, 1))
    assert not done.skipped
    assert who(done.learners) == [0, 1, 3]
    assert who(plan(WaitForAll(), Zeros(), held=(1, 1, 0, 1)).roll.filled) == []


@pytest.mark.parametrize(("policy", "filled"), [(Exclude(), []), (Zeros(), [1, 3]), (Stale(), [1, 3])])
def test_who_stands_in(policy, filled):
    roll = plan(Fastest(2), policy, forward=LATE).roll
    assert who(roll.filled) == filled
    assert not (roll.filled & roll.included).any()


def test_a_round_with_nobody_or_too_few_is_given_up():
    nobody = plan(Deadline(0.05), forward=outcome(delay=[1.0] * 4))
    assert nobody.skipped
    assert nobody.seconds == 0.05
    assert plan(WaitForAll(timeout=1.0), forward=outcome(sends=[True, False, False, False]), needed=2).skipped
    away = plan(WaitForAll(), forward=outcome(announced=[False] * 4))
    assert away.skipped
    assert away.seconds == 0.0


def test_the_legs_of_a_round_follow_each_other():
    """Shares to the peers, all of them, with a tenth of the peers' delay; then the first two sums."""
    elements, none = torch.full((M,), ROWS * WIDTH), torch.zeros(M).double()
    shares = Leg("shares", "peers", elements, 32, torch.full((M,), 3000.0), gate="all", delay_share=0.1)
    sums = Leg("sums", "server", elements, 32, none, gate=2)
    late = dataclasses.replace(LATE, peer_delay=torch.tensor([0.0, 0.0, 0.0, 5.0]).double())
    done = plan_round(
        costs(shares, sums),
        WaitForAll(),
        Exclude(),
        torch.ones(M, dtype=torch.bool),
        late,
        NOTHING,
        torch.zeros(M).bool(),
    )
    first, second = FORWARD + 3e-3 + 0.5 + UP, 0.1 + UP
    assert who(done.roll.included) == [0, 1, 2, 3]
    assert who(done.roll.responders) == [0, 2]
    assert done.seconds == pytest.approx(first + second + REST)


ALL = [WaitForAll(), WaitForAll(1.0), Fastest(M), Fastest(2), Deadline(1.0), Threshold(), Ignore()]


@pytest.mark.filterwarnings("ignore:Ignore leaves out no party")
@pytest.mark.parametrize("rule", ALL, ids=repr)
@pytest.mark.parametrize("policy", [Exclude(), Zeros(), Stale(), Skip()], ids=repr)
@pytest.mark.parametrize("slow", [(0, 0, 0, 0), (0, 1, 0, 1)])
def test_a_pair_that_would_discard_every_round_is_refused(rule, policy, slow):
    """Against the plans themselves: without faults a pair either trains or is refused."""
    stragglers = torch.tensor(slow, dtype=torch.bool)
    if plan(rule, policy, slow=slow).skipped:
        with pytest.raises(ConfigurationError, match="use WaitForAll or Deadline"):
            check_pair(rule, policy, silent=False, stragglers=stragglers)
    else:
        check_pair(rule, policy, silent=False, stragglers=stragglers)


def test_the_server_gives_up_by_the_deadline_on_a_leg_that_waits_for_all():
    """It cannot know that a silently lost share will never come."""
    elements, none = torch.full((M,), ROWS * WIDTH), torch.zeros(M).double()
    legs = (Leg("shares", "peers", elements, 32, none, gate="all"), Leg("sums", "server", elements, 32, none))
    lost = outcome(sends=[True, False, True, True])
    held = torch.ones(M, dtype=torch.bool)
    for rule, seconds in ((Deadline(0.5), 0.5), (WaitForAll(timeout=0.75), 0.75)):
        done = plan_round(costs(*legs), rule, Exclude(), held, lost, NOTHING, ~held)
        assert who(done.roll.included) == [0, 2, 3]
        assert done.seconds == pytest.approx(seconds + UP + SERVER + DOWN + BACKWARD)


def test_a_rule_that_ends_with_fewer_answers_than_can_be_decoded_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"Fastest\(n=2.* ends a round with 2 answers, but .* needs 3 answers to decode"
    ):
        check_pair(Fastest(2), Exclude(), silent=False, stragglers=torch.zeros(M).bool(), needed=3)
    with pytest.raises(ConfigurationError, match="ends a round with 2 answers"):
        check_pair(Ignore(), Exclude(), silent=False, stragglers=torch.tensor([1, 0, 0, 1]).bool(), needed=3)


def test_ignoring_everybody_is_refused():
    with pytest.raises(ConfigurationError, match="calls no party"):
        check_pair(Ignore(), Exclude(), silent=False, stragglers=torch.ones(M, dtype=torch.bool))
