"""What holds for all tests."""

import functools
import gc
import importlib.metadata
import random
import sys

import pytest
from hypothesis import settings

from tests.examples import EXAMPLES

gc.disable()  # until everything is imported and collected
# a trainer reads the entry points of all installed packages, 5 ms each time; nothing is installed while tests run
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]

# no deadline: a loaded machine is no failure; no database: a run depends on the profile and the seed alone
settings.register_profile("ci", max_examples=EXAMPLES, derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", max_examples=10 * EXAMPLES, database=None, deadline=None, print_blob=True)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Draw a seed for profile fuzz if none is given; the worker processes are given that of the first process."""
    if config.getoption("--hypothesis-profile") == "fuzz" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(10**6))


def pytest_report_header(config):
    """Say how to repeat a run of profile fuzz."""
    seed = config.getoption("--hypothesis-seed")
    return None if seed is None else f"repeat these examples with --hypothesis-seed={seed}"


def pytest_collection_finish():
    gc.freeze()  # the hundreds of thousands of objects that imports have made are not looked through again and again
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    if "lightning.pytorch" in sys.modules:
        move_once()


def move_once():
    """Let lightning move a logged value once and not before every update, a walk that is a fifth of a small fit.

    The processes that tests start have lightning as it is.
    """
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric

    move = _ResultMetric.to

    def to(self, *args, **kwargs):
        there = self.is_tensor and not kwargs and args == (self.value.device,)
        return self if there else move(self, *args, **kwargs)

    _ResultMetric.to = to


@pytest.fixture
def uses():
    """The blocks of keystream that the parties of this test have masked with so far."""
    from tests.keystream_uses import recorded

    with recorded() as made:
        yield made
