"""Law: no request mixes two versions of a model, whatever is started and stopped while requests run."""

import asyncio

import numpy as np
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Missing
from lightning_vfl.serving.batches import Batches
from lightning_vfl.serving.messages import Ask, written
from tests.served import CLEAR, MASKED, PARTIES, Subject, running, until


@pytest.fixture
def versions(tmp_path):
    def made(protection=CLEAR, missing=Missing.EXCLUDE):
        for name in ("old", "new"):
            (tmp_path / name).mkdir(exist_ok=True)
        old = Subject(tmp_path / "old", protection, missing)
        return old, Subject(tmp_path / "new", protection, missing, before=old)

    return made


@pytest.mark.parametrize("protection", [CLEAR, MASKED], ids=["clear", "masked"])
def test_requests_go_over_to_the_new_version_at_once_and_none_is_lost(protection, versions):
    old, new = versions(protection, Missing.SKIP)
    subjects = {one.model: one for one in (old, new)}
    seen = []

    async def client(batches, over):
        random = np.random.default_rng(1)
        while not over.is_set():
            ids = random.integers(50, size=5)
            joined, part = await asyncio.wait_for(batches.predict(ids), 10)
            model = joined.server.manifest.model
            assert joined.absent == ()
            np.testing.assert_allclose(joined.values[part], subjects[model].expected(ids), atol=1e-5)
            seen.append(model)
            await asyncio.sleep(0.001)

    async def swap():
        async with running(old, more=[new]) as (gateway, tasks):
            batches, over = Batches(gateway.predict), asyncio.Event()
            clients = [asyncio.create_task(client(batches, over)) for _ in range(4)]
            for name in PARTIES:  # a second process of each party, beside the first
                endpoint = new.endpoint(name)
                tasks[f"new {name}"] = endpoint, asyncio.create_task(endpoint.run())
                await until(lambda name=name: name in gateway.versions[new.model].parties)
                count = len(seen)
                await until(lambda count=count: len(seen) > count + 8)
            for name in PARTIES:
                tasks[name][0].stop()
            await until(lambda: not gateway.versions[old.model].parties)
            count = len(seen)
            await until(lambda: len(seen) > count + 8)
            over.set()
            await asyncio.gather(*clients)

    asyncio.run(swap())
    first_new = seen.index(new.model)
    assert first_new > 16
    assert {*seen[first_new + 8 :]} == {new.model}  # at most the batches on their way are of the old version


def test_a_party_that_lacks_the_version_is_absent(versions):
    old, new = versions()
    ids = np.arange(5)

    async def asked():
        async with running(old, PARTIES[:1], more=[new]) as (gateway, tasks):
            for name in PARTIES[1:]:
                endpoint = new.endpoint(name)
                tasks[f"new {name}"] = endpoint, asyncio.create_task(endpoint.run())
                await until(lambda name=name: name in gateway.versions[new.model].parties)
            return await gateway.predict(ids)

    joined = asyncio.run(asked())
    assert (joined.server.manifest.model, joined.absent) == (new.model, ("bank",))
    np.testing.assert_allclose(joined.values, new.expected(ids, PARTIES[1:]), atol=1e-5)


def test_an_endpoint_does_not_answer_for_another_version(versions):
    old, _ = versions()
    endpoint = old.endpoint("bank")
    answer = asyncio.run(endpoint._answered(written(Ask(1, "e" * 64, np.arange(3))), None))
    assert answer.why == "the request is for another version of the model"


def test_a_version_twice_is_refused(versions):
    old, _ = versions()
    with pytest.raises(ConfigurationError, match="give each version once"):
        old.gateway(more=[old])


def test_a_party_is_gone_although_grpc_cancels_the_call_while_it_ends(versions):
    """gRPC cancels a handler whose caller has gone, at any await: also while the handler clears up."""
    old, _ = versions()

    async def gone():
        async with running(old) as (gateway, _):
            connection = next(iter(gateway._connections))
            for _ in range(2):  # the second one meets the clearing up
                connection.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({connection})
            return len(gateway.versions[old.model].parties)

    assert asyncio.run(gone()) == len(PARTIES) - 1
