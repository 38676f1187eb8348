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
    code += "try: main(['fit', '--help'])\nexcept SystemExit: print('collected', full.count(2), gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, collections, frozen = done.stdout.splitlines()[-1].split()
    assert int(collections) < 3  # start and stop of at most one, of the parsing; without it there are a dozen
    assert int(frozen) > 100_000
