"""Imports without garbage collections."""

import gc
import subprocess
import sys

import lightning  # noqa: F401
import pytest

from lightning_vfl.imports import no_collection


@pytest.fixture
def frozen(monkeypatch):
    """What is frozen, as if lightning was not imported yet; the objects of this process are left alone."""
    calls = []
    monkeypatch.delitem(sys.modules, "lightning")
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("frozen"))
    return calls


def test_nothing_is_collected_meanwhile_and_imported_objects_are_frozen(frozen):
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert frozen == ["frozen"]


def test_collections_go_on_after_a_failed_import(frozen):
    with pytest.raises(ImportError, match="no such package"), no_collection():
        raise ImportError("no such package")
    assert gc.isenabled()
    assert not frozen


def test_a_process_that_has_imported_lightning_keeps_its_collections(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("the objects of a user would never be collected"))
    assert "lightning" in sys.modules
    with no_collection():
        assert gc.isenabled()


def test_a_process_without_collections_gets_none(frozen):
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert not frozen


@pytest.mark.slow
@pytest.mark.processes
def test_the_program_imports_lightning_without_collections():
    code = "import gc; full = []; gc.callbacks.append(lambda phase, told: full.append(told['generation']))\n"
    code += "from lightning_vfl.cli import main\n"
    code += (
        "try: main(['fit', '--help.all'])\nexcept SystemExit: print('collected', full.count(2), gc.get_freeze_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, collections, frozen = done.stdout.splitlines()[-1].split()
    assert int(collections) < 3  # start and stop of at most one, of the parsing; without it there are a dozen
    assert int(frozen) > 100_000


STATE = """
import gc, logging, os, random, signal, sys, warnings
import lightning.pytorch as pl, lightning.pytorch.cli, numpy, torch, torchmetrics
from lightning.pytorch.strategies import StrategyRegistry
from torch.optim.lr_scheduler import LRScheduler

KINDS = torch.nn.Module, torch.optim.Optimizer, LRScheduler, pl.Callback, pl.loggers.Logger, pl.strategies.Strategy

def below(kind):
    return {kind}.union(*(below(one) for one in kind.__subclasses__())) if kind is not type else {kind}

def short_names():  # as jsonargparse offers them to every command line of the process
    public = {one for kind in KINDS for one in below(kind) if "._" not in f"{one.__module__}.{one.__name__}"}
    return sorted((one.__name__, one.__module__) for one in public)

def settings(logger):  # a place in the tree of names, which is no logger, has none
    return [*vars(logger).get("handlers", ()), *vars(logger).get("filters", ()), vars(logger).get("level", 0)]

def state():
    loggers = logging.root.manager.loggerDict
    return {
        "environment": dict(os.environ),
        "filters of warnings": [str(one) for one in warnings.filters],
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch": (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()),
        "generators": (torch.get_rng_state().tolist(), repr(numpy.random.get_state()), random.getstate()),
        "numpy": (numpy.geterr(), numpy.get_printoptions()),
        "classes that may be loaded": sorted(map(str, torch.serialization.get_safe_globals())),
        "garbage": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()),
        "paths": (list(sys.path), [*map(repr, sys.meta_path)], sys.getrecursionlimit()),
        "strategies": sorted(StrategyRegistry.available_strategies()),
        "signals": [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
        "hooks": (sys.excepthook, sys.displayhook),
        "loggers": {name: settings(one) for name, one in loggers.items() if any(settings(one))},
        "all loggers": (logging.root.level, [*logging.root.handlers], logging.root.manager.disable),
        "methods of others": [dict(vars(cls)) for cls in (pl.Trainer, pl.LightningModule, pl.cli.LightningCLI)],
    }

before, names = state(), short_names()
import lightning_vfl.aggregators, lightning_vfl.callbacks, lightning_vfl.cli, lightning_vfl.datamodules
import lightning_vfl.networks, lightning_vfl.protocols
after = state()
print([name for name in before if before[name] != after[name]])
taken = {name for name, _ in names}
print(sorted({name for name, module in short_names() if name in taken and module.startswith("lightning_vfl")}))
"""


def test_importing_the_package_changes_nothing_for_others():
    """Environment, warnings, threads, generators, signals and loggers stay; no short name becomes ambiguous."""
    done = subprocess.run([sys.executable, "-c", STATE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
