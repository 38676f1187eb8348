import pytest

from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.commands.recipes import expand_arguments, with_full_paths
from lightning_vfl.configs import find_recipe


def test_options_without_a_value_do_not_swallow_the_next():
    arguments = ["fit", "--print_config", "--config", "data/digits", "-c=protocol/mean", "--model.top", "Linear"]
    expanded = expand_arguments(arguments)
    assert expanded[:2] == ["fit", "--config"]
    assert expanded[2].endswith("digits.yaml")
    assert expanded[3].endswith("mean.yaml")
    assert expanded[4:] == ["--print_config", "--model.top", "lightning_vfl.networks.Linear"]


def test_short_class_paths_of_ours_are_made_full_and_others_left():
    config = {"model": [{"class_path": "Linear"}, {"class_path": "torch.nn.Linear"}, {"name": "Linear"}]}
    assert with_full_paths(config) == {
        "model": [
            {"class_path": "lightning_vfl.networks.Linear"},
            {"class_path": "torch.nn.Linear"},
            {"name": "Linear"},
        ]
    }
    assert own_classes()["Digits"] == "lightning_vfl.datamodules.Digits"


@pytest.mark.parametrize(
    "named", [["--config", "data/digits"], ["--config=data/digits"], ["--data", "Digits"], ["--data=Digits"]]
)
def test_the_data_are_named_before_a_part_of_them_is_set(named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part, last = ["--config", "protocol/pbm"], ["--trainer.max_epochs", "3"]
    first = expand_arguments(["fit", *named, *part, *last])
    assert expand_arguments(["fit", *part, *last, *named]) == first
    assert expand_arguments(["fit", *part, *named, *last]) == first
    assert first[0] == "fit"
    assert first[-4:-2] == expand_arguments(part)


def test_the_order_of_other_recipes_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for recipes in (
        ["protocol/mean", "data/digits", "policy/zeros"],
        ["data/digits", "protocol/pbm", '{"data": {"class_path": "BreastCancer"}}'],
        ["protocol/pbm"],
        ["protocol/pbm", '{"trainer": {}}'],
    ):
        arguments = [word for recipe in recipes for word in ("--config", recipe)]
        assert expand_arguments(arguments) == [word for recipe in recipes for word in ("--config", find_recipe(recipe))]
