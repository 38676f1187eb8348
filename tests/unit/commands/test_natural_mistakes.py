"""Mistakes that a reader of the pages makes, and the line that each of them gets."""

import pytest

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.checks import refuse_other_parts

DIGITS = ["fit", "--config", "data/digits"]
MEAN = [*DIGITS, "--config", "protocol/mean"]
HERE = "tests.unit.commands.test_natural_mistakes"

MISTAKES = {
    "no protocol": (DIGITS, r"fit\.model; .*\(--config protocol/mean; lightning-vfl list names all recipes\)"),
    "no protocol for tables": (["fit", "--config", "data/csv_tables"], "without a protocol; .*--config protocol/mean"),
    "another word": (["train"], r"unknown command 'train'; did you mean fit\?"),
    "a word for a number": ([*MEAN, "--optimizer", "SGD", "--optimizer.lr", "fast"], "lr: 'fast' is not a number"),
    "an optimiser": ([*MEAN, "--optimizer", "Adamm"], "'Adamm' is not a known class; did you mean Adam"),
    "own class": ([*MEAN, "--model.aggregator", f"{HERE}.Medain"], f"{HERE} has no class Medain; did you mean Median?"),
    "own kind": ([*MEAN, "--model.aggregator", f"{HERE}.Median"], f"{HERE}.Median is not derived from Aggregator"),
    "no list": (
        ["audit", *MEAN[1:], "--attacks", "LabelsByNorm"],
        r"""not a list; write '\[{"class_path": "LabelsBy""",
    ),
    "an option of several words twice": (
        ["audit", *MEAN[1:], "--attacker", "server", "--attacker", "party:1"],
        "--attacker is given 2 times; write it once, with all its words behind it$",
    ),
    "no widths": ([*MEAN, "--model.bottom.hidden", "3"], r"hidden: 3 is given, but the setting is a list; write \[3\]"),
    "no mapping": ([*MEAN, "--model.metrics", "accuracy"], "accuracy is not a mapping; write '{name: "),
    "no class": (
        [*MEAN, "--model.downlink.epsilon", "3"],
        r"'epsilon' is set, but .* first \(--model.downlink CLASS\)",
    ),
    "weights of no class": (
        [*MEAN, "--model.objective.class_weights", "[1, 2]"],
        r"model.objective: 'class_weights' is set, but no class is; name the class first \(--model.objective CLASS\)",
    ),
    "no weights": (
        [*MEAN, "--model.objective", "Binary", "--model.objective.class_weights", "balancd"],
        "balancd is none of 'balanced', a list of float, null",
    ),
    "no step": (
        [*MEAN, "--lr_scheduler", "StepLR"],
        r"StepLR needs a value for step_size; .* option \(--model.lr_scheduler.step_size VALUE\)$",
    ),
    "no monitor": (
        [*MEAN, "--trainer.callbacks", "EarlyStopping"],
        r"EarlyStopping needs a value for monitor; .* \(--trainer.callbacks.monitor VALUE\)$",
    ),
    "a logger": ([*MEAN, "--trainer.logger", "WandbLoger"], "'WandbLoger' is not a known class; did you mean WandbLog"),
    "callback": ([*MEAN, "--trainer.callbacks+", "EarlyStopin"], "'EarlyStopin' is .*; did you mean EarlyStopping"),
    "own callback": ([*MEAN, "--trainer.callbacks", "LearningCurv"], "did you mean LearningCurve"),
    "a schedule": ([*MEAN, "--lr_scheduler", "StepLRR"], "did you mean StepLR "),
    "a negative seed": ([*MEAN, "--seed_everything", "-1"], "--seed_everything must be from 0 to 4294967295; got -1"),
    "a large seed": ([*MEAN, "--seed_everything=4294967296"], "from 0 to 4294967295; got 4294967296"),
    "only a recipe": (MEAN[1:], "no command is given; give one of fit, .*, before the options"),
    "a recipe first": ([*DIGITS[1:], "fit"], "the recipe is given before the command; write the command first: light"),
    "an option first": (
        ["--trainer.max_epochs", "3", "fit"],
        "--trainer.max_epochs is given before the command; write the command first: lightning-vfl fit --trainer.max_ep",
    ),
    "kind": ([*MEAN, "--model.aggregator", "Stale"], r"missing\.Stale is no class for this setting"),
}


class Median:
    """A class that is no aggregator."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_fix(name):
    words, line = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=line) as told:
        run(words)
    assert "\n" not in str(told.value)


def test_networks_that_differ_are_told_by_their_first_line_that_does():
    trained, own = ("MLP(\n  (0): Linear(out_features=4)\n" + last for last in ("  (1): Tanh()\n)", ")"))
    with pytest.raises(
        ConfigurationError, match=r"another top than this model has: \(1\): Tanh\(\) there, \) here; use"
    ):
        refuse_other_parts({"top": trained}, {"top": own}, {}, {})


def test_another_protocol_is_told_to_load_with_the_class_of_the_checkpoint():
    with pytest.raises(ConfigurationError, match=r"\(in Python: SplitVFL\.load_from_checkpoint\(path\)\)"):
        refuse_other_parts({"protocol": "SplitVFL"}, {"protocol": "AsyncVFL"}, {}, {})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"id,a\n1,2\n", "no recipe"),
        (b"\x89PNG\r\n\x1a\n", "no recipe"),
        (b"- 1", "no recipe"),
        (b"# later\n", "empty"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(content, what, tmp_path):
    (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(
        ConfigurationError, match=rf"--config .*file\.csv: the file is {what}; give a YAML file in UTF-8"
    ):
        run([*DIGITS, "--config", str(tmp_path / "file.csv")])
