"""An option wins over every recipe, wherever it stands, and nothing is lost in silence."""

import json

import pytest

from lightning_vfl.cli import main
from lightning_vfl.commands.recipes import expand_arguments, model_first
from lightning_vfl.commands.vfl_cli import VFLCLI

RECIPES = ["--config", "data/digits", "--config=protocol/dvfl", "-c", "trainer/demo"]
OPTIONS = {
    "protocol": ["--model", "AsyncVFL"],
    "data set": ["--data=BreastCancer"],
    "class": ["--model.aggregator", "Max"],
    "class by its full key": ["--model.init_args.aggregator=Max"],
    "setting": ["--model.width=7"],
    "setting of a class": ["--model.bottom.hidden", "[5]"],
    "class and its setting": ["--model.bottom=PolynomialNetwork", "--model.bottom.degree", "3"],
    "setting of the data": ["--data.batch_size", "9"],
    "nested setting of the data": ["--data.partitioner.init_args.parties", "2"],
    "trainer": ["--trainer.max_epochs=3"],
    "callbacks": ["--trainer.callbacks+", "LearningCurve", "--trainer.callbacks.path", "x.png"],
    "optimiser": ["--optimizer", "SGD", "--optimizer.lr", "0.5"],
    "schedule": ["--lr_scheduler=StepLR", "--lr_scheduler.step_size", "4"],
    "rate": ["--model.lr", "0.5"],
    "seed": ["--seed_everything", "-1"],
    "flag": ["--print_config"],
    "several values": ["--attacker", "party:1", "server"],
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_option_before_a_recipe_is_applied_after_it(kind):
    options = OPTIONS[kind]
    expected = model_first(expand_arguments(["fit", *RECIPES, *options]))
    for place in (0, 2, 3, 5):  # not between an option and its value
        mixed = ["fit", *RECIPES[:place], *options, *RECIPES[place:]]
        assert model_first(expand_arguments(mixed)) == expected


def test_the_parser_reads_the_options_over_the_recipes():
    recipes = ["--config", "data/digits", "--config", json.dumps({"trainer": {"max_epochs": 60}})]
    options = [word for kind in ("setting of the data", "trainer", "class", "rate") for word in OPTIONS[kind]]
    given = VFLCLI(["fit", *options, *recipes, "--model", "AsyncVFL", "--config", "protocol/mean"]).given
    assert (given.trainer.max_epochs, given.data.init_args.batch_size) == (3, 9)
    assert given.model.class_path.endswith(".AsyncVFL")
    assert given.model.init_args.aggregator.class_path.endswith(".Max")
    assert given.model.init_args.optimizer.init_args.lr == 0.5


def test_a_setting_of_a_class_may_stand_before_the_class():
    setting, named = ["--model.bottom.init_args.degree=3"], ["--model.bottom", "PolynomialNetwork"]
    more = ["--trainer.callbacks+", "LearningCurve", "--trainer.callbacks.path", "x", "--trainer.callbacks+", "Audit"]
    front = ["fit", "--config", "data/digits", "--model=SplitVFL", "--model.aggregator=Mean"]
    assert expand_arguments([*front, *setting, *more, *named]) == expand_arguments([*front, *named, *setting, *more])
    given = VFLCLI([*front, "--model.bottom.degree=3", *named]).given
    assert given.model.init_args.bottom.init_args.degree == 3


def test_a_class_that_no_recipe_names_is_known_before_recipes_set_a_part_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = ["--model", "SplitVFL", "--model.aggregator", "Mean", "--data", "Digits"]
    policy = ["--config", "policy/zeros"]
    last = expand_arguments(["fit", *policy, *named])
    assert expand_arguments(["fit", *named, *policy]) == last
    assert last[1:3] == ["--model", "lightning_vfl.protocols.SplitVFL"]
    assert last[3] == "--config"


def test_recipes_before_the_command_stay_there():
    arguments = ["--config", "{}", "fit", "--trainer.max_epochs=3", "--config={}"]
    assert expand_arguments(arguments) == ["--config", "{}", "fit", "--config={}", "--trainer.max_epochs=3"]


def test_a_setting_that_the_last_protocol_lacks_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = ["--model.missing", "Stale", "--config", "data/digits", "--config", "protocol/vafl"]
    with pytest.raises(SystemExit):
        main(["fit", *before])
    assert "error: AsyncVFL does not support a policy for missing embeddings" in capsys.readouterr().err
