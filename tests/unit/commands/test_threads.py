"""Small networks are trained with one thread, others and those of a user who names a number are left alone."""

import pytest
import torch
from lightning.pytorch import Callback

from lightning_vfl.cli import run
from lightning_vfl.commands.threads import VARIABLES

FIT = ["fit", "--config", "protocol/mean", "--trainer.fast_dev_run", "true", "--summary.enabled", "false"]


class Seen(Callback):
    def on_train_batch_start(self, *_):
        self.threads = torch.get_num_threads()


@pytest.fixture
def threads(monkeypatch):
    """How many threads a training has on a machine where torch uses 3."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    def used(*arguments):
        seen = Seen()
        run([*FIT, *arguments], [seen])
        assert torch.get_num_threads() == 3
        return seen.threads

    yield used
    torch.set_num_threads(before)


def test_small_networks_have_one_thread_and_large_ones_keep_theirs(threads):
    assert threads("--config", "data/digits") == 1
    assert threads("--config", "data/digits", "--model.bottom.hidden", "[200, 200]") == 3


def test_a_field_keeps_its_threads(threads):
    assert threads("--config", "data/digits", "--model.aggregator", "MaskedSum") == 3


def test_a_number_in_the_environment_is_kept(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads("--config", "data/digits") == 3
