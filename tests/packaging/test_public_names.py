import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest
import yaml

import lightning_vfl

from .checkout import ROOT, WINGS

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]


def test_every_package_of_the_checkout_is_listed_for_the_wheel():
    folders = [path.parent.relative_to(ROOT) for path in ROOT.glob("lightning_vfl/**/__init__.py")]
    wings = [path.parent.relative_to(ROOT) for wing in WINGS for path in ROOT.glob(f"{wing}/**/__init__.py")]
    found = [".".join(folder.parts) for folder in folders]
    found += [".".join(("lightning_vfl", *folder.parts)) for folder in wings]
    assert sorted(found) == sorted(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_package_defines_is_what_it_exports(name):
    package = importlib.import_module(name)
    exported = set(getattr(package, "__all__", ()))
    own = {
        public
        for public, value in vars(package).items()
        if not public.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and f"{value.__module__}.".startswith(f"{name}.")
    }
    assert own <= exported
    for public in exported - {"__version__"}:
        assert getattr(package, public).__module__.startswith("lightning_vfl.")


@pytest.mark.processes
@pytest.mark.slow
def test_the_core_is_imported_without_lightning_and_without_numba_and_galois():
    """Whichever package would load them: one process imports all."""
    late = {"lightning", "pytorch_lightning", "lightning_fabric", "numba", "galois"}
    code = f"import sys, lightning_vfl.field, lightning_vfl.aggregators; print(*{late} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n"


def test_the_version_is_that_of_the_installation():
    assert lightning_vfl.__version__ == version("lightning-vfl")


def test_the_citation_and_the_changelog_name_the_version_and_one_day():
    """The newest release of the changelog: what follows it is not yet released, and stands above it."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.search(r"^## \[(\d.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert (citation["version"], str(citation["date-released"])) == released.groups()
    assert citation["version"] == lightning_vfl.__version__
