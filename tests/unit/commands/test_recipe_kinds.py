"""Two packaged recipes of a kind do not mix in silence; files of a user overlay as before."""

import shutil

import pytest

from lightning_vfl.commands.recipes import merge_arguments
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.configs import find_recipe, packaged, packaged_name
from lightning_vfl.errors import ConfigurationError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def expand(*recipes):
    return merge_arguments(["fit", *(f"--config={recipe}" for recipe in recipes)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("protocol/fedvs", "protocol/mean"),
        ("protocol/vfedsec", "protocol/mean"),
        ("data/csv_tables", "data/digits"),
        ("policy/zeros", "policy/wait"),
    ],
)
def test_two_recipes_of_a_kind_are_refused(first, second):
    line = f"--config {first} and --config {second}: a run takes one recipe of {first.partition('/')[0]}/, .* leave one"
    for pair in ((first, second), (find_recipe(first), f"configs/{second}.yaml"), (first, "faults/unreliable", second)):
        with pytest.raises(ConfigurationError, match=line):
            expand(*pair)


@pytest.mark.parametrize(
    "recipes",
    [
        ("data/digits", "protocol/mean", "policy/zeros", "faults/unreliable", "faults/fedvs_figure1", "trainer/cpu"),
        ("trainer/cpu", "trainer/demo", "protocol/mean", "protocol/mean"),
    ],
)
def test_one_of_each_kind_and_several_faults_and_trainers_overlay(recipes):
    assert expand(*recipes)[:2] == ["fit", "--config"]


def test_a_file_of_a_user_overlays_a_recipe_of_its_kind(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {class_path: SplitVFL, init_args: {width: 3}}")
    given = VFLCLI(expand("data/digits", "protocol/fedvs", "mine.yaml")).given.model.init_args
    assert (given.width, given.waiting.class_path.rpartition(".")[2]) == (3, "Threshold")
    shutil.copy(find_recipe("protocol/mean"), tmp_path / "copy.yaml")
    expand("protocol/fedvs", "copy.yaml")


def test_the_policy_wait_has_no_timeout_of_an_earlier_recipe():
    given = VFLCLI(expand("data/digits", "protocol/vfedsec", "policy/wait")).given.model.init_args
    assert given.waiting.init_args.timeout is None


def test_every_packaged_recipe_has_its_name():
    assert [packaged_name(str(path)) for path in packaged().values()] == list(packaged())
    assert packaged_name("{}") is None
