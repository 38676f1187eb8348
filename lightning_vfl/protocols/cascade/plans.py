"""The plan of an active party's period, made before any computation: who answers, who learns, and its duration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.networks.flops import Work
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan
from lightning_vfl.simulation.clock import injected
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.types import numbers_in
from lightning_vfl.wire import Gate, Leg

IDS = "record ids"
ID_BITS = 64


class Traffic(NamedTuple):
    """What a faultless period of an active party sends.

    Args:
        costs: of the collection and the delivery.
        ids: the record ids that the party sends to the others (Algorithm 1, line 12).
        top_gradients: of the party to the collaborator.
        top: back to the party.
        asking: the seconds of the record ids.
    """

    costs: RoundCosts
    ids: Leg
    top_gradients: Leg
    top: Leg
    asking: float


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
    and its period is longer by the same factor. Event c makes the requests 2c (collect) and 2c + 1 (deliver) of all
    parties.

    Args:
        module: the protocol, with its costs, faults, waiting rule and policy.
        slower: active party -> share s by which it is slower; its periods are 1 / (1 - s) times as long.
        amplifies: the active parties that receive the regularisers and send a factor.
        top_size: the number of parameters of the top.
    """

    def __init__(
        self, module: VFLModule, slower: Mapping[int, float], amplifies: frozenset[int], top_size: int
    ) -> None:
        self.module = module
        self.top_size = top_size
        self.amplifies = amplifies
        self._traffic: dict[tuple[int, int], Traffic] = {}
        self._faultless: dict[tuple[int, int, float], EventPlan] = {}
        parties = range(module.roster.parties)  # a stretch is exactly 20 for 0.95, not 19.999
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
        if self.module.faults.models or held is not None:
            return self._planned(number, party, rows, opening, held)
        plan = self._faultless.get((party, rows, opening))
        if plan is None:
            plan = self._planned(number, party, rows, 0.0, None)
            seconds = plan.round.seconds + opening * self._stretch[party]
            plan = self._faultless[party, rows, opening] = replace(plan, round=replace(plan.round, seconds=seconds))
        return plan

    def _planned(self, number: int, party: int, rows: int, opening: float, held: Tensor | None) -> EventPlan:
        module = self.module
        traffic = self.traffic(party, rows)
        stretch = self._stretch[party]
        costs = traffic.costs
        roster = module.roster
        nobody = ~roster.everybody
        held = roster.everybody if held is None else held
        usable = partial(self._usable, party)
        collect = module.faults.at(2 * number, roster)
        deliver = module.faults.at(2 * number + 1, roster)
        there = bool(collect.announced[party] & collect.sends[party])
        if not there:  # an absent party begins again when its period would have ended
            nothing = RoundOutcome.nothing(roster)
            round = module.plan(costs, held, nothing, nothing, usable)
            seconds = (opening + round.seconds + self._beyond(traffic, round, nothing, party)) * stretch
            idle = replace(round, learners=nobody, answered=nobody, seconds=seconds)
            return EventPlan(idle, there=False, steps=False, returns=False)

        forward = _at_home(collect, party)
        served = torch.ones_like(deliver.hosts)  # the active party itself serves the bottoms
        backward = replace(_at_home(deliver, party), hosts=served, delay=deliver.delay)
        round = module.plan(costs, held, forward, backward, usable)
        late = {m: stretch * (opening + moment) for m, moment in _late(costs, round, forward).items()}
        more = 0.0
        if not round.skipped:
            more = costs.server * (float(collect.slowdown[party]) - 1.0)  # the active party is the round's server
            more += self._beyond(traffic, round, backward, party)
        round = replace(round, seconds=(opening + round.seconds + more) * stretch)

        if module.missing.memory is not None and late:
            round = replace(round, late=late)
            if not round.skipped:  # a late party learns from the gradient of its replacement
                reached = deliver.receives & deliver.links[:, 0]
                was_late = nobody.clone()
                was_late[list(late)] = True
                learners = reached.where(was_late, round.learners)
                round = replace(round, learners=learners, answered=round.answered | was_late)
        steps = bool(deliver.hosts[0] & deliver.links[party, 0]) and not round.skipped
        return EventPlan(round, there=True, steps=steps, returns=steps and bool(deliver.receives[party]))

    def _beyond(self, traffic: Traffic, round: RoundPlan, backward: RoundOutcome, party: int) -> float:
        """The seconds between the last bottom's update and the return of the top from the collaborator."""
        costs = traffic.costs
        clock = self.module.clock
        learning = (costs.answering + costs.backward * backward.slowdown).where(round.learners, 0.0)
        way = sum(float(clock.transfer(leg)[party]) for leg in (traffic.top_gradients, traffic.top))
        return max(0.0, float(learning[party] + backward.delay[party]) + way - float(learning.max()))

    def _usable(self, party: int, called: Tensor, arrived: Tensor) -> Tensor:
        """The embeddings that the party can join.

        The party knows its own part of a hidden sum, so at least two other parties must be in the sum.
        """
        wire = self.module.wire
        there = wire.takes_part(called, arrived, self.module.roster.joined_by(party))
        if wire.traits.visible or int(there.sum()) - int(there[party]) >= 2:
            return there
        return torch.zeros_like(there)

    # ---- traffic

    def traffic(self, party: int, rows: int) -> Traffic:
        """What a faultless period sends; it is computed once."""
        if (party, rows) not in self._traffic:
            self._traffic[party, rows] = self._traffic_of(party, rows)
        return self._traffic[party, rows]

    def _traffic_of(self, party: int, rows: int) -> Traffic:
        parties = self.module.roster.parties
        alone = torch.arange(parties) == party
        ids = Leg(IDS, "peers", alone * ((parties - 1) * rows), ID_BITS, gate=Gate.ALL)
        of_top = alone * self.top_size
        return Traffic(
            costs=self._costs(party, rows),
            ids=ids,
            top_gradients=Leg("top gradients", "server", of_top, FLOAT_BITS),
            top=Leg("top", "parties", of_top, FLOAT_BITS),
            asking=self._seconds_of((ids,)),
        )

    def _costs(self, party: int, rows: int) -> RoundCosts:
        """The costs of a faultless collection and delivery."""
        module = self.module
        roster = module.roster.joined_by(party)
        bottoms, top = module.costs.work
        widths = module.embedding_widths
        legs = [_without(leg, party) for leg in module.wire.legs(rows, widths, (), roster)]
        downlink = _without(module.wire.downlink(rows, widths, roster), party)
        if party in self.amplifies:  # Algorithm 1, lines 8 to 10; the factor is sent with the gradients
            ones = torch.ones(roster.parties, dtype=torch.int64)
            one = _without(Leg("regularisers", "server", ones, FLOAT_BITS, gate=Gate.PREVIOUS), party)
            legs.append(one)
            downlink = replace(downlink, elements=downlink.elements + one.elements)
        again = [Work(work.forward, sum(work)) for work in bottoms]  # Algorithm 2: a new forward pass before each step
        at_server = RoundCosts.of(tuple(legs), downlink, rows, again, top, module.clock)
        # the active party plays the server: it joins at its own speed, and sends itself nothing
        joining = sum(top) * rows + float(downlink.flops.sum())
        others = torch.arange(roster.parties) != party
        return replace(
            at_server,
            server=joining / float(module.clock.speeds(roster.parties)[party]),
            sending=tuple(seconds.where(others, 0.0) for seconds in at_server.sending),
            answering=at_server.answering.where(others, 0.0),
        )

    def _opening_seconds(self, number: int, party: int, rows: int) -> float:
        """The seconds before any computation: the record ids and the aggregator's opening."""
        opening = self.module.aggregator.opening
        traffic = self.traffic(party, rows)
        roster = self.module.roster
        if opening is None:
            return traffic.asking
        legs = opening.legs(rows, roster.joined_by(party), roster.everybody, number, number - 1)
        return self._seconds_of(legs if any(leg.kind == IDS for leg in legs) else (traffic.ids, *legs))

    def _seconds_of(self, legs: Sequence[Leg]) -> float:
        """The seconds of legs one after the other, each as slow as its slowest sender."""
        clock = self.module.clock
        total = 0.0
        for leg in legs:
            seconds = clock.computing(leg.flops) + clock.transfer(leg)
            total += float(seconds.where(leg.elements > 0, 0.0).max())
        return total


def _late(costs: RoundCosts, round: RoundPlan, forward: RoundOutcome) -> dict[int, float]:
    """The parties that answered the collection too late, with the times of their answers."""
    answered = round.sent[0] & forward.links[:, 0] & ~round.roll.included
    if not answered.any():
        return {}
    computing = (costs.forward + costs.encoding[0]) * forward.slowdown
    arrivals = computing + injected(costs.legs[0], forward) + costs.sending[0]
    return {m: float(arrivals[m]) for m in numbers_in(answered)}


def _without(leg: Leg, party: int) -> Leg:
    """The leg without the messages of this party to itself."""
    elements = leg.elements.clone()
    elements[party] = 0
    return replace(leg, elements=elements)


def _at_home(outcome: RoundOutcome, party: int) -> RoundOutcome:
    """The outcome without delays and losses between the active party and itself."""
    here = torch.arange(len(outcome.sends)) == party
    return replace(
        outcome,
        delay=outcome.delay.where(~here, 0.0),
        announced=outcome.announced | here,
        sends=outcome.sends | here,
        receives=outcome.receives | here,
        links=outcome.links | here.unsqueeze(1),
    )
