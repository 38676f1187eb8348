"""CVFL written out by hand: a list of periods, whole copies of networks at every START, one optimiser a participant.

Section 4 of the paper (Algorithms 1 to 3, equations 2 and 3), with the issue's choices where the paper is silent.
Nothing here is asked of the protocol but its initial weights and which records were in which batch: when a period
begins and ends, and in which order, is worked out again, in exact fractions.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import Aggregator, Concat, Max, Mean
from lightning_vfl.datamodules import ContiguousColumns, LabelPartition, Partitioner
from lightning_vfl.networks import MLP
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.types import Event, Roster
from tests.subjects import Blobs, trainer

PARTIES, ACTIVE, WIDTH, B, N = 4, 3, 3, 6, 54
RATE, DECAY = 0.125, 1e-3
BOTTOM = partial(MLP, hidden=(6,), activation=nn.Tanh)
TOP = partial(MLP, hidden=(5,), activation=nn.Tanh)
SGD = partial(torch.optim.SGD, lr=RATE)
ADAM = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)  # rounding of a gradient near 0 is not blown up to a step


class FourParties(Blobs):
    """Three columns for everybody, so that periods with as many records are exactly as long."""

    columns = 12

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(PARTIES)


def latency_alone() -> VirtualClock:
    """Every message takes a second: the ids, the embeddings, the top's gradient and the top, 4 seconds a period."""
    return VirtualClock(bandwidth=1e300, latency=1.0, speed=1e300, server_speed=1e300)


PERIOD = Fraction(4)  # of that clock, when nothing goes wrong


def shared(**ways: Any) -> FourParties:
    """The data, with labels shared out: evenly among the first three, unless ``ways`` says how."""
    ways = ways or {"active": ACTIVE}
    return FourParties(LabelPartition(**ways), batch_size=B)


def cascade(aggregator: Aggregator | None = None, data: Any = None, seed: int = 0, **settings: Any) -> CascadeVFL:
    """A small CascadeVFL, built; its weights depend on nothing but the seed here."""
    settings = {
        "bottom": BOTTOM,
        "top": TOP,
        "width": WIDTH,
        "optimizer": SGD,
        "clock": latency_alone(),
        "seed": 0,
        "decay": DECAY,
        **settings,
    }
    module = CascadeVFL(aggregator or Mean(), **settings)
    torch.manual_seed(seed)
    module.build_for(data or shared())
    return module


def _of_everybody(networks: list[nn.Module]) -> dict[str, list[Tensor]]:
    """By party number, and the top's."""
    names = [*map(str, range(len(networks) - 1)), "top"]
    return {
        name: [p.detach().clone() for p in network.parameters()] for name, network in zip(names, networks, strict=True)
    }


@dataclass
class Run:
    """A fit and what was noted of it."""

    module: CascadeVFL
    trainer: Trainer
    data: Any
    bottoms: list[nn.Module]  # as they were before it
    top: nn.Module
    events: list[tuple[Tensor, Event]]
    logged: list[dict[str, float]]  # at the end of every epoch
    faults: tuple[FaultModel, ...] = ()

    @property
    def batches(self) -> dict[tuple[int, int], Tensor]:
        """The record ids of a party's k-th period."""
        return {(event.party, event.request): ids for ids, event in self.events}

    def parameters(self) -> dict[str, list[Tensor]]:
        return _of_everybody([*self.module.bottoms.parties, self.module.top])


def fit(
    folder: object,
    module: CascadeVFL,
    data: Any = None,
    faults: tuple[FaultModel, ...] = (),
    epochs: int = 2,
    ckpt_path: Path | None = None,
    **settings: Any,
) -> Run:
    data = data or shared()
    for model in faults:
        module.faults.add(model)
    events: list[tuple[Tensor, Event]] = []
    logged: list[dict[str, float]] = []
    step, ended = module.training_step, module.on_train_epoch_end

    def noted(batch: Any, batch_idx: int) -> Tensor:
        events.append((batch.record_ids.clone(), batch.event))
        return step(batch, batch_idx)

    def read() -> None:
        ended()
        logged.append({name: float(value) for name, value in t.callback_metrics.items()})

    bottoms, top = deepcopy(list(module.bottoms.parties)), deepcopy(module.top)
    module.training_step, module.on_train_epoch_end = noted, read  # type: ignore[method-assign, misc]
    settings.setdefault("limit_val_batches", 0)
    t = trainer(folder, max_epochs=epochs, **settings)
    try:
        t.fit(module, datamodule=data, ckpt_path=ckpt_path)
    finally:
        del module.training_step, module.on_train_epoch_end
    return Run(module, t, data, bottoms, top, events, logged, faults)


Parameters = dict[str, Tensor]


def copied(network: nn.Module) -> Parameters:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


@dataclass
class Period:
    """Of an active party: when, which batch, and everything as it was at its START."""

    number: int
    party: int
    request: int
    start: Fraction
    end: Fraction
    bottoms: list[Parameters]
    top: Parameters
    steps: int  # of the collaborator, before it sent that top


@dataclass
class Collection:
    """Who is heard in a period, and when it ends."""

    seconds: Fraction
    there: bool = True
    sent: set[int] = field(default_factory=set)  # others that put an embedding on the wire
    fresh: set[int] = field(default_factory=set)  # whose embedding is in the aggregate
    late: dict[int, Fraction] = field(default_factory=dict)  # seconds after the START at which it comes
    learn: set[int] = field(default_factory=set)
    steps: bool = True
    returned: bool = True


class ByHand:
    """The same training again.

    Args:
        run: whose start, batches and labels these are.
        optimizer: makes an optimiser for one participant; None: plain SGD, with no optimiser at all.
        slower: active party -> s.
        q: of the slow ones.
        decay: of the bottoms.
        together: nobody begins before all have ended.
        parties: who has labels; None: as the records say.
        collection: who is heard in event c of this party, and how long it takes where nobody is slower.
        policy: Exclude, Zeros, Skip or Stale.
        slow: whose objective has the exponent; None: those in ``slower``.
        aggregator: how embeddings are joined; None: as the run does.
    """

    def __init__(
        self,
        run: Run,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
        slower: dict[int, Fraction] | None = None,
        q: float = 1.0,
        decay: float = DECAY,
        together: bool = False,
        parties: tuple[int, ...] | None = None,
        collection: Callable[[int, int], Collection] | None = None,
        policy: str = "Exclude",
        slow: set[int] | None = None,
        aggregator: Aggregator | None = None,
    ) -> None:
        self.bottoms, self.top = deepcopy(run.bottoms), deepcopy(run.top)
        self.M = len(self.bottoms)
        self.records = run.data.records("train")
        self.aggregator = aggregator or run.module.aggregator
        self.batches, self.slower, self.q, self.decay = run.batches, slower or {}, q, decay
        self.slow = {party for party, s in self.slower.items() if s} if slow is None else slow
        self.together, self.policy = together, policy
        self.collection = collection or (lambda number, party: self.everybody())
        holders = self.records.label_holders.tolist()
        self.parties = parties or tuple(sorted({m for m in holders if m >= 0}))
        counts = {party: holders.count(party) for party in self.parties}
        self.weights = {m: Fraction(own * len(counts), sum(counts.values())) for m, own in counts.items()}
        self.steps = {m: n // min(B, n) for m, n in counts.items()}
        made = None if optimizer is None else [optimizer(network.parameters()) for network in self.networks()]
        self.optimizers = made
        self.last_sent = {party: copied(self.top) for party in self.parties}
        self.sent_after = dict.fromkeys(self.parties, 0)  # so many steps of the collaborator
        self.sent_steps = dict.fromkeys(self.parties, 0)  # of the collaborator, when it sent that
        self.table = {(i, m): torch.zeros(WIDTH) for i in range(len(self.records)) for m in range(self.M)}
        self.under_way: list[tuple[Fraction, Tensor, int, Tensor]] = []
        self.ended: list[Period] = []
        self.losses: list[float | None] = []
        self.factors: list[float] = []
        self.behind: list[int | None] = []  # steps of the collaborator since it sent the replica, if it steps
        self.collaborator_steps = 0
        self.answered: dict[int, bool] = {}  # whether the top comes back to those who have ended
        self.now = Fraction(0)

    def networks(self) -> list[nn.Module]:
        return [*self.bottoms, self.top]

    def everybody(self, seconds: Fraction = PERIOD) -> Collection:
        all_of_them = set(range(self.M))
        return Collection(seconds, True, all_of_them, all_of_them, {}, all_of_them)

    def everybody_after_keys(self, number: int, party: int) -> Collection:
        """Where keys are exchanged once, before the first event, which takes a second."""
        return self.everybody(PERIOD + (number == 0))

    # ---- who ends when

    def play(self, events: int) -> "ByHand":
        """So many ENDs."""
        began: dict[int, int] = {}
        running: list[Period] = []
        waiting: list[int] = []
        number = 0

        def start(party: int) -> None:
            nonlocal number
            took = self.collection(number, party).seconds / (1 - self.slower.get(party, Fraction(0)))
            own = [copied(bottom) for bottom in self.bottoms], self.last_sent[party]
            request = began.get(party, 0)
            running.append(
                Period(number, party, request, self.now, self.now + took, *own, steps=self.sent_steps[party])
            )
            began[party] = request + 1
            number += 1

        for party in self.parties:
            start(party)
        for _ in range(events):
            first = min(running, key=lambda period: (period.end, period.party))
            running.remove(first)
            self.now = first.end
            self.end(first)
            waiting.append(first.party)
            if not (self.together and running):
                for party in sorted(waiting):
                    start(party)
                waiting = []
        return self

    # ---- what happens at an END

    def end(self, period: Period) -> None:
        self.ended.append(period)
        heard = self.collection(period.number, period.party)
        missing = set(range(self.M)) - heard.fresh
        if not heard.there or not heard.fresh or (self.policy == "Skip" and missing):
            self.losses.append(None)
            self.behind.append(None)
            self.answered[period.party] = False
        else:
            self.teach(period, heard, missing)
            self.answered[period.party] = heard.steps and heard.returned
        if not self.together or len(self.answered) == len(self.parties):  # who is answered has the top of this moment
            for party, answered in self.answered.items():
                if answered:
                    self.last_sent[party] = copied(self.top)
                    self.sent_after[party] = self.collaborator_steps
                    self.sent_steps[party] = self.collaborator_steps
            self.answered.clear()

    def teach(self, period: Period, heard: Collection, missing: set[int]) -> None:
        ids = self.batches[period.party, period.request]
        x, y = self.records.rows(ids), self.records.labels[ids]
        with torch.no_grad():
            h = [functional_call(*one) for one in zip(self.bottoms, period.bottoms, x, strict=True)]
        if self.policy == "Stale":
            h = self.stood_in(h, period, ids, heard)
        h = [own.requires_grad_() for own in h]
        counted = heard.fresh if self.policy == "Exclude" else set(range(self.M))
        replica = {name: p.clone().requires_grad_() for name, p in period.top.items()}
        output = functional_call(self.top, replica, self.join(h, counted, missing, self.held(ids)))
        loss = cross_entropy(output, y)
        gradients = torch.autograd.grad(loss, [*h, *replica.values()], allow_unused=True)
        factor = self.factor(float(loss.detach()), period)
        scale = factor * float(self.weights[period.party])
        for m in heard.learn:
            bottom, gradient = self.bottoms[m], gradients[m]
            assert gradient is not None
            own = list(bottom.parameters())
            carried = torch.autograd.grad(bottom(x[m]), own, gradient)  # at the parameters of now
            self.step(m, own, [scale * (v + self.decay * p.detach()) for v, p in zip(carried, own, strict=True)])
        self.losses.append(float(loss.detach()))
        self.behind.append(self.collaborator_steps - period.steps if heard.steps else None)
        if heard.steps:
            of_top = [scale * g for g in gradients[self.M :] if g is not None]
            self.step(self.M, list(self.top.parameters()), of_top)
            self.collaborator_steps += 1

    def factor(self, loss: float, period: Period) -> float:
        """The larger of 1 and q F^(q-1), with F as it was at START."""
        if period.party not in self.slow:
            return 1.0
        squares = sum(float((p**2).sum()) for bottom in period.bottoms for p in bottom.values())
        self.factors.append(max(1.0, self.q * (loss + self.decay * squares / 2) ** (self.q - 1)))
        return self.factors[-1]

    def held(self, ids: Tensor) -> Tensor:
        """(B, M), who holds which of these records."""
        present = self.records.present
        return torch.ones(len(ids), self.M, dtype=torch.bool) if present is None else present[ids]

    def join(self, h: list[Tensor], counted: set[int], missing: set[int], held: Tensor) -> Tensor:
        if self.policy == "Zeros":
            h = [torch.zeros_like(own) if m in missing else own for m, own in enumerate(h)]
        h = [own * held[:, m : m + 1] for m, own in enumerate(h)]
        if isinstance(self.aggregator, Concat):
            return torch.cat([own if m in counted else torch.zeros_like(own) for m, own in enumerate(h)], 1)
        stacked = torch.stack([h[m] for m in sorted(counted)])
        if isinstance(self.aggregator, Mean):
            return stacked.sum(0) / held[:, sorted(counted)].sum(1, keepdim=True).clamp(min=1)
        return stacked.amax(0) if isinstance(self.aggregator, Max) else stacked.sum(0)

    def stood_in(self, h: list[Tensor], period: Period, ids: Tensor, heard: Collection) -> list[Tensor]:
        """What was last heard of each record from those who are not in time; this collection is remembered too."""
        come = sorted((one for one in self.under_way if one[0] <= period.start), key=lambda one: one[0])
        self.under_way = [one for one in self.under_way if one[0] > period.start]
        fresh = [(period.start, ids, m, h[m]) for m in sorted(heard.fresh)]
        for _, of, m, rows in [*come, *fresh]:
            for i, row in zip(of.tolist(), rows, strict=True):
                self.table[i, m] = row
        stretch = 1 / (1 - self.slower.get(period.party, Fraction(0)))  # what a slow party hears takes as much longer
        self.under_way += [(period.start + after * stretch, ids, m, h[m]) for m, after in heard.late.items()]
        stand_ins = [torch.stack([self.table[i, m] for i in ids.tolist()]) for m in range(self.M)]
        return [(h[m] if m in heard.fresh else stand_ins[m]).clone() for m in range(self.M)]

    def step(self, who: int, parameters: list[Any], gradients: list[Tensor]) -> None:
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        if self.optimizers is not None:
            self.optimizers[who].step()
            return
        for p in parameters:
            p.data = p.data - RATE * p.grad

    def parameters(self) -> dict[str, list[Tensor]]:
        return _of_everybody(self.networks())


ROSTER = Roster.singles(PARTIES)
DEADLINE = Fraction(2)  # from the moment that the ids have come; an embedding needs one second of them
KINDS = ("announced", "sends", "receives", "links", "hosts")


class Scripted(FaultModel):
    """What is said of event c: by kind and party, in the collection (0) and in the delivery (1)."""

    def __init__(self, said: Callable[[int, int], dict[str, dict[int, Any]]], silent: bool = True) -> None:
        self.said = said
        self._silent = silent

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        outcome, values = RoundOutcome.nothing(roster), {}
        for name, those in self.said(*divmod(request, 2)).items():
            values[name] = getattr(outcome, name).clone()
            for place, value in those.items():
                values[name][place] = value
        return replace(outcome, **values)

    @property
    def silent(self) -> bool:
        return self._silent


def chance(*names: Any, of: float) -> bool:
    return Random(repr(names)).random() < of


def trouble(*kinds: str, delays: tuple[float, ...] = (0.0,), of: float = 0.25) -> Scripted:
    """Everything of these kinds goes wrong now and then, for everybody; in deliveries the delays are another's."""

    def said(event: int, way: int) -> dict[str, dict[int, Any]]:
        wrong: dict[str, dict[int, Any]] = {
            kind: {
                place: False
                for place in range(1 if kind == "hosts" else PARTIES)
                if chance(kind, event, way, place, of=of)
            }
            for kind in kinds
        }
        wrong["delay"] = {m: Random(repr(("delay", event, way, m))).choice(delays) for m in range(PARTIES)}
        return wrong

    return Scripted(said)


def heard(
    model: FaultModel, policy: str = "Exclude", deadline: Fraction = DEADLINE, first: int | None = None
) -> Callable[[int, int], Collection]:
    """What an event comes to, from the outcomes of its two requests, at a second a message."""

    def collection(number: int, party: int) -> Collection:
        collect, deliver = model.sample(2 * number, ROSTER, 0), model.sample(2 * number + 1, ROSTER, 0)
        if not (collect.announced[party] and collect.sends[party]):
            return Collection(PERIOD, there=False)
        called = {m for m in range(PARTIES) if m == party or collect.announced[m]}
        if policy == "Skip" and len(called) < PARTIES:  # known before anybody is called
            return Collection(Fraction(1))
        sent = {m for m in called if m != party and collect.sends[m]}
        arrivals = {m: 1 + Fraction(float(collect.delay[m])) for m in sent if collect.links[m, 0]} | {
            party: Fraction(0)
        }
        if first is not None:
            fresh = set(sorted(arrivals, key=lambda m: (arrivals[m], m))[:first])
            closed = max(arrivals[m] for m in fresh)
        else:
            fresh = {m for m, after in arrivals.items() if after <= deadline}
            closed = max(arrivals.values()) if fresh == called else deadline
        late = {m: 1 + after for m, after in arrivals.items() if m not in fresh}
        answered = fresh | (set(late) if policy == "Stale" else set())
        if policy == "Skip" and len(fresh) < PARTIES:
            return Collection(1 + closed, True, sent, fresh, late)
        learn = {m for m in answered if m == party or (deliver.receives[m] and deliver.links[m, 0])}
        return Collection(
            1 + closed + 2 + Fraction(float(deliver.delay[party])),
            True,
            sent,
            fresh,
            late,
            learn,
            bool(deliver.hosts[0] and deliver.links[party, 0]),
            bool(deliver.receives[party]),
        )

    return collection


def assert_same_training(run: Run, oracle: ByHand, tolerance: float = 2e-5) -> None:
    """Order, times, losses and weights."""
    expected = [(p.number, p.party, p.request, float(p.start), float(p.end)) for p in oracle.ended]
    assert [(e.number, e.party, e.request, e.start, e.end) for _, e in run.events] == expected
    for who, parameters in run.parameters().items():
        for own, other in zip(parameters, oracle.parameters()[who], strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=tolerance, msg=f"{who}: {own} is not {other}")
