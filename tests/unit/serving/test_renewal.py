"""Law: certificates are taken anew while the processes run, and the old ones are refused from then on."""

import asyncio
import os
import signal

import numpy as np
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import SERVER
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.identity import renew_identity
from lightning_vfl.serving.processes import run_endpoint
from tests.served import CLEAR, MASKED, PARTIES, Subject, running, until

IDS = np.arange(50)


def renewed(subject, *names):
    """The charter after these hosts have made new identities and the others have their certificates."""
    for name in names:
        renew_identity(name, subject.keys)
    return Charter.read(subject.folder / "federation.yaml")


async def right(gateway, subject, parties=PARTIES):
    """Predict, and hold the predictions to the oracle."""
    joined = await gateway.predict(IDS)
    async with asyncio.timeout(20):
        while {*PARTIES} - {*joined.absent} != {*parties}:  # a party that connects anew is absent meanwhile
            await asyncio.sleep(0.05)
            joined = await gateway.predict(IDS)
    np.testing.assert_allclose(joined.values, subject.expected(IDS, parties), atol=1e-5)


@pytest.mark.parametrize("protection", [CLEAR, MASKED], ids=["clear", "masked"])
@pytest.mark.parametrize("names", [("bank",), (SERVER,), (SERVER, *PARTIES)], ids=["a party's", "the server's", "all"])
def test_new_certificates_are_taken_without_a_stop(names, protection, tmp_path):
    async def renew():
        subject = Subject(tmp_path, protection)
        async with running(subject) as (gateway, tasks):
            await right(gateway, subject)
            charter = renewed(subject, *names)
            gateway.renew(charter, subject.seat(SERVER))
            await right(gateway, subject)  # over the connections of before
            connected, before = gateway.current.parties, {*gateway.current.parties.values()}
            for name in PARTIES:
                tasks[name][0].renew(charter, subject.seat(name))
            await until(lambda: len({*connected.values()} - before) == len(PARTIES))
            await right(gateway, subject)
            assert not any(task.done() for _, task in tasks.values())

    asyncio.run(renew())


def test_the_certificate_of_before_is_refused(tmp_path):
    async def refused():
        subject = Subject(tmp_path)
        async with running(subject, ("shop", "telco")) as (gateway, tasks):
            endpoint = subject.endpoint("bank")  # has the identity of before
            gateway.renew(renewed(subject, "bank"), subject.seat(SERVER))
            tasks["bank"] = endpoint, asyncio.create_task(endpoint.run())
            await asyncio.sleep(0.4)
            await right(gateway, subject, ("shop", "telco"))
            endpoint.renew(Charter.read(tmp_path / "federation.yaml"), subject.seat("bank"))
            await until(lambda: gateway.states["bank"] == "connected")
            await right(gateway, subject)

    asyncio.run(refused())


def test_a_signal_takes_the_files_as_they_are_and_a_mistake_in_them_changes_nothing(tmp_path, capsys):
    async def at_signals():
        subject = Subject(tmp_path)
        charter = subject.charter
        async with running(subject, ("shop", "telco")) as (gateway, _):
            endpoint, files = subject.endpoint("bank"), [subject.seat("shop"), subject.seat("bank")]
            task = asyncio.create_task(run_endpoint(endpoint, lambda: (charter, files.pop(0))))
            await until(lambda: gateway.ready and gateway.states["bank"] == "connected")
            for told in ("certificates not taken", "certificates taken"):
                os.kill(os.getpid(), signal.SIGHUP)
                await until(lambda told=told: told in capsys.readouterr().err)
                await until(lambda: gateway.states["bank"] == "connected")
                await right(gateway, subject)
            endpoint.stop()
            await task

    asyncio.run(at_signals())


def test_a_renewal_with_the_key_of_another_host_is_refused(tmp_path):
    subject = Subject(tmp_path)
    for process, other in ((subject.endpoint("bank"), "shop"), (subject.gateway(), "bank")):
        with pytest.raises(ConfigurationError, match="does not belong to the certificate"):
            process.renew(subject.charter, subject.seat(other))
