"""vFedSec in two processes that share every batch against one process with the joint batch; all keystreams together."""

import json
from functools import partial

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.callbacks import PartyDropout
from lightning_vfl.datamodules import ContiguousColumns, Groups
from lightning_vfl.waiting import WaitForAll
from tests.integration.joint_batches import fit_and_test, in_quick_and_slow, trained, with_equal_books
from tests.keystream_uses import Use, recorded, reused
from tests.subjects import Blobs

# three fifths of the records train, in batches of 10
PLAIN = {"records": 90, "steps": 5, "silent": None, "members": [1, 1, 1]}
CASES = {
    "sum": PLAIN,
    "groups in segments, announced absences": {
        **PLAIN, "layout": "segments", "members": [1, 3, 3], "silent": False, "steps": 7
    },
    "groups": {**PLAIN, "members": [1, 3]},
    "recovery, silent absences": {**PLAIN, "recovery": {"threshold": 3}, "members": [1, 1, 1, 1], "silent": True},
    "equivalent": {**PLAIN, "layout": "segments", "execution": "equivalent", "silent": False},
    "uneven rows": {**PLAIN, "records": 95, "steps": 7, "layout": "segments"},
    "one record in the last batch, one process without rows": {**PLAIN, "records": 102, "steps": 8},
    "seeded groups": {**PLAIN, "insecure_seeded_secrets": True, "members": [1, 3, 3], "layout": "segments"},
    "seeded recovery": {**PLAIN, "insecure_seeded_secrets": True, "recovery": {}},
}  # fmt: skip
# their parts are tested by the other cases one at a time
SLOW = {"sum", "equivalent", "uneven rows", "seeded groups", "seeded recovery"}
QUICK_AND_SLOW = in_quick_and_slow(CASES, SLOW)


def train(folder, devices, case):
    settings = dict(CASES[case])
    records, steps, silent, members = (settings.pop(name) for name in ("records", "steps", "silent", "members"))
    Blobs.records_in_all = records
    torch.manual_seed(0)
    aggregator = MaskedSum(**settings)
    module = SplitVFL(
        aggregator,
        width=5,
        seed=0,
        active=0,
        waiting=WaitForAll(timeout=9.0),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        evaluate="protocol",
        allow_invertible_updates=True,
        allow_embeddings_by_subtraction=True,
    )
    callbacks = [] if silent is None else [PartyDropout(0.6, 0.3, announced=not silent)]
    cut = Groups(ContiguousColumns(len(members)), members=members)
    data = Blobs(cut, batch_size=10 // devices)
    limits = {"max_epochs": 10, "max_steps": steps, "num_sanity_val_steps": 0}
    with recorded() as uses:
        t = fit_and_test(folder, devices, module, data, callbacks=callbacks, **limits)
    (folder / f"uses{t.global_rank}.json").write_text(json.dumps(uses))


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory):
    return trained(request, tmp_path_factory, CASES, train)


def uses_of(folder, case):
    return [[Use(*use) for use in json.loads(path.read_text())] for path in sorted((folder / case).glob("uses*.json"))]


@pytest.mark.processes
@pytest.mark.parametrize("case", QUICK_AND_SLOW)
def test_two_processes_are_one_with_the_joint_batch_to_the_first_rounding_that_flips(folders, case):
    """Gradients are added in another order: weights differ by that, and by a quantum of 6e-8 where a rounding flips."""
    one, two = with_equal_books(folders, case)
    assert one["steps"] == CASES[case]["steps"]
    for name, value in one["weights"].items():
        assert (two["weights"][name] - value).abs().max() <= 1e-5, name
    for name, value in one["test"].items():
        torch.testing.assert_close(two["test"][name], value, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.processes
@pytest.mark.parametrize("case", QUICK_AND_SLOW)
def test_no_block_of_keystream_is_used_twice_by_all_processes_together(folders, case):
    one, two = (uses_of(folder, case) for folder in folders)
    assert [len(one), len(two)] == [1, 2]
    if CASES[case].get("execution") == "equivalent":
        assert one == [[]]
        return
    assert all(len(own) > 30 for own in (*one, *two))
    assert reused(one[0]) == []
    assert reused([use for own in two for use in own]) == []


@pytest.mark.processes
def test_the_copies_of_a_bottom_are_equal_after_training_in_two_processes(folders):
    for case in ("groups", "groups in segments, announced absences"):
        weights = torch.load(folders[1] / case / "state.pt", weights_only=True)["weights"]
        for name, value in weights.items():
            if name.startswith("bottoms.parties.2."):
                assert torch.equal(value, weights[name.replace("parties.2.", "parties.1.")])
