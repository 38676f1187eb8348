"""The same seed gives the same trace, virtual seconds and shown ε, whatever vector units numpy may use."""

import json
import subprocess
import sys

import pytest

from tests.further import further
from tests.golden import processor

PROGRAM = """
import json, sys
import torch
from lightning_vfl.privacy import GaussianEvent, PoissonBinomialEvent, PrivacyAccountant, rounded_up, shown
from lightning_vfl.simulation import Exponential, Faults, LogNormal, Stragglers, VirtualClock
from lightning_vfl.types import Roster
from lightning_vfl.waiting import Fastest
from tests.golden import processor

faults, clock, roster = Faults(seed=5), VirtualClock(), Roster.singles(12)
for model in (Stragglers(fast=Exponential(0.1)), Stragglers(slow=LogNormal(4000.0, sigma=2.0, step=1.0))):
    faults.add(model)
trace = [faults.at(request, roster).delay.tolist() for request in range(640)]
for delays in trace:
    clock.advance(Fastest(7).close(torch.tensor(delays, dtype=torch.float64))[1])
accountant, logged = PrivacyAccountant(50), []
for round in range(12):
    event = PoissonBinomialEvent(levels=16, beta=0.1, parties=10 - round % 3, coordinates=16)
    accountant.spend(event if round % 4 else GaussianEvent(3.0, 1.0, 4), torch.arange(round, 30))
    logged.append([rounded_up(accountant.epsilon(1e-5, unit)) for unit in ("party-record", "record", "party")])
json.dump([processor.in_use(), trace, clock.seconds, logged, shown(accountant.epsilon(1e-5))], sys.stdout)
"""


@pytest.mark.parametrize("left", [0, further(1)], ids=["without any", "without wide ones"])  # of x86-64: AVX2, AVX-512
def test_trace_virtual_seconds_and_shown_epsilon_are_those_of_every_processor(left, capsys):
    names = processor.dispatched()
    exec(PROGRAM, {})
    here, *expected = json.loads(capsys.readouterr().out)
    command = [sys.executable, *processor.REFUSE, "-c", PROGRAM]
    environment = processor.without(names[left:])
    fewer, *without = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert set(fewer) <= {*names[:left]} & {*here}
    assert without == expected


def test_numpy_refuses_names_that_it_does_not_know():
    done = subprocess.run(
        [sys.executable, *processor.REFUSE, "-c", "import numpy"],
        env=processor.without([*processor.dispatched(), "AVX1024"]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "AVX1024" in done.stderr
