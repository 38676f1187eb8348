"""DecoupledVFL against DVFL written out by hand: weights, buffers, bytes."""

from functools import cache
from typing import Any

import pytest
import torch

from lightning_vfl.datamodules import LimitedOverlap
from lightning_vfl.simulation import Crashes
from tests.subjects import Blobs
from tests.unit.protocols.decoupled.decoupled_by_hand import (
    GUESTS,
    STEPS,
    Alike,
    B,
    ByHand,
    N,
    Run,
    by_hand,
    decoupled,
    fit,
    tables_of,
    weights_of,
)

GUESTS_CRASH, HOSTS_CRASH = Crashes("guests", 0.3, 0.3), Crashes("hosts", 0.4, 0.4)
LINKS_CRASH = Crashes("connections", 0.4, 0.3)
EVERYTHING = (LINKS_CRASH, HOSTS_CRASH, GUESTS_CRASH)

SCENARIOS: dict[str, dict[str, Any]] = {
    "one host": {"hosts": 1},
    "unlike guests": {"hosts": 2, "widths": [2, 5, 3], "standardise": True},
    "every second epoch": {"hosts": 3, "guest_epochs": 5, "communicate_every": 2},
    "one-shot and replay": {"hosts": 1, "guest_epochs": 3, "communicate_every": 3, "replay_epochs": 2},
    "hosts rest": {"hosts": 2, "guest_epochs": 3, "replay_epochs": 1, "host_every": 2},
    "half precision": {"hosts": 3, "table_dtype": "float16", "replay_epochs": 1},
    "guests alike": {"hosts": 1, "data": Alike, "communicate_every": 2},
    "guests alike crash": {"hosts": 2, "data": Alike, "guest_epochs": 4, "faults": (GUESTS_CRASH,)},
    "hosts crash": {"hosts": 3, "guest_epochs": 4, "replay_epochs": 2, "faults": (HOSTS_CRASH,)},
    "connections crash": {"hosts": 3, "guest_epochs": 4, "faults": (LINKS_CRASH,)},
    "one host, connections crash": {"hosts": 1, "guest_epochs": 3, "faults": (LINKS_CRASH,)},
    "everything crashes": {
        "hosts": 3, "guest_epochs": 4, "communicate_every": 2, "replay_epochs": 1, "faults": EVERYTHING,
    },
    "everything crashes, hosts rest": {
        "hosts": 3, "guest_epochs": 4, "replay_epochs": 1, "host_every": 2, "faults": EVERYTHING,
    },
    "messages, everything crashes": {
        "hosts": 3, "guest_epochs": 6, "communicate_every": 2, "register": "message", "faults": EVERYTHING,
    },
    "few in common": {"hosts": 2, "aligned": 24, "guest_epochs": 3, "replay_epochs": 1},
    "few in common, everything crashes": {
        "hosts": 3, "aligned": 24, "guest_epochs": 4, "communicate_every": 2, "standardise": True, "faults": EVERYTHING,
    },
}  # fmt: skip


SLOW = (
    "one host",
    "every second epoch",
    "guests alike",  # as in "guests alike crash"
    "hosts rest",
    "hosts crash",
    "connections crash",  # as hosts and guests in "everything crashes"
    "one host, connections crash",
    "everything crashes, hosts rest",
    "few in common",
)
FAULTLESS = [name for name in SCENARIOS if "faults" not in SCENARIOS[name]]
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCENARIOS]


@cache
def both(name: str, folder: str) -> tuple[Run, ByHand]:
    settings = dict(SCENARIOS[name])
    aligned, faults = settings.pop("aligned", None), settings.pop("faults", ())
    cut = None if aligned is None else LimitedOverlap(aligned=aligned)
    data = settings.pop("data", Blobs)(cut, batch_size=B)
    run = fit(folder, decoupled(data=data, **settings), data, faults, limit_val_batches=0)
    return run, by_hand(run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield str(tmp_path_factory.mktemp("fits"))
    both.cache_clear()


def who(prefix: str) -> str:
    """The participant whose parameters begin with this."""
    if prefix == "top.":
        return "owner"
    kind, _, number, _ = prefix.split(".")
    return f"{'guest' if kind in ('bottoms', 'guest_partners') else 'host'} {number}"


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_dvfl_written_out_by_hand(folder, name):
    run, oracle = both(name, folder)
    state = weights_of(run.module)
    ever = set().union(*oracle.learnt)
    learnt = {prefix for prefix in oracle.weights() if who(prefix) in ever}
    compared = 0
    for prefix, parameters in oracle.weights().items():
        mine = [value for key, value in state.items() if key.startswith(prefix)]
        begin = [value for key, value in run.start.items() if key.startswith(prefix)]
        for own, other, before in zip(mine, parameters, begin, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-6, msg=lambda text, at=prefix: f"{at} {text}")
            compared += 1
            assert torch.equal(own, before) == (prefix not in learnt)
    assert compared == len(list(run.module.parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_buffers_are_dictionaries(folder, name):
    run, oracle = both(name, folder)
    tolerance = 2e-3 if run.module.table_dtype == "float16" else 1e-6  # a half on the verge rounds either way
    torch.testing.assert_close(tables_of(run.module), oracle.tables(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_that_guests_sent(folder, name):
    run, oracle = both(name, folder)
    assert run.module.books.meter.total("up", "embeddings").tolist() == oracle.bytes
    assert run.module.counts.communications == oracle.communications
    assert run.module.books.given_up == sum(not who for who in oracle.learnt)


@pytest.mark.parametrize("name", [name for name in FAULTLESS if name not in SLOW])
def test_without_faults_the_bytes_are_the_papers(folder, name):
    """|H| · floor(E / k) · N · width · 32 bits of every guest; with few records in common N is the longest guest's."""
    module = both(name, folder)[0].module
    rounds = module.guest_epochs // module.communicate_every
    rows = N if "aligned" not in SCENARIOS[name] else -(-34 // B) * B
    expected = [module.host_count * rounds * rows * width * 4 for width in module.embedding_widths]
    assert module.books.meter.total("up", "embeddings").tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_one_final_collection_is_metered_by_itself(folder, name):
    """Every guest tells every host, and every host tells the owner, once and of every record that all hold."""
    run, _ = both(name, folder)
    module, rows = run.module, SCENARIOS[name].get("aligned", N)
    hosts = module.host_count
    final = [hosts * rows * width * 4 for width in module.embedding_widths]
    assert module.books.meter.total("up", "final embeddings").tolist() == final
    assert module.counts.host_meter.total("up", "final encodings").tolist() == [rows * 5 * 4] * hosts
    sent = module.books.meter.total("up", "embeddings") + torch.tensor(final)
    assert module.standing()["comm/up_bytes"] == float(sent.sum()) + hosts * rows * 5 * 4
    assert module.standing()["comm/down_bytes"] == module.standing()["comm/peer_bytes"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_one_table_until_faults_tell_the_hosts_apart(folder, name):
    run, _ = both(name, folder)
    faults = SCENARIOS[name].get("faults", ())
    apart = any(model is not GUESTS_CRASH for model in faults) and run.module.host_count > 1
    size = 2 if run.module.table_dtype == "float16" else 4
    tables = [table.rows.nbytes for table in run.module.replay.tables]
    assert tables == [N * sum(run.module.embedding_widths) * size] * (run.module.host_count if apart else 1)


def test_the_scenarios_meet_what_they_are_for(folder):
    """Losses that tell hosts apart, records that only some have told of, iterations that only some learnt from."""
    _, oracle = both("few in common, everything crashes", folder)
    assert any(0 < len(known) < GUESTS for host in oracle.told for known in host.values())
    assert not torch.equal(*oracle.tables()[:2])
    _, oracle = both("everything crashes", folder)
    assert len({frozenset(who) for who in oracle.learnt}) > 5
    run, _ = both("half precision", folder)
    assert len(run.batches) == 4 * STEPS
