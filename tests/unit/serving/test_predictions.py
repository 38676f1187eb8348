"""Law: in production, parties and gateway predict what the halves predict in one place, whoever is there."""

import asyncio

import numpy as np
import pytest

from lightning_vfl.export.manifest import Missing
from lightning_vfl.serving import gateway as gateway_module
from lightning_vfl.serving.batches import Batches
from tests.served import CLEAR, MASKED, PARTIES, Subject, running, until

CLOSE = 1e-5


@pytest.mark.parametrize("protection", [CLEAR, MASKED], ids=["clear", "masked"])
def test_predictions_are_those_of_the_oracle(protection, tmp_path):
    subject = Subject(tmp_path, protection, Missing.SKIP)
    ids = np.array([3, 0, 49, 7, 3])

    async def asked():
        async with running(subject) as (gateway, _):
            return [await gateway.predict(ids) for _ in range(3)]

    for joined in asyncio.run(asked()):
        assert joined.absent == ()
        assert joined.predicted.all()
        np.testing.assert_allclose(joined.values, subject.expected(ids), atol=CLOSE)


def test_an_absent_party_is_left_out_and_used_again(tmp_path):
    subject = Subject(tmp_path)
    ids = np.arange(10)

    async def asked():
        async with running(subject, PARTIES[:2]) as (gateway, tasks):
            before = await gateway.predict(ids)
            endpoint = subject.endpoint("telco")
            tasks["telco"] = endpoint, asyncio.create_task(endpoint.run())
            await until(lambda: gateway.states["telco"] == "connected")
            return before, await gateway.predict(ids)

    before, after = asyncio.run(asked())
    assert (before.absent, after.absent) == (("telco",), ())
    np.testing.assert_allclose(before.values, subject.expected(ids, PARTIES[:2]), atol=CLOSE)
    np.testing.assert_allclose(after.values, subject.expected(ids), atol=CLOSE)


@pytest.mark.parametrize(("protection", "missing"), [(CLEAR, Missing.SKIP), (MASKED, Missing.SKIP)])
def test_without_a_policy_an_absent_party_leaves_no_prediction(protection, missing, tmp_path):
    async def asked():
        async with running(Subject(tmp_path, protection, missing), PARTIES[:2]) as (gateway, _):
            return gateway.ready, await gateway.predict(np.arange(3))

    ready, joined = asyncio.run(asked())
    assert not ready
    assert joined.values is None
    assert not joined.predicted.any()
    assert not joined.unknown.any()
    assert joined.absent == ("telco",)


@pytest.mark.parametrize("protection", [CLEAR, MASKED], ids=["clear", "masked"])
def test_a_record_that_a_party_lacks_is_unknown(protection, tmp_path):
    ids = {"bank": range(10), "shop": range(5, 15), "telco": range(20)}
    subject = Subject(tmp_path, protection, Missing.SKIP, ids=ids)
    asked = np.array([4, 5, 9, 10, 99])

    async def ask():
        async with running(subject) as (gateway, _):
            return await gateway.predict(asked)

    joined = asyncio.run(ask())
    assert joined.unknown.tolist() == [True, False, False, True, True]
    assert joined.predicted.tolist() == [False, True, True, False, False]
    np.testing.assert_allclose(joined.values[1:3], subject.expected(asked[1:3]), atol=CLOSE)


def test_a_model_for_parties_that_lack_records_predicts_from_those_that_have_them(tmp_path):
    ids = {"bank": range(10), "shop": range(5, 15), "telco": range(20, 30)}
    subject = Subject(tmp_path, overlap="keep", ids=ids)
    asked = np.array([0, 7, 12, 25, 99])

    async def ask():
        async with running(subject) as (gateway, _):
            return await gateway.predict(asked)

    joined = asyncio.run(ask())
    assert joined.unknown.tolist() == [False, False, False, False, True]
    np.testing.assert_allclose(joined.values[:4], subject.expected(asked[:4]), atol=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("protection", [CLEAR, MASKED], ids=["clear", "masked"])
def test_a_party_that_restarts_while_requests_run_costs_no_answer_and_no_wrong_one(protection, tmp_path):
    subject = Subject(tmp_path, protection, Missing.SKIP if protection is MASKED else Missing.EXCLUDE)
    random = np.random.default_rng(1)
    counts = {"whole": 0, "without": 0}

    async def client(batches, over):
        while not over.is_set():
            ids = random.integers(50, size=5)
            joined, part = await asyncio.wait_for(batches.predict(ids), 10)
            if joined.values is None:
                assert joined.absent
            else:
                there = [name for name in PARTIES if name not in joined.absent]
                np.testing.assert_allclose(joined.values[part], subject.expected(ids, there), atol=CLOSE)
            counts["without" if joined.absent else "whole"] += 1
            await asyncio.sleep(0.002)

    async def kills():
        async with running(subject) as (gateway, tasks):
            batches, over = Batches(gateway.predict), asyncio.Event()
            clients = [asyncio.create_task(client(batches, over)) for _ in range(8)]

            async def answered(how):
                due = counts[how] + 20
                await until(lambda: counts[how] >= due)

            for name in PARTIES * 2:
                await answered("whole")
                tasks[name][1].cancel()  # as a kill: nothing is answered and nothing is said
                await asyncio.gather(tasks[name][1], return_exceptions=True)
                await answered("without")
                endpoint = subject.endpoint(name)
                tasks[name] = endpoint, asyncio.create_task(endpoint.run())
                await until(lambda name=name: gateway.states[name] == "connected")
            over.set()
            await asyncio.gather(*clients)

    asyncio.run(kills())


def test_a_gateway_that_stops_waits_for_answers_on_their_way_and_leaves_no_task(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway_module, "_GRACE", 60.0)
    subject = Subject(tmp_path)
    ids = np.arange(5)

    async def stop():
        async with running(subject) as (gateway, tasks):
            shop = tasks["shop"][0]
            at_once = shop._answered

            async def slow(content, keys):
                await asyncio.sleep(0.3)
                return await at_once(content, keys)

            shop._answered = slow
            last = asyncio.create_task(gateway.predict(ids))
            await asyncio.sleep(0.05)
            began = asyncio.get_running_loop().time()
            await gateway.stop()
            seconds = asyncio.get_running_loop().time() - began
            joined = await last
        # gRPC ends the last coroutines of its own in some later turn of the loop
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        return joined, seconds

    joined, seconds = asyncio.run(stop())
    assert joined.absent == ()
    np.testing.assert_allclose(joined.values, subject.expected(ids), atol=CLOSE)
    assert seconds < 30  # and not until parties are cut off


def test_a_party_that_is_late_is_absent_until_it_has_answered(tmp_path):
    subject = Subject(tmp_path)
    ids = np.arange(5)

    async def asked():
        async with running(subject, deadline=0.2) as (gateway, tasks):
            shop = tasks["shop"][0]
            written = shop._answered
            frozen = []

            async def slow(content, keys):  # frozen: the answer comes after the deadline, with the next message
                frozen.append((content, keys))
                return

            shop._answered = slow
            first = await gateway.predict(ids)
            second = await asyncio.wait_for(gateway.predict(ids), 0.15)  # it is not waited for a second time
            shop._answered = written
            late = await written(*frozen[0])
            party = gateway.current.parties["shop"]
            party.answered(late.number, late)
            return first, second, await gateway.predict(ids), len(frozen)

    first, second, third, asked_for = asyncio.run(asked())
    assert (first.absent, second.absent, third.absent, asked_for) == (("shop",), ("shop",), (), 1)
    np.testing.assert_allclose(second.values, subject.expected(ids, ("bank", "telco")), atol=CLOSE)
    np.testing.assert_allclose(third.values, subject.expected(ids), atol=CLOSE)
