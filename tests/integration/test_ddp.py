"""Two processes that share every batch are one process with the joint batch."""

from functools import partial

import pandas as pd
import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Max, Mean, Sum
from lightning_vfl.callbacks import Crashes, PartyDropout, PredictionWriter, Stragglers
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, Skip, Zeros
from lightning_vfl.waiting import Deadline
from tests.integration.processes import cases_asked, in_one_and_in_two
from tests.subjects import Blobs, split, trainer

# aggregator, missing, records in all, faults
CASES = {
    "uneven rows": (Mean, Zeros, 92, False),
    "a batch of one row": (Max, Exclude, 95, False),
    "faults and zeros": (Mean, Zeros, 92, True),
    "faults and skipped rounds": (Sum, Skip, 95, True),
}
SLOW = {"a batch of one row", "faults and skipped rounds"}
QUICK_AND_SLOW = [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES]


def train(folder, devices, aggregator, missing, records, faulty):
    Blobs.records_in_all = records
    Blobs.partly_held = records == 92
    module = split(
        aggregator(),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        waiting=Deadline(0.3),
        missing=missing(),
    )
    faults = [Stragglers(), PartyDropout(0.3, 0.3), Crashes("hosts", 0.1, 0.9), Crashes("guests", 0.1, 0.9)]
    callbacks = [PredictionWriter(str(folder / "p.csv")), *(faults if faulty else [])]
    strategy = "ddp" if devices > 1 else "auto"
    t = trainer(folder, devices=devices, strategy=strategy, max_epochs=4, callbacks=callbacks)
    data = Blobs(batch_size=(16 if records == 92 else 14) // devices)
    t.fit(module, datamodule=data)
    fitted = {k: v.double() for k, v in t.callback_metrics.items()}
    tested = {k: torch.as_tensor(v).double() for k, v in t.test(module, datamodule=data, verbose=False)[0].items()}
    t.predict(module, datamodule=data)
    if t.is_global_zero:
        state = {
            "weights": module.state_dict(),
            "fit": fitted,
            "test": tested,
            "rounds": module.books.rounds,
            "bytes": module.books.meter.state_dict(),
            "steps": t.global_step,
            "given up": module.books.given_up,
            "standing": module.standing(),
        }
        torch.save(state, folder / "state.pt")


def train_all(cases, folder, devices):
    for name in cases:
        (folder / name).mkdir(exist_ok=True)
        train(folder / name, devices, *CASES[name])


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory):
    made = [tmp_path_factory.mktemp(f"devices{devices}") for devices in (1, 2)]
    in_one_and_in_two(partial(train_all, cases_asked(request, CASES)), *made)
    return made


@pytest.mark.processes
@pytest.mark.parametrize("case", QUICK_AND_SLOW)
def test_two_processes_are_one_with_the_joint_batch(folders, case):
    """Batches of 8 in each of two processes against 16 in one; the last batch is smaller, with odd rows or just one."""
    one, two = (torch.load(folder / case / "state.pt", weights_only=True) for folder in folders)
    assert one["steps"] == two["steps"] > 0
    for book in ("rounds", "given up", "standing"):
        assert one[book] == two[book]
    assert (one["given up"] > 0) == case.startswith("faults")
    for name, value in one["weights"].items():
        assert (two["weights"][name] - value).norm() <= 1e-6 * value.norm(), name
    for name, count in one["bytes"].items():
        assert torch.equal(two["bytes"][name], count)
    for stage in ("fit", "test"):
        for name, value in one[stage].items():
            torch.testing.assert_close(two[stage][name], value, rtol=1e-5, atol=1e-6, msg=f"{stage} {name}")
    predictions = [pd.read_csv(folder / case / "p.csv") for folder in folders]
    pd.testing.assert_frame_equal(*predictions, rtol=0, atol=1e-5)


class Diverging(SplitVFL):
    def on_train_batch_end(self, *_):
        with torch.no_grad():
            next(self.bottoms.parties[1].parameters()).add_(self.global_rank)


def diverge(folder, devices):
    t = trainer(folder, devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=2)
    line = "nothing"
    try:
        t.fit(Diverging(Mean(), width=4), Blobs(batch_size=8))
    except ConfigurationError as error:
        line = str(error)
    (folder / f"{t.global_rank}.txt").write_text(f"{t.current_epoch} {line}")


@pytest.mark.processes
def test_processes_whose_weights_differ_after_an_epoch_end_with_a_line(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    in_one_and_in_two(diverge, one, two)
    assert (one / "0.txt").read_text() == "2 nothing"
    for rank in (0, 1):
        assert "0 after the first epoch the weights of party 1 differ" in (two / f"{rank}.txt").read_text()
