"""Law: no answer is wrong and none is lost while one party is killed and started again, and another one is frozen."""

import asyncio
import json

import pytest

from benchmarks.serving import Hosts, Oracle, ask, prepare, under_kills, until_connected, until_ready
from lightning_vfl.aggregators import Sum

pytestmark = [pytest.mark.slow, pytest.mark.processes]
IDS = [3, 99_999, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("serving")
    prepare(made, Sum())
    return made


def test_no_answer_is_wrong_or_lost_while_parties_are_killed_and_frozen(folder):
    row = under_kills(folder, 24, pause=6)
    assert (row["wrong"], row["lost"]) == (0, 0)
    assert row["kills"] >= 1
    assert row["without a party"] > 20
    assert row["requests"] - row["without a party"] > 20


def test_a_killed_gateway_loses_only_requests_that_get_an_error(folder):
    oracle = Oracle(folder)
    hosts = Hosts("clear", folder)

    async def answer():
        status, content, (_, writer) = await ask(hosts.port, "/predict", json.dumps({"ids": IDS}))
        writer.close()
        assert status == 200
        return json.loads(content)

    with hosts.running():
        assert oracle.is_right(IDS, asyncio.run(answer()))
        hosts.kill("server")
        with pytest.raises(OSError, match="Connect call failed"):
            asyncio.run(answer())
        hosts.start("server")
        asyncio.run(until_ready(hosts.port))
        asyncio.run(until_connected(hosts.port))  # the parties have called again
        after = asyncio.run(answer())
    assert after["absent"] == []
    assert oracle.is_right(IDS, after)
