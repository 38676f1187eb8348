"""Every file of ``examples`` runs, reaches an accuracy, and is as short as the pages say."""

import runpy
from pathlib import Path

import lightning.pytorch
import pytest
import torch

from tests.further import few

FOLDER = Path(__file__).parents[2] / "examples"
LINES = {  # the most lines of a file
    "split": 40,
    "bank_and_telco": 45,
    "images": 40,
    "laser_heads": 40,
    "multi_view": 40,
    "compare_policies": 45,
    "privacy_budget": 45,
    "absent_party": 40,
    "asynchronous": 40,
    "decoupled": 40,
    "cascade": 40,
    "own_aggregator": 40,
    "own_data_set": 40,
    "own_fault": 40,
    "own_compression": 40,
    "own_local_update": 50,
    "own_lora": 44,
    "own_masked_sum": 42,
    "own_outage": 72,
    "own_protocol": 30,
    "own_round": 35,
    "own_top": 38,
    "own_wire": 65,
}


def test_every_example_is_listed_and_short():
    lengths = {
        path.stem: len(path.read_text(encoding="utf-8").splitlines())
        for path in FOLDER.glob("*.py")
        if not path.stem.startswith("make_")  # they make files for the pages
    }
    assert lengths.keys() == LINES.keys()
    assert {name: n for name, n in lengths.items() if n > LINES[name]} == {}


@pytest.mark.filterwarnings("ignore:.*`enable_progress_bar=True`.*:UserWarning")
@pytest.mark.parametrize("name", few(LINES, "asynchronous"))  # those of own_*.py train in test_own_classes.py as well
def test_an_example_trains(name, tmp_path, monkeypatch):
    """As ``python examples/NAME.py``; the accuracy is that of the last ``trainer.test``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored afterwards, where an example seeds everything
    found = []
    test = lightning.pytorch.Trainer.test

    def noting(*args, **kwargs):
        found.extend(results := test(*args, **kwargs))
        return results

    monkeypatch.setattr(lightning.pytorch.Trainer, "test", noting)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert found[-1]["test/accuracy"] > (0.7 if name == "privacy_budget" else 0.85)
    assert not list(tmp_path.iterdir())
