"""Recipes are merged into one: their order does not matter where they do not contradict, and nothing is lost."""

import json
from itertools import permutations

import pytest
import yaml

from lightning_vfl.cli import main
from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.commands.recipes import merge, merge_arguments, with_full_paths
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.configs import find_recipe
from lightning_vfl.errors import ConfigurationError
from tests.further import further

SPLIT = "lightning_vfl.protocols.SplitVFL"
ASYNC = "lightning_vfl.protocols.AsyncVFL"
OWN = {
    "trainer": {"max_epochs": 60, "callbacks+": [{"class_path": "LearningCurve", "init_args": {"path": "x.png"}}]},
    "model": {"init_args": {"bottom": {"init_args": {"output_activation": "torch.nn.Tanh"}}}},
    "data": {"init_args": {"seed": 5}},
    "optimizer": {"init_args": {"lr": 0.5}},
}
CALLBACKS = {"trainer": {"callbacks": [{"class_path": "EarlyStopping", "init_args": {"monitor": "val/loss"}}]}}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def words_of(recipes):
    return [word for one in recipes for word in ("--config", one if isinstance(one, str) else json.dumps(one))]


def recipe_of(arguments):
    command, option, text, *rest = merge_arguments(["fit", *arguments])
    assert (command, option) == ("fit", "--config")
    return yaml.safe_load(text), rest


STACKS = {
    "a partial file, a protocol, data": ("protocol/mean", "data/digits", OWN),
    "a part of the data": ("protocol/pbm", "data/digits", OWN),
    "callbacks, and more of them": ("data/digits", "protocol/cvfl", "faults/dvfl_guest_crashes", CALLBACKS),
    "a policy": ("policy/zeros", "protocol/mean", "data/digits"),
    "a schedule alone": ("protocol/cvfl", "data/digits", {"lr_scheduler": {"class_path": "StepLR"}}),
}


@pytest.mark.parametrize("name", STACKS)
def test_all_orders_of_recipes_that_do_not_contradict_give_the_same_recipe(name):
    merged = [recipe_of(words_of(order))[0] for order in permutations(STACKS[name])]
    assert all(one == merged[0] for one in merged)


@pytest.mark.parametrize("name", ["a partial file, a protocol, data", further("callbacks, and more of them")])
def test_the_parser_reads_the_same_settings_in_two_opposite_orders(name):
    stack = STACKS[name]
    one, other = (VFLCLI(["fit", *words_of(order)]) for order in (stack, stack[::-1]))
    assert {**vars(one.given), "config": None} == {**vars(other.given), "config": None}


def test_every_setting_of_every_recipe_is_there():
    recipe, _ = recipe_of(words_of((OWN, "protocol/mean", "data/digits", CALLBACKS)))
    settings = recipe["model"]["init_args"]
    assert recipe["model"]["class_path"] == SPLIT
    assert settings["bottom"]["init_args"] == {"output_activation": "torch.nn.Tanh", "hidden": [128]}
    assert settings["optimizer"] == {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.5, "fused": True}}
    assert (recipe["data"]["init_args"]["batch_size"], recipe["data"]["init_args"]["seed"]) == (32, 5)
    callbacks = [one["class_path"].rpartition(".")[2] for one in recipe["trainer"]["callbacks"]]
    assert callbacks == ["EarlyStopping", "LearningCurve"]


def test_the_later_of_two_recipes_that_contradict_wins():
    wide, narrow = ({"model": {"init_args": {"width": width}}} for width in (9, 3))
    for recipes, width in ((("protocol/mean", wide, narrow), 3), ((narrow, wide), 9), ((wide, "protocol/mean"), 64)):
        assert recipe_of(words_of(recipes))[0]["model"]["init_args"]["width"] == width


def test_dotted_keys_and_settings_beside_the_class_are_the_same_as_nested_ones():
    nested = {"model": {"init_args": {"width": 3}}, "trainer": {"max_epochs": 4}}
    for same in (
        {"model": {"width": 3}, "trainer": {"max_epochs": 4}},
        {"model.init_args.width": 3, "trainer.max_epochs": 4},
    ):
        assert merge([{"model": "SplitVFL"}, same]) == merge([{"model": "SplitVFL"}, nested])


def test_a_top_in_halves_takes_the_place_of_a_class_and_a_class_that_of_halves():
    halves = {"model": {"init_args": {"top": {"server": "MLP", "active": "MLP"}}}}
    whole = {"model": {"init_args": {"top": {"class_path": "MLP", "init_args": {"hidden": [8]}}}}}
    for recipes in ([whole, halves], [halves, whole]):
        assert merge(recipes)["model"]["init_args"]["top"] == recipes[1]["model"]["init_args"]["top"]


def test_a_mapping_of_a_user_is_a_value_and_null_takes_a_class_away():
    tables = [{"data": {"init_args": {"tables": {name: f"{name}.csv"}}}} for name in ("a", "b")]
    assert merge(tables)["data"]["init_args"]["tables"] == {"b": "b.csv"}
    missing = {"model": {"init_args": {"missing": {"class_path": "Stale", "init_args": {"most": 3}}}}}
    without = {"model": {"init_args": {"missing": None}}}
    assert merge([missing, without])["model"]["init_args"]["missing"] is None
    assert merge([without, missing])["model"]["init_args"]["missing"] == missing["model"]["init_args"]["missing"]


def test_text_that_looks_like_a_number_stays_text():
    recipe, _ = recipe_of(words_of(({"data": {"init_args": {"label_column": "1e3", "id_column": "007"}}},)))
    assert recipe["data"]["init_args"] == {"label_column": "1e3", "id_column": "007"}


def model(name, **settings):
    return {"model": {"class_path": name, "init_args": settings}}


AVERAGE = {"class_path": "lightning_vfl.aggregators.Mean"}


def test_a_line_tells_what_stays_of_a_class_in_whose_place_another_is_named(capsys):
    merged = merge([model(SPLIT, aggregator=AVERAGE, width=3, downlink=None), model(ASYNC, width=4)])
    assert merged == model(ASYNC, aggregator=AVERAGE, width=4)
    assert (
        capsys.readouterr().err == "model: AsyncVFL takes the place of SplitVFL; of SplitVFL stay: aggregator, width\n"
    )
    mlp, polynomial = ({"class_path": f"lightning_vfl.networks.{name}"} for name in ("MLP", "PolynomialNetwork"))
    bottom = {**mlp, "init_args": {"hidden": [3]}}
    merged = merge([model(SPLIT, bottom=bottom), {"model": {"init_args": {"bottom": polynomial}}}])
    assert merged["model"]["init_args"]["bottom"] == polynomial
    assert capsys.readouterr().err == "model.bottom: PolynomialNetwork takes the place of MLP; left out: hidden\n"
    merge([model(SPLIT, bottom=mlp), model(SPLIT, bottom=polynomial)])
    assert capsys.readouterr().err == ""


def test_settings_that_belong_to_no_class_in_particular_are_never_left_out(capsys):
    for settings in ({"slower": {1: 0.5}}, {"blocks": 3}):
        own = yaml.safe_dump({"model": {"init_args": settings}}, default_flow_style=True)
        with pytest.raises(SystemExit):
            main(["fit", "--config", own, *words_of(("data/digits", "protocol/mean"))])
        assert f"'{next(iter(settings))}' is not a setting of SplitVFL" in capsys.readouterr().err


DOWNLINK = {"class_path": "RandomizedResponse", "init_args": {"epsilon": 1.0}}


def test_a_protection_is_not_lost_with_the_protocol_that_it_was_given_for(capsys):
    protected = model(SPLIT, aggregator=AVERAGE, downlink=DOWNLINK)
    with pytest.raises(ConfigurationError, match=r"downlink is given for SplitVFL, .* AsyncVFL, .* leave the downlink"):
        recipe_of(words_of((protected, model(ASYNC))))
    with pytest.raises(ConfigurationError, match=r"would train without this protection"):
        recipe_of([*words_of((protected,)), "--model", "CascadeVFL"])
    alone = {"model": {"init_args": {"downlink": DOWNLINK}}}
    for given in (words_of((alone,)), ["--model.downlink", "MaxNorm"]):
        with pytest.raises(SystemExit):
            main(["fit", *given, *words_of(("data/digits", "protocol/vafl"))])
        assert "is not a setting of AsyncVFL" in capsys.readouterr().err
    recipe_of(words_of((protected, {"model": {"init_args": {"downlink": None}}}, model(SPLIT))))


RECIPES = ["--config", "data/digits", "--config=protocol/dvfl", "-c", "trainer/demo"]
OPTIONS = {
    "protocol": ["--model", "AsyncVFL"],
    "data set": ["--data=BreastCancer"],
    "class": ["--model.aggregator", "Max"],
    "class by its full key": ["--model.init_args.aggregator=Max"],
    "setting": ["--model.width=7"],
    "class and its setting": ["--model.bottom=PolynomialNetwork", "--model.bottom.degree", "3"],
    "callbacks": ["--trainer.callbacks+", "LearningCurve", "--trainer.callbacks.path", "x.png"],
    "optimiser": ["--optimizer", "SGD", "--optimizer.lr", "0.5"],
    "schedule": ["--lr_scheduler=StepLR", "--lr_scheduler.step_size", "4"],
    "rate": ["--model.lr", "0.5"],
    "flag": ["--print_config"],
    "several values": ["--attacker", "party:1", "server"],
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_option_before_a_recipe_is_applied_after_it(kind):
    options = OPTIONS[kind]
    expected = merge_arguments(["fit", *RECIPES, *options])
    for place in (0, 2, 3, 5):  # not between an option and its value
        assert merge_arguments(["fit", *RECIPES[:place], *options, *RECIPES[place:]]) == expected


def test_the_parser_reads_the_options_over_the_recipes():
    options = ["--data.batch_size", "9", "--trainer.max_epochs=3", "--model.aggregator", "Max", "--model.lr", "0.5"]
    recipes = words_of(("data/digits", {"trainer": {"max_epochs": 60}}, "protocol/mean"))
    given = VFLCLI(["fit", *options, "--model", "AsyncVFL", *recipes]).given
    assert (given.trainer.max_epochs, given.data.init_args.batch_size) == (3, 9)
    assert given.model.class_path.endswith(".AsyncVFL")
    assert given.model.init_args.aggregator.class_path.endswith(".Max")
    assert given.model.init_args.optimizer.init_args.lr == 0.5


def test_a_setting_of_a_class_may_stand_before_the_class():
    setting, named = ["--model.bottom.init_args.degree=3"], ["--model.bottom", "PolynomialNetwork"]
    more = ["--trainer.callbacks+", "LearningCurve", "--trainer.callbacks.path", "x", "--trainer.callbacks+", "Audit"]
    front = ["fit", "--config", "data/digits", "--model=SplitVFL", "--model.aggregator=Mean"]
    assert merge_arguments([*front, *setting, *more, *named]) == merge_arguments([*front, *named, *setting, *more])
    given = VFLCLI([*front, "--model.bottom.degree=3", *named]).given
    assert given.model.init_args.bottom.init_args.degree == 3


def test_a_setting_that_the_protocol_lacks_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--model.missing", "Stale", *words_of(("data/digits", "protocol/vafl"))])
    assert "error: AsyncVFL does not support a policy for missing embeddings" in capsys.readouterr().err


def test_options_without_a_value_do_not_swallow_the_next():
    arguments = ["--print_config", "--config", "data/digits", "-c=protocol/mean", "--model.top", "Linear"]
    recipe, rest = recipe_of(arguments)
    assert {"data", "model"} == {*recipe}
    assert rest == ["--print_config", "--model.top", "lightning_vfl.networks.Linear"]


def test_arguments_without_recipes_and_recipes_before_the_command_are_left():
    assert merge_arguments(["keys", "folder", "--parties", "3"]) == ["keys", "folder", "--parties", "3"]
    assert merge_arguments(["--config", "data/digits", "fit"]) == ["--config", find_recipe("data/digits"), "fit"]
    merged = merge_arguments(["fit", *RECIPES])
    assert merge_arguments(merged) == merged


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


@pytest.mark.parametrize("words", [("bottom_of", "{0: Linear, 1: {class_path: Linear}}"), ("bottom_of.1", "Linear")])
def test_networks_of_ours_have_short_names_by_party(words):
    option, value = words
    made = VFLCLI(["fit", "--config", "data/digits", "--config", "protocol/mean", f"--model.{option}", value]).given
    assert {one.class_path for one in made.model.init_args.bottom_of.values()} == {"lightning_vfl.networks.Linear"}
    assert with_full_paths({"bottom_of": {"bank": "Linear"}, "bottom": "Linear"}) == {
        "bottom_of": {"bank": "lightning_vfl.networks.Linear"},
        "bottom": "lightning_vfl.networks.Linear",
    }
