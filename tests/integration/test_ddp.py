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
from tests.integration.joint_batches import fit_and_test, in_quick_and_slow, trained, with_equal_books
from tests.integration.processes import in_one_and_in_two
from tests.subjects import Blobs, split, trainer

# aggregator, missing, records in all, faults
CASES = {
    "uneven rows": (Mean, Zeros, 92, False),
    "a batch of one row": (Max, Exclude, 95, False),
    "faults and zeros": (Mean, Zeros, 92, True),
    "faults and skipped rounds": (Sum, Skip, 95, True),
}
SLOW = {"a batch of one row", "faults and skipped rounds"}
QUICK_AND_SLOW = in_quick_and_slow(CASES, SLOW)


def train(folder, devices, case):
    aggregator, missing, records, faulty = CASES[case]
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
    data = Blobs(batch_size=(16 if records == 92 else 14) // devices)
    t = fit_and_test(folder, devices, module, data, max_epochs=2, callbacks=callbacks)
    t.predict(module, datamodule=data)


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory):
    return trained(request, tmp_path_factory, CASES, train)


@pytest.mark.processes
@pytest.mark.parametrize("case", QUICK_AND_SLOW)
def test_two_processes_are_one_with_the_joint_batch(folders, case):
    """Batches of 8 in each of two processes against 16 in one; the last batch is smaller, with odd rows or just one."""
    one, two = with_equal_books(folders, case)
    assert one["steps"] > 0
    assert (one["given up"] > 0) == case.startswith("faults")
    for name, value in one["weights"].items():
        assert (two["weights"][name] - value).norm() <= 1e-6 * value.norm(), name
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
    t = trainer(folder, devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=1)
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
    assert (one / "0.txt").read_text() == "1 nothing"
    for rank in (0, 1):
        assert "0 after the first epoch the weights of party 1 differ" in (two / f"{rank}.txt").read_text()
