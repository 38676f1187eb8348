"""FedVS in two processes that share every batch against one process with the joint batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CODE = """
import sys, torch
from functools import partial
from pathlib import Path
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.callbacks import PartyDropout, Stragglers
from lightning_vfl.datamodules import ContiguousColumns
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.waiting import Threshold
from tests.subjects import Blobs, trainer

def one_case(folder, devices, records, blocks, steps, execution, faulty):
    Blobs.records_in_all = records
    torch.manual_seed(0)
    aggregator = LagrangeCoded(blocks=blocks, privacy=1, execution=execution)
    module = SplitVFL(aggregator, partial(PolynomialNetwork, degree=2), width=5, seed=0, waiting=Threshold(timeout=9.0),
                      optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9), evaluate="protocol")
    callbacks = [Stragglers(), PartyDropout(0.5, 0.3)] if faulty else []
    t = trainer(folder, devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=10, max_steps=steps,
                callbacks=callbacks)
    data = Blobs(ContiguousColumns(7), batch_size=10 // devices)
    t.fit(module, datamodule=data)
    tested = {k: torch.as_tensor(v).double() for k, v in t.test(module, datamodule=data, verbose=False)[0].items()}
    if t.is_global_zero:
        torch.save({"weights": module.state_dict(), "test": tested, "bytes": module.meter.state_dict(),
                    "rounds": module.rounds, "standing": module.standing(), "given up": module.given_up,
                    "agreed": module.preparation.state(), "steps": t.global_step}, folder / "state.pt")

if __name__ == "__main__":
    torch.set_num_threads(1)
    home, devices = Path(sys.argv[1]), int(sys.argv[2])
    for case in sys.argv[3:]:
        name, *settings = case.split("|")
        (home / name).mkdir(exist_ok=True)
        records, blocks, steps, execution, faulty = settings
        one_case(home / name, devices, int(records), int(blocks), int(steps), execution, faulty == "True")
    if devices > 1:
        torch.distributed.destroy_process_group()
"""

# name: records in all (three fifths train), K, steps, execution, faults
# batches of 10 records; with K = 2 these are 5 coded rows, the third of them half in one process, half in the other
CASES = {
    "coded": (90, 2, 4, "coded", False),
    "equivalent": (90, 2, 4, "equivalent", False),
    "whole coded rows in each process": (90, 3, 4, "coded", False),
    "uneven rows": (95, 2, 6, "coded", False),
    "faults": (90, 2, 5, "coded", True),
    "one record in the last batch, one process without rows": (102, 1, 7, "coded", False),
}


def run(folder, devices, cases):
    script = folder / "script.py"
    script.write_text(CODE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    listed = ["|".join(map(str, (name, *settings))) for name, settings in cases.items()]
    arguments = [sys.executable, str(script), str(folder), str(devices), *listed]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def compare(folders, case):
    """Gradients are added in another order; a rounding that flips moves weights by its quantum times the rate."""
    one, two = (torch.load(folder / case / "state.pt", weights_only=True) for folder in folders)
    for book in ("steps", "rounds", "standing", "given up", "agreed"):
        assert one[book] == two[book], book
    assert one["bytes"].keys() == two["bytes"].keys()
    for kind, count in one["bytes"].items():
        assert torch.equal(two["bytes"][kind], count), kind
    quantum = 2.0 ** -one["agreed"]["agreed"]["l_w"]
    assert 0.05 * quantum < 2e-5
    for name, value in one["weights"].items():
        assert (two["weights"][name] - value).abs().max() <= 0.05 * quantum, name
    for name, value in one["test"].items():
        torch.testing.assert_close(two["test"][name], value, rtol=1e-3, atol=1e-3, msg=name)
    return one, two


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """All cases in one process, and again in two: starting processes is what takes the time."""
    return [run(tmp_path_factory.mktemp(f"devices{devices}"), devices, CASES) for devices in (1, 2)]


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one_with_the_joint_batch_to_one_quantum(folders, case):
    """Each process shares the data alone and has secrets of its own; seconds and bytes are those of the joint batch."""
    one, _ = compare(folders, case)
    assert one["steps"] == CASES[case][2]
    assert (one["given up"] > 0) <= (case == "faults")
    kinds = {"peer/data shares", "peer/model shares", "peer/zero shares", "up/products", "down/gradients"}
    assert kinds <= one["bytes"].keys()


@pytest.mark.processes
def test_coded_is_equivalent_in_two_processes_bit_for_bit(folders):
    for folder in folders:
        coded, equivalent = (
            torch.load(folder / case / "state.pt", weights_only=True) for case in ("coded", "equivalent")
        )
        assert all(torch.equal(value, equivalent["weights"][name]) for name, value in coded["weights"].items())
        assert coded["test"] == equivalent["test"]
