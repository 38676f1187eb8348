"""Recipes of two hosts: what has to be equal is compared, what is a host's own is left out."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

import lightning_vfl.protocols as protocols
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.recipe import HOST_OWN, LENGTH, first_difference, recipe_digest
from lightning_vfl.federation.refusals import refuse_protocol

ROOT = Path(__file__).parents[3]


def recipe():
    """Settings as in the config.yaml of a run."""
    return {
        "seed_everything": 0,
        "data": {
            "class_path": "lightning_vfl.datamodules.CSVTables",
            "init_args": {
                "tables": {"bank": "a.csv", "telco": "b.csv"},
                "data_dir": None,
                "batch_size": 32,
                "categorical": ["job", "town"],
                "num_workers": 0,
            },
        },
        "model": {
            "class_path": "lightning_vfl.protocols.SplitVFL",
            "init_args": {
                "aggregator": {"class_path": "lightning_vfl.aggregators.Mean"},
                "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3, "betas": [0.9, 0.999]}},
                "missing": None,
            },
        },
        "trainer": {
            "accelerator": "auto",
            "default_root_dir": "runs",
            "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "runs"}},
            "callbacks": [
                {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "a", "monitor": "val/loss"}},
                {"class_path": "EarlyStopping", "init_args": {"monitor": "val/loss", "patience": 3}},
            ],
            "max_epochs": 20,
        },
        "record": {"enabled": True},
        "experiment": {"figures": True},
        "predictions": {"path": "predictions.csv", "at": "server"},
        "ckpt_path": None,
    }


def other(key, value):
    said = copy.deepcopy(recipe())
    *parts, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    inner = said
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return recipe_digest(said)


def test_a_recipe_is_its_dotted_settings_without_a_hosts_own():
    assert recipe_digest(recipe()) == {
        "data": '"lightning_vfl.datamodules.CSVTables"',
        "data.batch_size": "32",
        "data.categorical": '["job", "town"]',
        "model": '"lightning_vfl.protocols.SplitVFL"',
        "model.aggregator": '"lightning_vfl.aggregators.Mean"',
        "model.missing": "null",
        "model.optimizer": '"torch.optim.Adam"',
        "model.optimizer.betas": "[0.9, 0.999]",
        "model.optimizer.lr": "0.001",
        "predictions.at": '"server"',
        "seed_everything": "0",
        "trainer.callbacks.0": '"ModelCheckpoint"',
        "trainer.callbacks.0.monitor": '"val/loss"',
        "trainer.callbacks.1": '"EarlyStopping"',
        "trainer.callbacks.1.monitor": '"val/loss"',
        "trainer.callbacks.1.patience": "3",
        "trainer.max_epochs": "20",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.init_args.data_dir", "/elsewhere"),
        ("data.init_args.tables", {"bank": "/own/table.parquet"}),
        ("data.init_args.num_workers", 2),
        ("trainer.accelerator", "gpu"),
        ("trainer.default_root_dir", "/scratch"),
        ("trainer.logger", False),
        ("trainer.callbacks.0.init_args.dirpath", "/scratch"),
        ("record.enabled", False),
        ("experiment", {}),
        ("predictions.path", "other.parquet"),
        ("ckpt_path", "last.ckpt"),
        ("config", ["a.yaml"]),
        ("data.init_args.batch_size", 32.0),
        ("data.init_args.categorical", ("job", "town")),
    ],
)
def test_what_is_a_hosts_own_is_no_difference(key, value):
    assert first_difference(recipe_digest(recipe()), other(key, value), "party bank") is None


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("data.init_args.batch_size", 64, "party bank has data.batch_size 64, the server 32; use the same recipe"),
        (
            "data.class_path",
            "Digits",
            'party bank has data "Digits", the server "lightning_vfl.datamodules.CSVTables"; use',
        ),
        (
            "trainer.callbacks.1.init_args.patience",
            4,
            "party bank has trainer.callbacks.1.patience 4, the server 3; use",
        ),
        ("trainer.max_steps", 4, "party bank has trainer.max_steps 4, the server has none; use the same recipe"),
        ("trainer.callbacks", None, "party bank has trainer.callbacks null, the server has none; use the same recipe"),
        ("data.init_args", {}, "party bank has no data.batch_size, the server 32; use the same recipe"),
        (
            "model.init_args.missing",
            {"class_path": "Stale"},
            'party bank has model.missing "Stale", the server null; use',
        ),
        ("seed_everything", True, "party bank has seed_everything true, the server 0; use the same recipe"),
    ],
)
def test_the_first_difference_is_one_line(key, value, line):
    mine, theirs = recipe_digest(recipe()), other(key, value)
    assert first_difference(mine, theirs, "party bank").startswith(line)
    assert first_difference(mine, mine, "party bank") is None


def test_a_long_value_is_cut_and_still_compared():
    one, two = other("data.init_args.categorical", ["x"] * 500), other("data.init_args.categorical", ["x"] * 501)
    assert max(map(len, (*one.values(), *two.values()))) <= LENGTH
    assert first_difference(one, two, "party bank").startswith('party bank has data.categorical ["x", ')


def test_what_arrives_cannot_break_the_line():
    line = first_difference({}, {"a\nb": "1\r\n\x1b[2J" + "x" * 10_000}, "party bank")
    assert line.isprintable()
    assert len(line) < 300


def test_a_hosts_own_settings_can_be_given():
    assert set(recipe_digest({"a": {"b": 1, "c": 2}, "ab": 3}, ["a.b"])) == {"a.c", "ab"}
    assert recipe_digest({"a": [{"b": 1, "c": 2}]}, ["a.*.b"]) == {"a.0.c": "2"}
    assert recipe_digest({}) == {}
    assert list(HOST_OWN) == sorted(set(HOST_OWN))


def test_the_settings_fit_into_the_header_of_a_frame():
    assert json.loads(json.dumps(recipe_digest(recipe()))) == recipe_digest(recipe())
    assert len(pack({"kind": "hello", "recipe": recipe_digest(recipe())})) < 2**12


def test_the_guide_says_which_packaged_protocols_are_refused():
    """By the class of the protocol."""
    refused = set()
    for path in (ROOT / "configs" / "protocol").glob("*.yaml"):
        model = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
        try:
            refuse_protocol(getattr(protocols, model["class_path"].rpartition(".")[2]))
        except ConfigurationError:
            refused.add(path.stem)
    guide = (ROOT / "docs" / "guides" / "federation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"\| (runs|refused) \| (.*?) \|", guide))
    named = {kind: set(re.findall(r"`(\w+)`", row)) for kind, row in rows.items()}
    assert named["refused"] == refused
    assert named["runs"] == {path.stem for path in (ROOT / "configs" / "protocol").glob("*.yaml")} - refused
