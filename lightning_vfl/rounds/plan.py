"""A synchronous round, planned before it is computed: who is in, who learns, what is sent, how long it takes.

Everything follows from shapes, the faults' outcomes, the clock's speeds and two rules, so a plan is a pure function and
each rule has a closed form to be tested against.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from math import inf, isinf, nan

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks.flops import Work
from lightning_vfl.simulation.clock import VirtualClock, injected
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.types import Roll, Roster
from lightning_vfl.waiting import Fastest, WaitForAll, WaitingRule
from lightning_vfl.wire import Gate, Leg


@dataclass(frozen=True)
class RoundCosts:
    """What a round of so many rows costs when nothing goes wrong, in float64 seconds, (M,) unless said otherwise.

    Args:
        legs: the traffic of the parties.
        downlink: the server's answer; None: there is none.
        forward: a party's bottom, forward.
        backward: a party's bottom, backward.
        server: one number, all of the server's work.
        sending: for each leg, the time on the wire.
        encoding: for each leg, the work before sending.
        answering: the downlink's time on the wire.
        clock: whose speeds these are.
        updates: what the members of groups send the server of their bottoms, and the bottoms that they are sent back.
        updating: the time of those on the wire.
    """

    legs: tuple[Leg, ...]
    downlink: Leg | None
    forward: Tensor
    backward: Tensor
    server: float
    sending: tuple[Tensor, ...]
    encoding: tuple[Tensor, ...]
    answering: Tensor
    clock: VirtualClock
    updates: tuple[Leg, ...]
    updating: Tensor

    def sending_among(self, number: int, called: int) -> Tensor:
        """(M,) seconds on the wire of a leg in a round with so many called parties."""
        leg = self.legs[number]
        fewer = leg.among(called)
        return self.sending[number] if fewer is leg else self.clock.transfer(fewer)

    @classmethod
    def of(
        cls,
        legs: tuple[Leg, ...],
        downlink: Leg | None,
        rows: int,
        bottoms: Sequence[Work],
        top: Work,
        clock: VirtualClock,
        updates: tuple[Leg, ...] = (),
    ) -> "RoundCosts":
        """The costs of a round of ``rows`` records, whose networks are this work a record."""

        def seconds(flops: list[float]) -> Tensor:
            return clock.computing(torch.tensor(flops, dtype=torch.float64) * rows)

        nothing = torch.zeros(len(bottoms), dtype=torch.float64)
        answer = 0.0 if downlink is None else float(downlink.flops.sum())
        return cls(
            legs,
            downlink,
            seconds([work.forward for work in bottoms]),
            seconds([work.backward for work in bottoms]),
            clock.serving((top.forward + top.backward) * rows + answer),
            tuple(clock.transfer(leg) for leg in legs),
            tuple(clock.computing(leg.flops) for leg in legs),
            nothing if downlink is None else clock.transfer(downlink),
            clock,
            updates,
            sum((clock.transfer(leg) for leg in updates), start=nothing),
        )


@dataclass(frozen=True)
class RoundPlan:
    """What is going to happen in a round.

    Args:
        roll: who is what in the aggregate.
        learners: (M,) bool, whose bottom is updated: included, and reached by the server's answer.
        sent: for each leg (M,) bool, who puts its part on the wire, in time or late.
        answered: (M,) bool, to whom the server sends gradients.
        seconds: how long the round takes.
        skipped: nobody learns, not even the server; time and bytes are spent all the same.
        late: party -> seconds after the beginning at which its embedding comes, too late for this round, where late
            embeddings are kept.
    """

    roll: Roll
    learners: Tensor
    sent: tuple[Tensor, ...]
    answered: Tensor
    seconds: float
    skipped: bool
    late: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def learning(self) -> tuple[int, ...]:
        """The numbers of the learners."""
        return tuple(self.learners.nonzero().flatten().tolist())


def plan_round(
    costs: RoundCosts,
    rule: WaitingRule,
    policy: MissingPolicy,
    held: Tensor,
    forward: RoundOutcome,
    backward: RoundOutcome,
    stragglers: Tensor,
    needed: int = 1,
    takes_part: Callable[[Tensor, Tensor], Tensor] = lambda called, arrived: arrived,
    roster: Roster | None = None,
) -> RoundPlan:
    """One round under a waiting rule, a policy for the missing, and what goes wrong.

    Every round begins for all parties at once: a late party gives up its old round when it is called again. Delays are
    those of the forward request; the backward request says who hears the answer and whether the server is there to
    give one (DVFL appendix D.2: a failing host has called the parties and computes no gradients).

    Args:
        costs: of a faultless round.
        rule: closes the legs whose gate is ``Gate.RULE``; its patience holds for the others too.
        policy: what happens about the missing.
        held: (M,) bool, who holds at least one record of the batch; the others are not missed.
        forward: what happens on the way to the server.
        backward: what happens on the way back.
        stragglers: (M,) bool, who is known to be slow.
        needed: the fewest answers that the aggregator can decode.
        takes_part: of those who were called and whose upload has arrived, whose the aggregator can use.
        roster: whose groups learn together or not at all; None: everybody is a group.
    """
    nobody = torch.zeros_like(held)
    called = held & rule.calls(forward.announced, stragglers)
    called = takes_part(called, called)
    if policy.plan(held, called) is None:  # known before anybody is called: nothing is spent
        return RoundPlan(Roll(nobody, nobody, nobody, nobody), nobody, (nobody,) * len(costs.legs), nobody, 0.0, True)

    seconds = 0.0
    sent: list[Tensor] = []
    asked, included = called, nobody
    ready = costs.forward
    for number, leg in enumerate(costs.legs):
        if leg.gate == Gate.PREVIOUS:  # its work and its bytes are in those of the leg that it travels with
            sent.append(sent[-1])
            continue
        speaks = asked & forward.sends
        reached = int(called.sum())
        encoding, sending = costs.encoding[number], costs.sending_among(number, reached)
        for with_it in takewhile(lambda n: costs.legs[n].gate == Gate.PREVIOUS, range(number + 1, len(costs.legs))):
            encoding, sending = encoding + costs.encoding[with_it], sending + costs.sending_among(with_it, reached)
        arrivals = (ready + encoding) * forward.slowdown + injected(leg, forward) + sending
        arrivals = arrivals.where(speaks & forward.links[:, 0], inf).where(asked, nan)
        asked, when = _close(leg, rule, arrivals, needed)
        sent.append(speaks)
        seconds += when
        if number == 0:
            asked = included = takes_part(called, asked)
        ready = torch.zeros_like(ready)
    filled = policy.plan(held, included)
    roll = Roll(called, included, asked, nobody if filled is None else filled)

    short = not bool(included.any()) or int(asked.sum()) < needed
    if short or filled is None or not bool(backward.hosts[0]):
        return RoundPlan(roll, nobody, tuple(sent), nobody, seconds, True)
    learners = included & backward.receives & backward.links[:, 0]
    if roster is not None:  # whoever of a group holds nothing of the batch has nothing to say either
        learners = learners & roster.whole(learners | ~held)
    back = (costs.answering + costs.backward * backward.slowdown + costs.updating).where(learners, 0.0)
    seconds += costs.server + float(back.max())
    return RoundPlan(roll, learners, tuple(sent), included, seconds, False)


def plan_faultless(costs: RoundCosts, roster: Roster) -> RoundPlan:
    """A round of everybody in which nothing goes wrong."""
    nothing, everybody = RoundOutcome.nothing(roster), torch.ones(roster.parties, dtype=torch.bool)
    return plan_round(costs, WaitForAll(), Exclude(), everybody, nothing, nothing, ~everybody)


def _close(leg: Leg, rule: WaitingRule, arrivals: Tensor, needed: int) -> tuple[Tensor, float]:
    """Who is in when the leg's gate closes, and when; a leg that would never close ends with its last arrival."""
    if leg.gate != Gate.RULE:
        rule = Fastest(leg.gate, rule.patience) if isinstance(leg.gate, int) else WaitForAll(rule.patience)
    who, when = rule.close(arrivals, needed)
    if isinf(when):
        when = float(arrivals.nan_to_num(nan=0.0, posinf=0.0).max())
    return who, when


def check_pair(
    rule: WaitingRule,
    policy: MissingPolicy,
    silent: bool,
    stragglers: Tensor,
    needed: int = 1,
    first_gate: Gate | int = Gate.RULE,
    loses_quietly: bool = True,
) -> None:
    """Refuse a waiting rule and a policy that cannot train together.

    ``first_gate`` closes the first leg, and so decides which parties are in: with ``Gate.ALL``, a party that is late in
    a later leg is in.
    ``loses_quietly``: uploads can be used where one that was expected is missing.

    Raises:
        ConfigurationError: before training, with the way out.
    """
    parties = len(stragglers)
    rule.check(stragglers, silent)
    if rule.leaves_out and not loses_quietly:
        raise ConfigurationError(
            f"{rule} goes on without some of those who were called, but their masks are in the uploads of the others "
            "and would not cancel: the set has to be known before masking; use WaitForAll (absences that are announced "
            "are no obstacle), recovery, or layout: segments, where a late group vanishes alone"
        )
    called = rule.calls(torch.ones(parties, dtype=torch.bool), stragglers)
    included = min(int(called.sum()), rule.fewest(parties, needed) if first_gate == Gate.RULE else parties)
    if policy.plan(torch.ones(parties, dtype=torch.bool), torch.arange(parties) < included) is None:
        raise ConfigurationError(
            f"{rule} leaves somebody out of every round and {type(policy).__name__} discards such rounds, so nothing "
            "would be learnt; use WaitForAll or Deadline, or missing: Exclude"
        )
    most = min(int(called.sum()), rule.fewest(parties, needed))
    if called.any() and most < needed:
        raise ConfigurationError(
            f"{rule} ends a round with {most} answers, and the aggregator needs {needed} to decode; use Threshold, or "
            "fewer blocks"
        )
    if not called.any():
        raise ConfigurationError(f"{rule} would call nobody: all {parties} parties are stragglers; lower their share")
