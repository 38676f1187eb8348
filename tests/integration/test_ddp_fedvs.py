"""FedVS in two processes that share every batch against one process with the joint batch."""

from functools import partial

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.callbacks import PartyDropout, Stragglers
from lightning_vfl.datamodules import ContiguousColumns
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.waiting import Threshold
from tests.integration.joint_batches import fit_and_test, in_quick_and_slow, trained, with_equal_books
from tests.subjects import Blobs

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
SLOW = {"whole coded rows in each process", "uneven rows", "one record in the last batch, one process without rows"}
QUICK_AND_SLOW = in_quick_and_slow(CASES, SLOW)


def train(folder, devices, case):
    records, blocks, steps, execution, faulty = CASES[case]
    Blobs.records_in_all = records
    torch.manual_seed(0)
    module = SplitVFL(
        LagrangeCoded(blocks=blocks, privacy=1, execution=execution),
        partial(PolynomialNetwork, degree=2),
        width=5,
        seed=0,
        waiting=Threshold(timeout=9.0),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        evaluate="protocol",
        allow_embeddings_by_subtraction=True,
    )
    callbacks = [Stragglers(), PartyDropout(0.5, 0.3)] if faulty else []
    data = Blobs(ContiguousColumns(7), batch_size=10 // devices)
    fit_and_test(folder, devices, module, data, max_epochs=10, max_steps=steps, callbacks=callbacks)


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory):
    return trained(request, tmp_path_factory, CASES, train)


@pytest.mark.processes
@pytest.mark.parametrize("case", QUICK_AND_SLOW)
def test_two_processes_are_one_with_the_joint_batch_to_one_quantum(folders, case):
    """Each process shares the data alone and has secrets of its own; seconds and bytes are those of the joint batch.

    Gradients are added in another order; a rounding that flips moves weights by its quantum times the rate.
    """
    one, two = with_equal_books(folders, case)
    quantum = 2.0 ** -one["agreed"]["agreed"]["l_w"]
    assert 0.05 * quantum < 2e-5
    for name, value in one["weights"].items():
        assert (two["weights"][name] - value).abs().max() <= 0.05 * quantum, name
    for name, value in one["test"].items():
        torch.testing.assert_close(two["test"][name], value, rtol=1e-3, atol=1e-3, msg=name)
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
