"""The plan of an active party's period, made before any computation: who answers, who learns, and its duration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.networks.flops import Work
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan
from lightning_vfl.simulation.clock import VirtualClock, injected
from lightning_vfl.simulation.faults import Faults, RoundOutcome
from lightning_vfl.types import Roster
from lightning_vfl.wire import Gate, Leg

IDS, ID_BITS = "record ids", 64

Rounds = Callable[[RoundCosts, Tensor, RoundOutcome, RoundOutcome, Callable[[Tensor, Tensor], Tensor]], RoundPlan]


class Networks(NamedTuple):
    """The sizes that determine an event's costs: FLOPs of a record, and numbers in the top."""

    bottoms: list[Work]
    top: Work
    top_size: int
    widths: tuple[int, ...]


@dataclass(frozen=True)
class EventPlan:
    """The plan of a period.

    Args:
        round: the collection and the delivery; its seconds are the time from START to END.
        there: whether the active party is present; if it is absent, the period is idle.
        steps: whether the collaborator receives the top's gradient and steps.
        returns: whether the active party receives the new top.
    """

    round: RoundPlan
    there: bool
    steps: bool
    returns: bool

    @property
    def changes(self) -> bool:
        """Whether any network learns."""
        return bool(self.round.learning) or self.steps


class EventPlanner:
    """Costs and outcomes of periods, each for the active party that receives the embeddings.

    Messages from the active party to itself have no traffic. A slow active party is slower in computing and in sending,
    and its period is longer by the same factor.

    Args:
        aggregator: joins the embeddings.
        roster: the parties.
        networks: the sizes of the networks.
        clock: converts bytes and FLOPs into seconds.
        faults: the faults; event c makes the requests 2c (collect) and 2c + 1 (deliver) of all parties.
        rounds: plans a collection under the protocol's waiting rule and policy.
        slower: active party -> share s by which it is slower; its periods are 1 / (1 - s) times as long.
        amplifies: the active parties that receive the regularisers and send a factor.
        keeps_late: whether late embeddings are stored and their senders receive an answer.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        roster: Roster,
        networks: Networks,
        clock: VirtualClock,
        faults: Faults,
        rounds: Rounds,
        slower: Mapping[int, float],
        amplifies: frozenset[int],
        keeps_late: bool,
    ) -> None:
        self.aggregator, self.roster, self.networks, self.clock, self.faults = (
            aggregator,
            roster,
            networks,
            clock,
            faults,
        )
        self.wire = wire_of(aggregator)
        self.rounds, self.slower, self.amplifies, self.keeps_late = rounds, slower, amplifies, keeps_late
        self._costs: dict[tuple[int, int], RoundCosts] = {}
        self._ids: dict[tuple[int, int], Leg] = {}
        self._top_legs: dict[int, tuple[Leg, Leg]] = {}
        self._openings: dict[tuple[int, int], float] = {}
        self._faultless: dict[tuple[int, int, float], EventPlan] = {}
        parties = range(roster.parties)  # a stretch is exactly 20 for 0.95, not 19.999
        self._stretch = {party: float(1 / (1 - Fraction(str(slower.get(party, 0.0))))) for party in parties}

    def plan(self, number: int, party: int, rows: int, held: Tensor | None = None) -> EventPlan:
        """The plan of event ``number``, a period of ``party``.

        Args:
            number: of the event.
            party: the active party.
            rows: records in the batch.
            held: (M,) bool, the parties that hold at least one of these records; None: all parties.
        """
        opening = self._opening_seconds(number, party, rows)
        if self.faults.models or held is not None:
            return self._planned(number, party, rows, opening, held)
        plan = self._faultless.get((party, rows, opening))
        if plan is None:
            plan = self._planned(number, party, rows, 0.0, None)
            if opening:
                seconds = plan.round.seconds + opening * self._stretch[party]
                plan = replace(plan, round=replace(plan.round, seconds=seconds))
            self._faultless[party, rows, opening] = plan
        return plan

    def _planned(self, number: int, party: int, rows: int, opening: float, held: Tensor | None) -> EventPlan:
        costs, everybody = self.costs(party, rows), torch.ones(self.roster.parties, dtype=torch.bool)
        held = everybody if held is None else held
        collect, deliver = self.faults.at(2 * number, self.roster), self.faults.at(2 * number + 1, self.roster)
        there = bool(collect.announced[party] & collect.sends[party])
        if not there:  # an absent party begins again when its period would have ended
            nothing = RoundOutcome.nothing(self.roster)
            round = self.rounds(costs, held, nothing, nothing, self._takes_part(party))
            seconds = (opening + round.seconds + self._beyond(costs, round, nothing, party)) * self._stretch[party]
            idle = replace(round, learners=~everybody, answered=~everybody, seconds=seconds)
            return EventPlan(idle, there=False, steps=False, returns=False)
        forward = _at_home(collect, party)
        served = torch.ones_like(deliver.hosts)  # the active party itself serves the bottoms
        backward = replace(_at_home(deliver, party), hosts=served, delay=deliver.delay)
        round = self.rounds(costs, held, forward, backward, self._takes_part(party))
        stretch = self._stretch[party]
        late = {m: stretch * (opening + moment) for m, moment in _late(costs, round, forward).items()}
        steps = bool(deliver.hosts[0] & deliver.links[party, 0]) and not round.skipped
        more = 0.0
        if not round.skipped:
            more = costs.server * (float(collect.slowdown[party]) - 1.0)  # the active party is the round's server
            more += self._beyond(costs, round, backward, party)
        round = replace(round, seconds=(opening + round.seconds + more) * stretch)
        if self.keeps_late and late:
            round = replace(round, late=late)
            if not round.skipped:  # a late party learns from the gradient of its replacement
                reached = deliver.receives & deliver.links[:, 0]
                was_late = torch.zeros_like(reached)
                was_late[list(late)] = True
                learners, answered = reached.where(was_late, round.learners), round.answered | was_late
                round = replace(round, learners=learners, answered=answered)
        return EventPlan(round, there=True, steps=steps, returns=steps and bool(deliver.receives[party]))

    def _beyond(self, costs: RoundCosts, round: RoundPlan, backward: RoundOutcome, party: int) -> float:
        """The seconds between the last bottom's update and the return of the top from the collaborator."""
        learning = (costs.answering + costs.backward * backward.slowdown).where(round.learners, 0.0)
        way = sum(float(self.clock.transfer(leg)[party]) for leg in self.top_legs(party))
        return max(0.0, float(learning[party] + backward.delay[party]) + way - float(learning.max()))

    def _takes_part(self, party: int) -> Callable[[Tensor, Tensor], Tensor]:
        """The rule for which embeddings the party can join.

        The party knows its own part of a hidden sum, so at least two other parties must be in the sum.
        """
        roster = self.roster.joined_by(party)

        def usable(called: Tensor, arrived: Tensor) -> Tensor:
            there = self.wire.takes_part(called, arrived, roster)
            if self.wire.traits.visible or int(there.sum()) - int(there[party]) >= 2:
                return there
            return torch.zeros_like(there)

        return usable

    # ---- traffic

    def costs(self, party: int, rows: int) -> RoundCosts:
        """The costs of a faultless collection and delivery."""
        if (party, rows) not in self._costs:
            self._costs[party, rows] = self._costs_of(party, rows)
        return self._costs[party, rows]

    def _costs_of(self, party: int, rows: int) -> RoundCosts:
        networks, roster = self.networks, self.roster.joined_by(party)
        legs = [_without(leg, party) for leg in self.wire.legs(rows, networks.widths, (), roster)]
        downlink = _without(self.wire.downlink(rows, networks.widths, roster), party)
        if party in self.amplifies:  # Algorithm 1, lines 8 to 10; the factor is sent with the gradients
            one = _without(_leg("regularisers", "server", torch.ones(roster.parties, dtype=torch.int64)), party)
            legs.append(replace(one, gate=Gate.PREVIOUS))
            downlink = replace(downlink, elements=downlink.elements + one.elements)
        again = [Work(w.forward, w.forward + w.backward) for w in networks.bottoms]  # Algorithm 2: a new forward
        plain = RoundCosts.of(tuple(legs), downlink, rows, again, networks.top, self.clock)
        home = torch.zeros(roster.parties, dtype=torch.bool)
        home[party] = True
        joining = (networks.top.forward + networks.top.backward) * rows + float(downlink.flops.sum())
        return replace(
            plain,
            server=joining / float(self.clock.speeds(roster.parties)[party]),
            sending=tuple(seconds.where(~home, 0.0) for seconds in plain.sending),
            answering=plain.answering.where(~home, 0.0),
        )

    def top_legs(self, party: int) -> tuple[Leg, Leg]:
        """The legs of the top's gradient to the collaborator, and of the top back to the active party."""
        if party not in self._top_legs:
            elements = torch.zeros(self.roster.parties, dtype=torch.int64)
            elements[party] = self.networks.top_size
            self._top_legs[party] = _leg("top gradients", "server", elements), _leg("top", "parties", elements)
        return self._top_legs[party]

    def ids(self, party: int, rows: int) -> Leg:
        """The leg of the record ids that the party sends to the others (Algorithm 1, line 12)."""
        if (party, rows) not in self._ids:
            elements = torch.zeros(self.roster.parties, dtype=torch.int64)
            elements[party] = (self.roster.parties - 1) * rows
            nothing = torch.zeros(self.roster.parties, dtype=torch.float64)
            self._ids[party, rows] = Leg(IDS, "peers", elements, ID_BITS, nothing, gate=Gate.ALL)
        return self._ids[party, rows]

    def _opening_seconds(self, number: int, party: int, rows: int) -> float:
        """The seconds before any computation: the record ids and the aggregator's opening."""
        opening = self.aggregator.opening
        if opening is None:
            if (party, rows) not in self._openings:
                self._openings[party, rows] = self._seconds_of((self.ids(party, rows),))
            return self._openings[party, rows]
        everybody = torch.ones(self.roster.parties, dtype=torch.bool)
        own = opening.legs(rows, self.roster.joined_by(party), everybody, number, number - 1)
        return self._seconds_of(own if any(leg.kind == IDS for leg in own) else (self.ids(party, rows), *own))

    def _seconds_of(self, legs: Sequence[Leg]) -> float:
        """The seconds of legs one after the other, each as slow as its slowest sender."""
        waits = [
            (self.clock.computing(leg.flops) + self.clock.transfer(leg)).where(leg.elements > 0, 0.0) for leg in legs
        ]
        return float(sum(seconds.max() for seconds in waits))


def _late(costs: RoundCosts, round: RoundPlan, forward: RoundOutcome) -> dict[int, float]:
    """The parties that answered the collection too late, with the times of their answers."""
    answered = round.sent[0] & forward.links[:, 0] & ~round.roll.included
    if not answered.any():
        return {}
    encoding, sending = costs.encoding[0], costs.sending[0]
    arrivals = (costs.forward + encoding) * forward.slowdown + injected(costs.legs[0], forward) + sending
    return {m: float(arrivals[m]) for m in answered.nonzero().flatten().tolist()}


def _leg(kind: str, to: str, elements: Tensor) -> Leg:
    nothing = torch.zeros(len(elements), dtype=torch.float64)
    return Leg(kind, to, elements, FLOAT_BITS, nothing)  # type: ignore[arg-type]  # one of its two literals


def _without(leg: Leg, party: int) -> Leg:
    """The leg without the messages of this party to itself."""
    elements = leg.elements.clone()
    elements[party] = 0
    return replace(leg, elements=elements)


def _at_home(outcome: RoundOutcome, party: int) -> RoundOutcome:
    """The outcome without delays and losses between the active party and itself."""
    here = torch.zeros_like(outcome.sends)
    here[party] = True
    return replace(
        outcome,
        delay=outcome.delay.where(~here, 0.0),
        announced=outcome.announced | here,
        sends=outcome.sends | here,
        receives=outcome.receives | here,
        links=outcome.links | here.unsqueeze(1),
    )
