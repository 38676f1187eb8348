"""Every packaged recipe runs through the command line, on generated data where its own are files."""

import json
import re
from itertools import cycle

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from lightning_vfl.cli import run
from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError
from tests.own_tables import write_titanic
from tests.unit.datamodules import miniature

QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
SHORT = [*QUIET, "--trainer.accelerator", "cpu", "--trainer.max_epochs", "1"]
RECIPES = list(packaged())
DATA = [name for name in RECIPES if name.startswith("data/")]
# mostly pictures, with one of each kind of protocol and of each way in which an aggregator takes features
KINDS = {
    "data/digits": "protocol/cvfl",
    "data/mnist": "protocol/vfedsec",
    "data/fashion_mnist": "protocol/fedvs",
    "data/fashion_mnist_quadrants": "protocol/lagrange_shared",
    "data/handwritten": "protocol/vafl",
    "data/image_folder": "protocol/dvfl",
}
BOUNDED = {  # the data of PBM-VFL, with bottoms like its own
    "data/human_activity": ["MLP"],
    "data/cifar10": ["ResNet18", "--model.bottom.base", "2"],
    "data/model_net": ["ConvNet", "--model.bottom.channels", "[2]"],
}
PLAIN = {"data/phishing": "protocol/wait_dp", "data/emnist": "protocol/pbm_local"} | {
    name: f"protocol/{protocol}"
    for name, protocol in zip(
        [name for name in DATA if name not in {*KINDS, *BOUNDED, "data/phishing", "data/emnist"}],
        cycle(("mean", "concat", "sum", "max", "u_shape", "flex_vfl", "top_k", "one_shot", "pretrained")),
        strict=False,
    )
}
PACES = [name for name in RECIPES if name.startswith("faults/cvfl_slow")]  # of active parties, which only CVFL has
FAULTS = {  # with the policies by turns
    "faults/fedvs_stragglers": "policy/wait",
    "faults/fedvs_figure1": "policy/ignore",
    "faults/unreliable": "policy/skip",
    "faults/vfedsec_dropout": "policy/zeros",
    "faults/dvfl_guest_crashes": "policy/stale",
    "faults/dvfl_connection_crashes": "policy/buffer",
    "faults/dvfl_host_crashes": "policy/last_message",
}
PHASES = {  # of protocols that train in phases, each once
    "protocol/dvfl": ["--model.guest_epochs", "1", "--trainer.max_epochs", "2"],
    "protocol/one_shot": ["--model.local_epochs", "1", "--trainer.max_epochs", "3"],
}
TEN_ROUNDS = ["--config", "data/digits", "--data.batch_size", "128"]
TABLES = {
    "CSVTables": (
        lambda folder: write_titanic(folder, 120),
        {"tables": {"ferry": "ferry.csv", "bank": "bank.csv"}, "label_party": "ferry", "label_column": "Survived"},
    ),
    "ParquetTables": (
        lambda folder: miniature.write_parquet(folder, 120, 50),
        {**miniature.LONG_TABLES, "id_column": "id", "batch_size": 16},
    ),
}
SMALL = {"ModelNet10Views": 8, "ImageFolderVFL": 8}  # others have batches of 16
FILES = TABLES | {
    kind: (write, settings | {"batch_size": SMALL.get(kind, 16)})
    for kind, (write, settings) in miniature.PUBLISHED.items()
}


# half a second each, of a protocol and a kind of data that another of these recipes has
LONG = {
    "data/mnist",
    "data/fashion_mnist_quadrants",
    "data/handwritten",
    "data/cifar10",
    "data/model_net",
    "data/image_folder",
}

# every data set is tested for itself; here its recipe is: one with its own protocol, and one of a kind of files
OTHER_DATA = set(PLAIN) - {"data/multi_view", "data/parquet_tables"}


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def of(name, tmp_path):
    """Arguments of a data recipe; miniature files stand in for those that would be downloaded."""
    kind = yaml.safe_load(packaged()[name].read_text())["data"]["class_path"]
    if kind not in FILES:
        return ["--config", name]
    write, settings = FILES[kind]
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder)
    words = [f"--data.{key}={json.dumps(value)}".replace('"', "") for key, value in settings.items()]
    return ["--config", name, f"--data.data_dir={folder}", *words]


def fit_and_test(arguments, tmp_path, longer=()):
    """Two commands, as a user gives them."""
    fitted = run(["fit", *arguments, *SHORT, *longer])
    (path,) = tmp_path.rglob("*.ckpt")
    tested = run(["test", *arguments, *SHORT, *longer, "--ckpt_path", str(path)])
    assert fitted.trainer.global_step == fitted.model.books.rounds["fit"] > 0
    assert 0.0 <= float(tested.trainer.callback_metrics["test/accuracy"]) <= 1.0
    return fitted, tested


def fit_then_test(arguments, tmp_path, longer=()):
    """One command, and a test of its checkpoint: for what the second command would read from the recipe once more."""
    fitted = run(["fit", *arguments, *SHORT, *longer])
    assert fitted.trainer.global_step == fitted.model.books.rounds["fit"] > 0
    (path,) = tmp_path.rglob("*.ckpt")
    (tested,) = fitted.trainer.test(fitted.model, datamodule=fitted.datamodule, ckpt_path=path, verbose=False)
    assert 0.0 <= tested["test/accuracy"] <= 1.0
    return fitted


ABSENT = tuple(f"protocol/{name}" for name in ("task_sampling", "drop_parties", "laser", "ensemble", "local"))


@pytest.mark.parametrize("name", [ABSENT[0], *map(slow, ABSENT[1:])])
def test_recipes_for_absent_parties(name, tmp_path, capsys):
    """Also ``--absent``, which writes its files into the folder of the run."""
    arguments = ["--config", "data/digits", "--config", name, "--data.batch_size", "512"]
    run(["fit", *arguments, *SHORT])
    (path,) = tmp_path.rglob("*.ckpt")
    run(["test", *arguments, *SHORT, "--ckpt_path", str(path), "--absent", "[[1],[1,2]]"])
    assert "party 1, party 2" in capsys.readouterr().out
    (table,), (figure,) = tmp_path.rglob("absent.parquet"), tmp_path.rglob("absent.svg")
    found = pd.read_parquet(table)
    assert found["absent"].unique().tolist() == ["1", "1 2"]
    assert found["value"].between(0, 1).all()
    assert "<svg" in figure.read_text()
    for wrong, reason in {"[[7]]": "--absent names party 7, but the parties are 0 to 3", "[[bnak]]": "bnak"}.items():
        with pytest.raises(ConfigurationError, match=re.escape(reason)):
            run(["test", *arguments, *SHORT, "--ckpt_path", str(path), "--absent", wrong])
        assert "test/accuracy" not in capsys.readouterr().out  # refused before the test


def test_every_recipe_is_tested_here():
    trained = {*KINDS.values(), *PLAIN.values(), "protocol/pbm", *FAULTS, *FAULTS.values(), *PACES, *ABSENT}
    named = {name for name in RECIPES if name.split("/")[0] in ("protocol", "faults", "policy")}
    assert trained == named
    assert {*KINDS, *BOUNDED, *PLAIN} == set(DATA)


@pytest.mark.filterwarnings("ignore:all .* predictions .*decide for class")  # one short epoch
@pytest.mark.parametrize("name", [slow(name) if name in OTHER_DATA else name for name in PLAIN])
def test_data_recipes(name, tmp_path):
    fit_then_test([*of(name, tmp_path), "--config", PLAIN[name]], tmp_path, PHASES.get(PLAIN[name], []))


@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in KINDS])
def test_kinds_of_protocols_in_two_commands(name, tmp_path):
    phases = PHASES.get(KINDS[name], [])
    few = ["--data.batch_size", "128"] if name == "data/digits" else []
    fitted, tested = fit_and_test([*of(name, tmp_path), "--config", KINDS[name], *few], tmp_path, phases)
    assert all(
        torch.equal(a, b)
        for a, b in zip(fitted.model.state_dict().values(), tested.model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in BOUNDED])
def test_data_of_pbm_vfl_with_bottoms_like_its_own(name, tmp_path):
    bounded = ["--model.bottom", *BOUNDED[name], "--model.bottom.output_activation", "torch.nn.Tanh"]
    arguments = [*of(name, tmp_path), "--config", "protocol/pbm", *bounded, "--trainer.limit_train_batches", "1"]
    assert fit_then_test(arguments, tmp_path).model.privacy.epsilon() > 0


@pytest.mark.filterwarnings("ignore:all .* predictions .*decide for class")  # one short epoch
def test_a_checkpoint_is_not_tested_on_records_it_was_trained_on(tmp_path):
    arguments = [*of("data/bank_marketing", tmp_path), "--config", "protocol/mean", *SHORT]
    assert run(["fit", *arguments]).datamodule.party_shapes == ((57,), (3,), (20,))
    (path,) = tmp_path.rglob("*.ckpt")
    with pytest.raises(
        ConfigurationError, match=r"on BankMarketing with test_share = 0\.2, these data have 0\.5; give"
    ):
        run(["test", *arguments, "--data.test_share", "0.5", "--ckpt_path", str(path)])


OTHERS = (["protocol/cvfl", "policy/zeros"], ["protocol/vafl"], ["protocol/dvfl"])


@pytest.mark.filterwarnings("ignore:all .* predictions .*decide for class")  # one short epoch
@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        *(
            pytest.param(name, ["protocol/mean", policy], marks=() if i == 1 else pytest.mark.slow)
            for i, (name, policy) in enumerate(FAULTS.items())
        ),
        *(
            pytest.param(
                name, OTHERS[i % 3], marks=() if OTHERS[i % 3] != ["protocol/vafl"] and i < 3 else pytest.mark.slow
            )
            for i, name in enumerate(reversed(FAULTS))
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_fault_recipes(name, protocol, tmp_path):
    """Something goes wrong, or takes time, in every run. Policies and the other protocols take turns; each protocol is
    tested under every kind of fault, and every policy under faults, by tests of their own."""
    recipes = [part for recipe in (*protocol, name) for part in ("--config", recipe)]
    phases = PHASES.get(protocol[0], [])
    fitted = fit_then_test([*TEN_ROUNDS, *recipes], tmp_path, phases)
    standing, calm = fitted.model.standing(), 0.01
    missed = phases and (fitted.model.books.mini_batches < 40 or len(fitted.model.replay.tables) > 1)
    rounds = fitted.model.books.rounds["fit"]
    paused = (
        protocol[0] == "protocol/cvfl"
        and min(fitted.model.counts.version, fitted.model.books.mini_batches / 4) < rounds
    )
    assert standing["clock/virtual_seconds"] > calm or fitted.model.books.given_up > 0 or missed or paused
    assert standing["progress/passes"] > 0


@pytest.mark.parametrize("name", [slow(name) if i else name for i, name in enumerate(PACES)])
def test_paces_of_active_parties(name, tmp_path):
    arguments = ["--config", "data/digits", "--config", "protocol/cvfl", "--config", name, "--data.batch_size", "64"]
    fitted = run(["fit", *arguments, *SHORT])
    ended = fitted.model.books.meter.total("up", "top gradients")
    assert (ended[0] > 1.5 * ended[1:]).all()  # the fast party's periods ended more often
    assert len(set(fitted.model.slower.values())) == 1


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
@pytest.mark.slow
def test_the_demo_recipe_learns(tmp_path, capsys):
    arguments = ["--config", "data/digits", "--config", "protocol/mean", "--config", "trainer/demo", *QUIET]
    arguments += ["--summary", "full"]
    fit_and_test(arguments, tmp_path)
    assert (tmp_path / "runs/demo/learning_curve.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "test/accuracy" in printed
    assert "sent per party: embeddings" in printed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_recipe(tmp_path):
    arguments = ["--config", "data/digits", "--config", "protocol/mean", "--config", "trainer/gpu", *QUIET]
    assert run(["fit", *arguments, "--trainer.max_epochs", "1"]).model.device.type == "cuda"


def test_recipes_overlay_and_append_callbacks(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        """
        trainer:
          callbacks+:
            - class_path: lightning.pytorch.callbacks.EarlyStopping
              init_args: {monitor: val/loss}
        model:
          init_args:
            width: 16
            optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
            lr_scheduler: {class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1}}
            top: {class_path: Linear}
            objective:
              class_path: MultiClass
              init_args: {loss: {class_path: torch.nn.CrossEntropyLoss, init_args: {label_smoothing: 0.1}}}
            metrics:
              f1: {class_path: torchmetrics.classification.MulticlassF1Score, init_args: {num_classes: 10}}
        """
    )
    more = ["--config", "mine.yaml", "--trainer.callbacks+=LearningCurve", "--data.partitioner", "Grid"]
    more += ["--data.batch_size", "512"]
    done = run(["fit", "--config", "data/digits", "--config", "protocol/concat", *more, *SHORT])
    kinds = {type(callback).__name__ for callback in done.trainer.callbacks}
    assert kinds >= {"LearningCurve", "EarlyStopping", "RunSummary", "ModelCheckpoint"}
    assert done.model.top.layer.in_features == 4 * 16
    assert isinstance(done.trainer.optimizers[0], torch.optim.SGD)
    assert done.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01)
    assert done.model.objective.criterion.label_smoothing == 0.1
    assert done.datamodule.party_shapes == ((1, 4, 4),) * 4
    assert "val/f1" in done.trainer.callback_metrics
    assert "val/accuracy" not in done.trainer.callback_metrics


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Arguments of digits and of breast cancer, and a checkpoint of each."""
    made = {}
    for data in ("digits", "breast_cancer"):
        folder = tmp_path_factory.mktemp(data)
        arguments = ["--config", f"data/{data}", "--config", "protocol/mean", *SHORT, "--data.batch_size", "128"]
        run(["fit", *arguments, "--trainer.default_root_dir", str(folder), "--trainer.logger", "false"])
        made[data] = [*arguments, "--ckpt_path", *map(str, folder.rglob("*.ckpt"))]
    return made


@pytest.mark.parametrize(("data", "file"), [("digits", "p.csv"), ("breast_cancer", "p.parquet")])
def test_predict_writes_probabilities_with_record_ids(fitted, tmp_path, data, file):
    done = run(["predict", *fitted[data], "--predictions.path", file])
    table = (pd.read_csv if file.endswith("csv") else pd.read_parquet)(tmp_path / file)
    records = done.datamodule.records("predict")
    assert table["record"].tolist() == records.ids.tolist()
    with torch.no_grad():
        expected = done.model.eval()(records.rows(torch.arange(len(records)))).numpy()
    columns = [f"probability_{c}" for c in range(10)] if data == "digits" else ["probability_benign"]
    assert table.columns.tolist() == ["record", *columns, "decision"]
    decided = (expected >= 0.5) * 1 if expected.ndim == 1 else expected.argmax(1)
    assert table["decision"].tolist() == np.array(done.datamodule.class_names)[decided].tolist()
    assert abs(table[columns].to_numpy().squeeze() - expected).max() < 1e-6
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".p")] == []


def test_validate_runs_on_its_own(fitted):
    assert "val/accuracy" in run(["validate", *fitted["digits"]]).trainer.callback_metrics
