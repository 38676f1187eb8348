"""The plan of a synchronous round, made before any computation: who is included, who learns, the traffic, the seconds.

A plan is a pure function of shapes, the outcomes of faults, the speeds of the clock, a waiting rule and a policy. The
tests compare each rule with a closed form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from math import inf, isfinite, nan
from typing import Protocol

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy, refuse_broken_policy
from lightning_vfl.networks.flops import Work
from lightning_vfl.simulation.clock import VirtualClock, injected
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.types import Parties, Roll, Roster, Tensors, numbers_in
from lightning_vfl.waiting import Fastest, WaitForAll, WaitingRule, refuse_broken_rule
from lightning_vfl.wire import Gate, Leg


@dataclass(frozen=True)
class RoundCosts:
    """The costs of a round without faults. Times are float64 seconds, (M,) unless stated otherwise.

    Args:
        legs: the traffic of the parties.
        downlink: the server's answer; None: there is none.
        forward: the forward pass of each party's bottom.
        backward: the backward pass of each party's bottom.
        server: one number, all work of the server.
        sending: for each leg, the transfer time.
        encoding: for each leg, the computation before sending.
        answering: the transfer time of the downlink.
        clock: the clock with the speeds of parties and links.
        updates: what learners and the server send after the answer: model updates of groups and shared bottoms.
        updating: the time of ``updates`` at parties and on links.
        cut: what goes from the server's half of a top to the active party's, and back, between aggregate and answer.
    """

    legs: tuple[Leg, ...]
    downlink: Leg | None
    forward: Tensor
    backward: Tensor
    server: float
    sending: Tensors
    encoding: Tensors
    answering: Tensor
    clock: VirtualClock
    updates: tuple[Leg, ...]
    updating: Tensor
    cut: tuple[Leg, ...] = ()

    def sending_among(self, number: int, called: int) -> Tensor:
        """(M,) seconds, the transfer time of leg ``number`` in a round with ``called`` called parties."""
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
        cut: tuple[Leg, ...] = (),
    ) -> "RoundCosts":
        """The costs of a round of ``rows`` records, from the networks' work for one record."""

        def seconds(flops: list[float]) -> Tensor:
            return clock.computing(torch.tensor(flops, dtype=torch.float64) * rows)

        nothing = torch.zeros(len(bottoms), dtype=torch.float64)
        at_server = sum(top) * rows
        if downlink is not None:
            at_server += float(downlink.flops.sum())
        updating = sum((clock.transfer(leg) for leg in updates), start=nothing)
        for leg in updates:
            if leg.to == "parties":  # computed by the server
                at_server += float(leg.flops.sum())
            else:
                updating = updating + clock.computing(leg.flops)
        return cls(
            legs=legs,
            downlink=downlink,
            forward=seconds([work.forward for work in bottoms]),
            backward=seconds([work.backward for work in bottoms]),
            server=clock.serving(at_server),
            sending=tuple(clock.transfer(leg) for leg in legs),
            encoding=tuple(clock.computing(leg.flops) for leg in legs),
            answering=nothing if downlink is None else clock.transfer(downlink),
            clock=clock,
            updates=updates,
            updating=updating,
            cut=cut,
        )

    def crossing(self, slowdown: Tensor) -> float:
        """The seconds until the gradients of the cut are back, from the (M,) slowdown of the parties."""
        legs = [self.clock.transfer(leg) + self.clock.computing(leg.flops) * slowdown for leg in self.cut]
        return sum(float(seconds.max()) for seconds in legs)


@dataclass(frozen=True)
class RoundPlan:
    """The plan of a round.

    Args:
        roll: the role of each party in the aggregate.
        learners: (M,) bool, the parties whose bottoms learn: included, and reached by the server's answer.
        sent: for each leg (M,) bool, the parties that send their part, in time or late.
        answered: (M,) bool, the parties to which the server sends gradients.
        seconds: the duration of the round.
        skipped: the round is given up: no network learns, not even the top, but time and bytes are counted.
        late: party -> seconds after the beginning at which its late embedding arrives, if late embeddings are stored.
    """

    roll: Roll
    learners: Tensor
    sent: Tensors
    answered: Tensor
    seconds: float
    skipped: bool
    late: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def reached(self) -> int:
        """How many parties are called."""
        return int(self.roll.called.sum())

    @cached_property
    def learning(self) -> Parties:
        """The numbers of the learners."""
        return tuple(numbers_in(self.learners))


class Plans(Protocol):
    """Rounds that have happened."""

    def plan(self, number: int, legs: int) -> RoundPlan:
        """The plan of a training round with so many legs."""
        ...


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
    """Plan one round under a waiting rule, a policy for missing embeddings, and the faults.

    Every round begins for all parties at once: a late party gives up its old round when it is called again. Delays come
    from the forward request. The backward request decides which parties receive the answer, and whether the server is
    up to send one (DVFL appendix D.2: a failing host has called the parties but computes no gradients).

    Args:
        costs: the costs of a faultless round.
        rule: the waiting rule; closes the legs whose gate is ``Gate.RULE``; its patience applies to all legs.
        policy: the policy for missing embeddings.
        held: (M,) bool, the parties that hold at least one record of the batch; other parties do not count as missing.
        forward: the outcome of the request for embeddings.
        backward: the outcome of the request that sends the gradients.
        stragglers: (M,) bool, the known stragglers.
        needed: the smallest number of answers that the aggregator can decode.
        takes_part: (called, arrived) -> the parties whose uploads the aggregator can use.
        roster: all parties of a group of the roster learn, or none; None: every party is a group.
    """
    nobody = torch.zeros_like(held)
    called = held & rule.calls(forward.announced, stragglers)
    called = takes_part(called, called)
    if policy.plan(held, called) is None:  # given up before any call: no time and no bytes
        return RoundPlan(Roll(nobody, nobody, nobody, nobody), nobody, (nobody,) * len(costs.legs), nobody, 0.0, True)

    seconds = 0.0
    sent: list[Tensor] = []
    asked = called
    included = nobody
    ready = costs.forward
    for number, leg in enumerate(costs.legs):
        if leg.gate == Gate.PREVIOUS:  # sent with the leg before it, whose work and time include this leg's
            sent.append(sent[-1])
            continue
        speaks = asked & forward.sends
        reached = int(called.sum())
        encoding = costs.encoding[number]
        sending = costs.sending_among(number, reached)
        for with_it in takewhile(lambda n: costs.legs[n].gate == Gate.PREVIOUS, range(number + 1, len(costs.legs))):
            encoding = encoding + costs.encoding[with_it]
            sending = sending + costs.sending_among(with_it, reached)
        arrivals = (ready + encoding) * forward.slowdown + injected(leg, forward) + sending
        arrivals = arrivals.where(speaks & forward.links[:, 0], inf).where(asked, nan)
        asked, when = close_leg(leg, rule, arrivals, needed)
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
    if roster is not None:  # members of a group that hold no record of the batch do not count
        learners = learners & roster.whole(learners | ~held)
    back = (costs.answering + costs.backward * backward.slowdown + costs.updating).where(learners, 0.0)
    seconds += costs.server + costs.crossing(backward.slowdown) + float(back.max())
    return RoundPlan(roll, learners, tuple(sent), included, seconds, False)


def close_leg(leg: Leg, rule: WaitingRule, arrivals: Tensor, needed: int, waits: bool = False) -> tuple[Tensor, float]:
    """The parties that arrive before the leg's gate closes, and the closing time.

    A leg that would never close ends with its last arrival, if all called parties arrive. If the server ``waits``, the
    others may still come, and the closing time is infinite.

    Raises:
        ConfigurationError: if a party never comes and would be waited for without end.
    """
    who, when = rule_of(leg, rule).close(arrivals, needed)
    if isfinite(when):
        return who, when
    lost = numbers_in(arrivals.isinf())
    if not lost:
        return who, float(arrivals.nan_to_num(nan=0.0).max())
    if not waits:
        raise ConfigurationError(
            f"'{leg.kind}' of party {lost[0]} is lost without notice, and {rule} would wait for it for ever; return "
            "True from `silent` of the fault model, and give the waiting rule a timeout in seconds"
        )
    return who, when


def rule_of(leg: Leg, rule: WaitingRule) -> WaitingRule:
    """The rule that closes a leg: that of the recipe, unless the leg has a gate of its own."""
    if leg.gate == Gate.RULE:
        return rule
    return Fastest(leg.gate, rule.patience) if isinstance(leg.gate, int) else WaitForAll(rule.patience)


def check_pair(
    rule: WaitingRule,
    policy: MissingPolicy,
    silent: bool,
    stragglers: Tensor,
    needed: int = 1,
    first_gate: Gate | int = Gate.RULE,
    loses_quietly: bool = True,
) -> None:
    """Refuse a waiting rule and a policy that cannot be combined.

    ``first_gate``: the gate of the first leg, which decides the included parties. With ``Gate.ALL``, a party that is
    late in a later leg is included.
    ``loses_quietly``: whether the aggregator can use the uploads if an expected upload is missing.

    Raises:
        ConfigurationError: before training, naming settings that work.
    """
    parties = len(stragglers)
    rule.check(stragglers, silent)
    refuse_broken_rule(rule, parties, needed)
    if rule.leaves_out and not loses_quietly:
        raise ConfigurationError(
            f"{rule} leaves out called parties, but their masks are in the other uploads and would not cancel; use "
            "WaitForAll (announced absences are allowed), recovery, or layout: segments (a late group is left out as a "
            "whole)"
        )
    called = rule.calls(torch.ones(parties, dtype=torch.bool), stragglers)
    included = min(int(called.sum()), rule.fewest(parties, needed) if first_gate == Gate.RULE else parties)
    refuse_broken_policy(policy, parties)
    planned = policy.plan(torch.ones(parties, dtype=torch.bool), torch.arange(parties) < included)
    if planned is None:
        raise ConfigurationError(
            f"{rule} leaves out a party in every round and {type(policy).__name__} gives up such rounds, so no network "
            "would learn; use WaitForAll or Deadline, or missing: Exclude"
        )
    most = min(int(called.sum()), rule.fewest(parties, needed))
    if called.any() and most < needed:
        raise ConfigurationError(
            f"{rule} ends a round with {most} answers, but the aggregator needs {needed} answers to decode; use "
            "Threshold, or fewer blocks"
        )
    if not called.any():
        raise ConfigurationError(f"{rule} calls no party: all {parties} parties are stragglers; lower their share")
