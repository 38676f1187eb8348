"""The tables of a cut data set give the tensors of the data set, bit for bit."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

from lightning_vfl.cli import run
from lightning_vfl.commands.cut import JOB, RECIPE, cut
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.datamodules import BreastCancer, CSVTables, Digits, GivenSplit, LimitedOverlap, Unchanged
from lightning_vfl.errors import ConfigurationError

KINDS = {"GivenSplit": GivenSplit, "Unchanged": Unchanged}


def of_recipe(folder) -> CSVTables:
    settings = yaml.safe_load((folder / RECIPE).read_text())["data"]["init_args"]
    for name in ("split", "normaliser"):
        settings[name] = KINDS[settings[name]["class_path"]](**settings[name].get("init_args", {}))
    return CSVTables(**settings)


@pytest.mark.parametrize(("kind", "ending"), [(Digits, "parquet"), (BreastCancer, "csv")])
def test_the_tables_have_the_same_tensors(tmp_path, kind, ending):
    told = cut(kind(seed=3, batch_size=50), tmp_path / "parts", ending)
    data, tables = kind(seed=3, batch_size=50), of_recipe(tmp_path / "parts")
    for one in (data, tables):
        one.setup("fit")
        one.setup("test")
    assert tables.num_classes == data.num_classes
    for name in ("train", "val", "test"):
        own, there = data.records(name), tables.records(name)
        every = torch.arange(len(own))
        assert own.ids.tolist() == there.ids.tolist()
        assert torch.equal(own.labels, there.labels)
        assert all(torch.equal(a.flatten(1), b) for a, b in zip(own.rows(every), there.rows(every), strict=True))
    for a, b in zip(data.train_dataloader(), tables.train_dataloader(), strict=True):
        assert torch.equal(a.record_ids, b.record_ids)
    assert any("scaled by Standardise" in line for line in told)


def test_the_command_writes_a_recipe_that_is_read(tmp_path, capsys):
    run(["cut", "--config", "data/digits", "--out", str(tmp_path / "parts")])
    assert "features of shape (1, 2, 8) are flat columns" in capsys.readouterr().out
    files = {"party0", "party1", "party2", "party3", "labels"}
    assert {path.stem for path in (tmp_path / "parts").glob("*.parquet")} == files
    with pytest.raises(ConfigurationError, match="exists already; give another --out, or remove it"):
        run(["cut", "--data", "Digits", "--out", str(tmp_path / "parts")])


def test_a_recipe_may_say_more_than_the_data(tmp_path):
    recipe = tmp_path / "whole.yaml"
    recipe.write_text(yaml.safe_dump({"data": {"class_path": "BreastCancer"}, "trainer": {"max_epochs": 3}}))
    more = ["--config", "protocol/mean", "--config", "trainer/cpu", "--data.batch_size", "7"]
    run(["cut", "--config", str(recipe), *more, "--out", str(tmp_path / "parts")])
    assert yaml.safe_load((tmp_path / "parts" / RECIPE).read_text())["data"]["init_args"]["batch_size"] == 7


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_of_parties_are_not_cut(tmp_path, kind):
    words = ["--data.tables={bank: bank.parquet}", "--data.label_party=bank", "--data.label_column=y"]
    with pytest.raises(ConfigurationError, match="are a table for each party already; give their recipe to the fed"):
        run(["cut", "--config", f"data/{kind}_tables", *words, "--out", str(tmp_path / "parts")])


def test_refused_data(tmp_path):
    with pytest.raises(ConfigurationError, match="records that some party does not hold"):
        cut(Digits(LimitedOverlap(None, 800)), tmp_path)
    with pytest.raises(ConfigurationError, match="are a table for each party already"):
        cut(CSVTables({"a": "a.csv"}, "a", "y"), tmp_path)


@pytest.mark.parametrize("option", ["--model.lr=3", "--trainer.max_epochs=3", "--model=SplitVFL"])
def test_options_of_other_parts_are_refused(option, tmp_path):
    with pytest.raises(UsageError, match=f"cut reads the settings of the data alone; leave the options {option[:7]}"):
        run(["cut", "--config", "data/digits", option, "--out", str(tmp_path / "parts")])
    assert not (tmp_path / "parts").exists()


def test_a_job_of_nvflare_names_the_sites_and_classes_that_there_are(tmp_path, capsys):
    words = ["cut", "--config", "data/digits", "--data.partitioner.parties", "2", "--nvflare", str(tmp_path / "job")]
    run([*words, "--out", str(tmp_path / "parts")])
    assert "job of NVFlare for the sites party0, party1" in capsys.readouterr().out
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "party0", "party1"]}
    assert (meta["min_clients"], meta["mandatory_clients"]) == (2, ["party0", "party1"])
    config = tmp_path / "job" / "app" / "config"
    (server,) = json.loads((config / "config_fed_server.json").read_text())["workflows"]
    (party,) = json.loads((config / "config_fed_client.json").read_text())["executors"]
    text = Path(find_spec(JOB).origin).read_text()
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    for component in (server, party["executor"]):
        module, _, name = component["path"].rpartition(".")
        (init,) = [one for one in classes[name].body if getattr(one, "name", "") == "__init__"]
        defaults = [ast.literal_eval(one) for one in init.args.defaults]
        assert (module, dict(zip([one.arg for one in init.args.args[1:]], defaults, strict=True))) == (
            JOB,
            component["args"],
        )
    assert f'TASK = "{party["tasks"][0]}"' in text
    with pytest.raises(ConfigurationError, match="exists already; give another folder to --nvflare"):
        run([*words, "--out", str(tmp_path / "others")])
    assert not (tmp_path / "others").exists()
