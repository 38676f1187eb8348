"""The laws of lightning_vfl.simulation.faults, for every fault model there is."""

import importlib
import pickle
import pkgutil
from dataclasses import fields
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightning_vfl.simulation as room
from lightning_vfl.simulation import (
    ComputeBound,
    Crashes,
    FaultModel,
    LogNormal,
    PartyDropout,
    RoundOutcome,
    Stragglers,
    TraceReplay,
)
from lightning_vfl.simulation.crashes import _moves, _states
from lightning_vfl.simulation.draws import uniform_block
from lightning_vfl.simulation.faults import together
from lightning_vfl.simulation.trace import record, write
from lightning_vfl.testing import check_fault_model
from lightning_vfl.types import Roster
from tests.examples import examples

REQUESTS = 200
ROSTERS = {
    "three": Roster(((0,), (1,), (2,))),
    "active": Roster(((0,), (1,), (2,)), active=1),
    "grouped, three hosts": Roster(((0, 1), (2,)), hosts=3),
}


def recorded(folder):
    models = [Crashes("guests", 0.3, 0.4), Crashes("connections", 0.3, 0.4), Stragglers()]
    roster = ROSTERS["grouped, three hosts"]

    def faults_at(request):
        sampled = [model.sample(request, roster, seed=0) for model in models]
        return together(RoundOutcome.nothing(roster), sampled)

    write(record(faults_at, REQUESTS), str(folder / "trace.parquet"))
    return TraceReplay(str(folder / "trace.parquet"))


FACTORIES = {
    "fast and slow parties": lambda folder: Stragglers(),
    "slow computers": lambda folder: Stragglers(0.7, LogNormal(0.1, 1.0), ComputeBound(1.5, step=0.5), None),
    "announced absences": lambda folder: PartyDropout(0.5, 0.4),
    "silent absences": lambda folder: PartyDropout(0.5, 0.4, announced=False),
    "crashing guests": lambda folder: Crashes("guests", 0.3, 0.5),
    "crashing hosts": lambda folder: Crashes("hosts", 0.8, 0.5),
    "crashing connections": lambda folder: Crashes("connections", 0.3, 0.1),
    "nothing crashes": lambda folder: Crashes("guests", 0.0, 0.0),
    "a recorded trace": recorded,
}
DRAWS_NOTHING = {"nothing crashes", "a recorded trace"}
every_model = pytest.mark.parametrize("name", FACTORIES)
every_roster = pytest.mark.parametrize("who", ROSTERS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp("traces")) for name, make in FACTORIES.items()}


def equal(a, b):
    return all(torch.equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(RoundOutcome))


def outcomes(model, roster, seed, requests=REQUESTS):
    return [model.sample(request, roster, seed) for request in range(requests)]


def test_every_concrete_model_is_here(models):
    for info in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        importlib.import_module(info.name)
    kinds = [FaultModel]
    for kind in kinds:
        kinds += kind.__subclasses__()
    concrete = {k for k in kinds if k.__module__.startswith(f"{room.__name__}.") and not k.__abstractmethods__}
    assert concrete == {type(model) for model in models.values()}
    assert all(getattr(room, kind.__name__) is kind for kind in concrete)


@every_model
@every_roster
def test_laws(models, name, who):
    check_fault_model(models[name], ROSTERS[who], seed=3)


@every_model
@every_roster
@examples(10)
@given(st.lists(st.integers(0, REQUESTS - 1), min_size=1, max_size=5), st.integers(0, 2**63 - 1))
def test_sampling_is_pure(models, name, who, requests, seed):
    """A copy that travelled to another process says the same, asked in reverse order."""
    model, roster = models[name], ROSTERS[who]
    other = pickle.loads(pickle.dumps(model))
    forwards = [model.sample(request, roster, seed) for request in requests]
    uniform_block.cache_clear()
    _moves.cache_clear()
    _states.cache_clear()
    backwards = [other.sample(request, roster, seed) for request in reversed(requests)]
    assert all(equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    assert torch.equal(model.stragglers(roster, seed), other.stragglers(roster, seed))


@every_model
@every_roster
def test_the_seed_matters_where_something_is_drawn(models, name, who):
    model, roster = models[name], ROSTERS[who]
    pairs = zip(outcomes(model, roster, seed=0), outcomes(model, roster, seed=1), strict=True)
    assert all(equal(a, b) for a, b in pairs) == (name in DRAWS_NOTHING)


@every_model
@every_roster
def test_silent_is_what_the_outcomes_do(models, name, who):
    said = outcomes(models[name], ROSTERS[who], seed=3)
    lost = any(not (o.sends.all() and o.links.all() and o.receives.all()) for o in said)
    assert models[name].silent == lost
    apart = not all(bool(o.hosts.all() and o.links.all()) for o in said)
    assert models[name].tells_hosts_apart or not apart


@every_model
def test_the_active_party_is_never_announced_away(models, name):
    assert all(outcome.announced[1] for outcome in outcomes(models[name], ROSTERS["active"], seed=3))


@every_model
def test_the_faultless_outcome_is_neutral(models, name):
    roster = ROSTERS["three"]
    for outcome in outcomes(models[name], roster, seed=3, requests=5):
        nothing = RoundOutcome.nothing(roster)
        assert equal(together(nothing, [outcome, nothing]), outcome)


@every_model
def test_it_prints_its_settings_and_nothing_of_its_work(models, name):
    model = models[name]
    printed = repr(model)
    model.sample(0, ROSTERS["three"], 0)
    assert repr(model) == printed
    assert " at 0x" not in printed
    assert printed.startswith(f"{type(model).__name__}(")


@every_roster
@pytest.mark.parametrize("request_", [0, 7, 130])
def test_all_models_together_are_joined_one_by_one(models, who, request_):
    roster = ROSTERS[who]
    said = [model.sample(request_, roster, seed=3) for model in models.values() if not isinstance(model, TraceReplay)]
    nothing = RoundOutcome.nothing(roster)
    joined = together(nothing, said)
    for name in ("delay", "peer_delay"):
        assert torch.equal(getattr(joined, name), reduce(torch.add, [getattr(outcome, name) for outcome in said]))
    assert torch.equal(joined.slowdown, reduce(torch.mul, [outcome.slowdown for outcome in said]))
    for name in ("announced", "sends", "receives", "hosts", "links"):
        flags = torch.stack([getattr(outcome, name) for outcome in said])
        assert torch.equal(getattr(joined, name), flags.all(0))
    assert equal(together(nothing, []), nothing)
