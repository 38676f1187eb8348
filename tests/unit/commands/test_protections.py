"""A protection that one recipe gives is not lost because a later recipe names another protocol."""

import json

import pytest

from lightning_vfl.commands.recipes import expand_arguments, model_first
from lightning_vfl.errors import ConfigurationError

SPLIT = {"model": {"class_path": "SplitVFL", "init_args": {"aggregator": {"class_path": "Mean"}}}}
OWN = {"model": {"init_args": {"downlink": {"class_path": "RandomizedResponse", "init_args": {"epsilon": 1.0}}}}}


def ordered(*words: str) -> list[str]:
    return model_first(expand_arguments(["fit", "--config", json.dumps(SPLIT), *words]))


def test_a_protocol_without_a_downlink_does_not_drop_that_of_an_earlier_recipe():
    with pytest.raises(ConfigurationError, match=r"model\.downlink is given before .*AsyncVFL would train without"):
        ordered("--config", json.dumps(OWN), "--config", "protocol/vafl")


@pytest.mark.parametrize(
    "given", [["--config", json.dumps(OWN)], ["--model.downlink", "MaxNorm"], ["--model.downlink=MaxNorm"]]
)
def test_nor_that_of_an_earlier_option(given):
    with pytest.raises(ConfigurationError, match="leave the downlink out, or name SplitVFL"):
        ordered(*given, "--model", "CascadeVFL")


def test_protections_that_stay_are_accepted():
    downlink = ["--model.downlink", "MaxNorm"]
    assert ordered(*downlink, "--model", "CascadeVFL", "--model", "SplitVFL", *downlink)[-2:][0] == downlink[0]
    removed = ["--config", json.dumps({"model": {"init_args": {"downlink": None}}})]
    for nothing in (removed, ["--model.downlink", "null"], ["--model.downlink=null"]):
        ordered("--config", json.dumps(OWN), *nothing, "--model", "AsyncVFL")
