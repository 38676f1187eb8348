"""AsyncVFL against VAFL written out by hand, event by event, with a table in a dictionary."""

import copy
import dataclasses
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_vfl import AsyncVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from tests.further import further
from tests.subjects import Blobs, split, trainer

M, WIDTH, B, BATCHES = 3, 5, 10, 5  # whole batches in 54 training records
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
ADAM = partial(torch.optim.Adam, lr=1e-2)


class Uneven(FaultModel):
    """Party m is m tenths of a second late; some of what is sent, answered or served gets lost."""

    def __init__(self, losses=True):
        self.losses = losses

    def sample(self, request, roster, seed):
        nothing = RoundOutcome.nothing(roster)
        delay = torch.tensor([0.01 + 0.1 * m for m in range(M)], dtype=torch.float64)
        if not self.losses:
            return dataclasses.replace(nothing, delay=delay)
        sends = torch.tensor([(request // 2 + m) % 4 != 3 for m in range(M)])
        receives = torch.tensor([(request + m) % 5 != 2 for m in range(M)])
        hosts = torch.tensor([request // 2 % 7 != 5])
        return dataclasses.replace(nothing, delay=delay, sends=sends, receives=receives, hosts=hosts)


def asynchronous(aggregator=None, seed=0, **settings):
    torch.manual_seed(seed)
    settings.setdefault("optimizer", SGD)
    return AsyncVFL(aggregator or Mean(), width=WIDTH, seed=0, **settings)


def fit(tmp_path, module, epochs=2, faults=None, **settings):
    if faults is not None:
        module.faults.add(faults)
    t = trainer(tmp_path, max_epochs=epochs, **settings)
    t.fit(module, datamodule=Blobs(batch_size=B))
    return t


def by_hand(module, data, events, optimizers):
    """VAFL, Algorithm 1: the party in turn refreshes its rows; it and the server descend; one optimiser for each."""
    records = data.records("train")
    latest = {}
    for ids, event in events:
        if not event.refresh:
            continue
        x, y = records.rows(torch.from_numpy(ids)), records.labels[torch.from_numpy(ids)]
        fresh = module.bottoms.parties[event.party](x[event.party])
        for i, row in zip(ids.tolist(), fresh.detach(), strict=True):
            latest[event.party, i] = row
        h = [
            fresh if m == event.party else torch.stack([latest.get((m, i), torch.zeros(WIDTH)) for i in ids.tolist()])
            for m in range(M)
        ]
        joined = torch.cat(h, 1) if isinstance(module.aggregator, Concat) else torch.stack(h).mean(0)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        cross_entropy(module.top(joined), y).backward()
        heard = module.faults.at(2 * event.request + 1, module.roster)
        if heard.receives[event.party]:
            optimizers[event.party].step()
        optimizers["server"].step()


@pytest.mark.parametrize(
    ("make", "aggregator", "losses"),
    [
        (SGD, Mean(), False),
        (ADAM, Concat(), True),
        *(further(*case) for case in ((SGD, Concat(), False), (ADAM, Mean(), False), (SGD, Mean(), True))),
    ],
)
def test_a_fit_is_vafl_written_out_by_hand(tmp_path, make, aggregator, losses):
    module = asynchronous(aggregator, optimizer=make)
    data = Blobs(batch_size=B)
    data.setup("fit")
    module.hparams["party_shapes"], module.hparams["num_classes"] = [list(s) for s in data.party_shapes], 3
    torch.manual_seed(0)
    module.configure_model()
    oracle = copy.deepcopy(module)
    for one in (module, oracle):
        one.faults.add(Uneven(losses))
    fit(tmp_path, module)

    schedule = oracle.schedule(data.records("train"), B, data.seed)
    events = []
    for epoch in range(2):
        events += schedule.epoch(epoch)
        schedule.advance(schedule.steps)
    parts = {m: oracle.bottoms.parties[m] for m in range(M)} | {"server": oracle.top}
    by_hand(oracle, data, events, {who: make(part.parameters()) for who, part in parts.items()})
    for (name, p), q in zip(module.named_parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5, msg=name)
    assert module.clock.seconds == pytest.approx(max(event.end for _, event in events))
    served = [event for _, event in events if event.refresh]
    assert module.books.mini_batches == len(served)
    assert module.books.given_up == len(events) - len(served)
    assert (len(served) < len(events)) == losses
    assert module.books.rounds["fit"] == 2 * M * BATCHES


def test_bytes_are_those_of_the_party_in_turn(tmp_path):
    module = asynchronous()
    fit(tmp_path, module, faults=Uneven(losses=False))
    events = module.books.meter.total("up") // (B * WIDTH * 4)
    assert int(events.sum()) == 2 * M * BATCHES
    assert events[0] > events[1] > events[2] > 0
    assert torch.equal(module.books.meter.total("down"), module.books.meter.total("up"))
    assert module.requests_made() == 2 * (int(events[0]) + 1)  # the fastest is on its next turn


def test_a_party_that_is_not_in_turn_keeps_its_bits(tmp_path):
    module = asynchronous(optimizer=ADAM)
    before, events = {}, []
    step = module.step
    module.step = lambda batch, names: (events.append(batch.event), step(batch, names))[1]

    def start(*args):
        before["it"] = copy.deepcopy(module.bottoms.parties)

    module.on_train_start = start
    t = fit(tmp_path, module, epochs=1, max_steps=1)
    (event,) = events
    for party, (old, new) in enumerate(zip(before["it"], module.bottoms.parties, strict=True)):
        for a, b in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(a, b) == (party != event.party)
            assert (b in t.optimizers[0].state) == (party == event.party)


def test_noise_perturbs_what_the_server_sees_and_is_a_function_of_the_event(tmp_path):
    tables = []
    for noise in (0.0, 0.5, 0.5):
        module = asynchronous(noise=noise)
        fit(tmp_path, module, epochs=1, max_steps=1)
        tables.append(module.latest.table.rows.clone())
    assert torch.equal(tables[1], tables[2])
    changed = (tables[1] - tables[0])[tables[0].abs().sum(1) > 0]
    assert 0.35 < float(changed[changed != 0].std()) < 0.65


def test_equal_delays_take_as_long_as_synchronous_rounds_without_waiting(tmp_path):
    """Same clock: M parties that are equally late have M events in the time of one round."""
    instant = {"bandwidth": 1e300, "speed": 1e300, "server_speed": 1e300}

    class Late(FaultModel):
        def sample(self, request, roster, seed):
            nothing = RoundOutcome.nothing(roster)
            return dataclasses.replace(nothing, delay=torch.full((M,), 0.25, dtype=torch.float64))

    one = asynchronous(clock=VirtualClock(**instant))
    fit(tmp_path, one, epochs=1, faults=Late())
    other = split(clock=VirtualClock(**instant))
    other.faults.add(Late())
    trainer(tmp_path, max_epochs=1).fit(other, datamodule=Blobs(batch_size=B, drop_last=True))
    assert one.clock.seconds == pytest.approx(other.clock.seconds) == pytest.approx(0.25 * BATCHES)
    assert one.standing()["progress/passes"] == other.standing()["progress/passes"]
    assert one.standing()["progress/passes"] == pytest.approx(BATCHES * B / 54)  # records that were used, of all


class Hidden(Mean):
    @property
    def wire(self):
        return InTheClear(self)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsyncVFL(Hidden()), "use Concat, Sum, Mean or Max"),
        (lambda: AsyncVFL(Mean(), noise=-1.0), "noise must be a finite number of at least 0; got -1.0"),
        (lambda: AsyncVFL(Mean(), evaluate="protocol"), "use evaluate: plain"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_table_above_its_limit_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigurationError, match="raise limit_bytes, lower width, or use table_dtype float16"):
        fit(tmp_path, asynchronous(limit_bytes=100))


def test_a_second_fit_goes_on_with_clock_table_and_events(tmp_path):
    module = asynchronous()
    fit(tmp_path, module, epochs=1, faults=Uneven(losses=False))
    seconds, most, latest = module.clock.seconds, module.counts.most_events, module.latest
    seen = []
    reached = module.reached
    module.reached = lambda event: (seen.append(event), reached(event))[1]
    fit(tmp_path, module, epochs=1)
    assert seen[0].number == M * BATCHES
    assert all(event.start >= seconds and event.request >= most for event in seen)
    assert module.clock.seconds == pytest.approx(max(event.end for event in seen))
    assert module.clock.seconds > seconds
    assert module.books.rounds["fit"] == 2 * M * BATCHES
    assert module.latest is latest


class PartlyHeld(Blobs):
    partly_held = True


@pytest.mark.parametrize("make", [further(SGD), ADAM], ids=["SGD", "Adam"])
def test_a_party_trains_on_the_records_that_it_holds(tmp_path, make):
    module = asynchronous(optimizer=make)
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=PartlyHeld(batch_size=B))
    data = PartlyHeld(batch_size=B)
    data.setup("fit")
    held = data.records("train").present
    written = torch.stack([h.abs().sum(1) > 0 for h in module.latest.table.read(torch.arange(54))], 1)
    assert torch.equal(written[:, 2], held[:, 2])
    assert not (written & ~held).any()


def test_the_requests_that_are_asked_are_those_of_the_events(tmp_path):
    """A spy on what the protocol really asks about each party, event by event."""
    module = asynchronous()
    asked = []
    at = module.faults.at
    module.faults.at = lambda request, roster: (asked.append(request), at(request, roster))[1]
    seen = []
    enter = module.enter_event
    module.enter_event = lambda event: (asked.clear(), enter(event), seen.append((event, list(asked))))[1]
    fit(tmp_path, module, epochs=1, faults=Uneven())
    assert [requests for _, requests in seen] == [[2 * event.request] for event, _ in seen]
    by_party = [[event.request for event, _ in seen if event.party == m] for m in range(M)]
    assert by_party == [list(range(len(own))) for own in by_party]


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_precisions(tmp_path, precision):
    module = asynchronous()
    fit(tmp_path, module, epochs=1, faults=Uneven(), precision=precision)
    assert all(torch.isfinite(p).all() for p in module.parameters())
