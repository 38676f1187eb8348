"""What a user gets who installs the wheel: everything, under one name, working away from the checkout."""

import shutil
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from lightning_vfl import __version__

from .checkout import ROOT, WINGS, copy_checkout, run, succeed

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    succeed([sys.executable, "-m", "build", "--wheel", "--outdir", folder, checkout], checkout)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The ``bin`` folder of an environment with the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    succeed([sys.executable, "-m", "venv", folder], folder)
    for requirement in ("torch", wheel):  # as the Makefile does it
        succeed([folder / "bin/python", "-m", "pip", "install", "-qc", ROOT / "constraints.txt", requirement], folder)
    yield folder / "bin"
    shutil.rmtree(folder)  # 2 GB


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A user's project, whose own packages are called like our folders."""
    folder = tmp_path_factory.mktemp("project")
    for wing in WINGS:
        (folder / wing).mkdir()
        (folder / wing / "__init__.py").write_text("raise ImportError('this is the package of the user')\n")
    return folder


@pytest.fixture(scope="module")
def checkpoint(installed, elsewhere):
    recipe = ["--config", "data/digits", "--config", "protocol/mean"]
    trainer = ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"]
    succeed([installed / "lightning-vfl", "fit", *recipe, *trainer], elsewhere)
    (path,) = elsewhere.rglob("*.ckpt")
    return path


def contents(wheel):
    """Files by name, those of the metadata without their folder."""
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    prefix = f"lightning_vfl-{__version__}.dist-info/"
    metadata = {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}
    return {name: data for name, data in files.items() if not name.startswith(prefix)}, metadata


def test_the_wheel_holds_all_code_and_recipes_under_one_name_and_nothing_else(checkout, wheel):
    expected = {"lightning_vfl/py.typed": checkout / "lightning_vfl/py.typed"}
    for folder, name in {"lightning_vfl": "lightning_vfl", **{wing: f"lightning_vfl/{wing}" for wing in WINGS}}.items():
        for path in (checkout / folder).rglob("*"):
            if path.suffix in (".py", ".yaml"):
                expected[f"{name}/{path.relative_to(checkout / folder).as_posix()}"] = path
    assert len([name for name in expected if name.endswith(".yaml")]) >= 12
    assert contents(wheel)[0] == {name: path.read_bytes() for name, path in expected.items()}


def test_the_wheel_says_what_it_is(wheel):
    _, metadata = contents(wheel)
    said = message_from_bytes(metadata["METADATA"])
    assert (said["Name"], said["Version"]) == ("lightning-vfl", __version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert metadata["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"lightning-vfl = lightning_vfl.cli:main" in metadata["entry_points.txt"].splitlines()


def test_what_is_imported_is_the_wheel_and_not_the_checkout(installed, elsewhere):
    code = "import lightning_vfl, lightning_vfl.callbacks as c, lightning_vfl.datamodules as d\n"
    code += "print(lightning_vfl.__file__, c.__file__, d.__file__, sep='\\n')"
    printed = succeed([installed / "python", "-c", code], elsewhere)
    assert all(Path(line).is_relative_to(installed.parent / "lib") for line in printed.splitlines())


def test_a_users_own_packages_of_the_same_names_are_in_the_way_of_nothing(installed, elsewhere):
    for wing in WINGS:
        assert (
            "this is the package of the user" in run([installed / "python", "-c", f"import {wing}"], elsewhere).stdout
        )
        succeed([installed / "python", "-c", f"import lightning_vfl.{wing}"], elsewhere)


def test_training_by_the_console_script_writes_a_checkpoint(checkpoint, elsewhere):
    assert checkpoint.is_relative_to(elsewhere / "runs")


def test_that_checkpoint_is_tested_by_the_module(installed, elsewhere, checkpoint):
    recipe = ["--config", "data/digits", "--config", "protocol/mean", "--trainer.accelerator", "cpu"]
    printed = succeed(
        [installed / "python", "-m", "lightning_vfl", "test", *recipe, "--ckpt_path", checkpoint], elsewhere
    )
    assert "test/accuracy" in printed
