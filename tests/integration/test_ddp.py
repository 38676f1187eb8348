"""Two processes that share every batch are one process with the joint batch."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

CODE = """
import sys, torch
from functools import partial
from lightning_vfl.callbacks import Crashes, PartyDropout, PredictionWriter, Stragglers
from lightning_vfl.missing import Skip, Zeros
from lightning_vfl.waiting import Deadline
from lightning_vfl.aggregators import Concat, Max, Mean, Sum
from tests.subjects import Blobs, split, trainer

if __name__ == "__main__":
    folder, aggregator = sys.argv[1], sys.argv[3]
    devices, batch_size, records = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    Blobs.records_in_all = records
    Blobs.partly_held = records == 92
    module = split({"Mean": Mean, "Sum": Sum, "Max": Max, "Concat": Concat}[aggregator](),
                   optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
                   waiting=Deadline(0.3), missing={"Mean": Zeros, "Sum": Skip}.get(aggregator, lambda: None)())
    strategy = "ddp" if devices > 1 else "auto"
    writer = PredictionWriter(folder + "/p.csv")
    faults = [Stragglers(), PartyDropout(0.3, 0.3), Crashes("hosts", 0.1, 0.9), Crashes("guests", 0.1, 0.9)]
    faults = faults if sys.argv[6] == "faults" else []
    t = trainer(folder, devices=devices, strategy=strategy, max_epochs=4, callbacks=[writer, *faults])
    data = Blobs(batch_size=batch_size)
    t.fit(module, datamodule=data)
    fitted = {k: v.double() for k, v in t.callback_metrics.items()}
    tested = {k: torch.as_tensor(v).double() for k, v in t.test(module, datamodule=data, verbose=False)[0].items()}
    t.predict(module, datamodule=data)
    if t.is_global_zero:
        state = {"weights": module.state_dict(), "fit": fitted, "test": tested, "rounds": module.rounds,
                 "bytes": module.meter.state_dict(), "steps": t.global_step, "given up": module.given_up,
                 "standing": module.standing()}
        torch.save(state, folder + "/state.pt")
"""


def run(folder: Path, devices: int, aggregator: str, batch_size: int, records: int, faults: str):
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(CODE)
    root = Path(__file__).parents[2]
    arguments = [str(folder), str(devices), aggregator, str(batch_size), str(records), faults]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "state.pt", weights_only=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("aggregator", "records", "faults"),
    [("Mean", 92, "none"), ("Max", 95, "none"), ("Mean", 92, "faults"), ("Sum", 95, "faults")],
    ids=["uneven rows", "a batch of one row", "faults and zeros", "faults and skipped rounds"],
)
def test_two_processes_are_one_with_the_joint_batch(tmp_path, aggregator, records, faults):
    """Batches of 8 in each of two processes against 16 in one; the last batch is smaller, with odd rows or just one."""
    one = run(tmp_path / "one", 1, aggregator, 16 if records != 95 else 14, records, faults)
    two = run(tmp_path / "two", 2, aggregator, 8 if records != 95 else 7, records, faults)
    assert one["steps"] == two["steps"] > 0
    for book in ("rounds", "given up", "standing"):
        assert one[book] == two[book]
    assert (one["given up"] > 0) == (faults == "faults")
    for name, value in one["weights"].items():
        assert (two["weights"][name] - value).norm() <= 1e-6 * value.norm(), name
    for name, count in one["bytes"].items():
        assert torch.equal(two["bytes"][name], count)
    for stage in ("fit", "test"):
        for name, value in one[stage].items():
            torch.testing.assert_close(two[stage][name], value, rtol=1e-5, atol=1e-6, msg=f"{stage} {name}")
    predictions = [pd.read_csv(tmp_path / which / "p.csv") for which in ("one", "two")]
    assert predictions[0]["record"].tolist() == predictions[1]["record"].tolist()
    assert (predictions[0] - predictions[1]).abs().to_numpy().max() < 1e-5
