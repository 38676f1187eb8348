"""What holds for all tests."""

import logging
import random
import sys

import pytest
from hypothesis import settings

from tests import quick
from tests.examples import EXAMPLES

quick.before_imports()

# no deadline: a loaded machine is no failure; no database: a run depends on the profile and the seed alone
settings.register_profile("ci", max_examples=EXAMPLES // 2, derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", max_examples=10 * EXAMPLES, database=None, deadline=None, print_blob=True)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Draw a seed for profile fuzz if none is given; the worker processes are given that of the first process."""
    quick.temporary_files_in_memory()
    if config.getoption("--hypothesis-profile") == "fuzz" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(10**6))


def pytest_report_header(config):
    """Say how to repeat a run of profile fuzz."""
    seed = config.getoption("--hypothesis-seed")
    return None if seed is None else f"repeat these examples with --hypothesis-seed={seed}"


def pytest_collection_finish(session):
    quick.after_imports()
    quick.report_less(session.config)
    if (processes := sys.modules.get("tests.integration.processes")) is not None:
        processes.fork_a_server()


@pytest.fixture
def told():
    """What lightning's logger tells in this test: a list of messages. Pytest's ``caplog`` takes time in every test."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture
def uses():
    """The blocks of keystream that the parties of this test have masked with so far."""
    from tests.keystream_uses import recorded

    with recorded() as made:
        yield made
