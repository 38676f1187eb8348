"""Law: exported halves together predict what the trained model predicts, and no half has another owner's numbers."""

import json
import resource
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar

import lightning_vfl.datamodules as d
from lightning_vfl import DecoupledVFL, SplitVFL
from lightning_vfl.absence.measure import output_without
from lightning_vfl.absence.stand_ins import Exclude
from lightning_vfl.aggregators import LocalGaussian, Mean
from lightning_vfl.cli import main, run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.calibration import calibrated
from lightning_vfl.export.manifest import FORMAT, Engine, Manifest, hash_of
from lightning_vfl.export.score import score
from lightning_vfl.export.split_model import party_names, party_part, server_part
from lightning_vfl.export.trained import Trained, load_trained
from lightning_vfl.export.write import export_model
from tests.exported import CLOSE, assert_close, built, one_registry, predictions
from tests.integration.test_new_records import IDS, NEW, tables, write_tables
from tests.pages import ROOT, blocks_of
from tests.readme_commands import commands
from tests.subjects import Blobs, split
from tests.unit.export.test_calibration import calibration_error

pytestmark = pytest.mark.slow  # torch.export and ONNX take 5 s in every process that imports them


@pytest.fixture(autouse=True, scope="module")
def quick_exports():
    with one_registry():
        yield


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """A folder with the exported halves of a model of a bank and a shop, and new tables."""
    folder = tmp_path_factory.mktemp("bank")
    write_tables(folder, IDS)
    write_tables(folder / "new", NEW, seed=1, cities=("Paris", "Berlin", "Oslo"), label=False)
    export_model(model(folder), folder / "out")  # the tensors of its scaling are parts of one tensor of all parties
    return folder


def model(folder):
    """The model of the bank and the shop, with random weights: the same in every call."""
    torch.manual_seed(0)
    return built(Mean(), data=tables(folder))[0]


def halves(folder):
    return [folder / name for name in ("shop", "server", "bank")]


def files(folder):
    return {name: folder / f"{name}.csv" for name in ("bank", "shop")}


def test_score_is_predict_on_tables_with_categories(bank, tmp_path, told):
    expected = predictions(model(bank), tables(bank / "new"), tmp_path)
    assert len(expected) == len(NEW)
    notes = [line for line in told if "that no training record has" in line]
    assert len(notes) == 1
    for batch_size in (7, 4096):
        told.clear()
        found = score(halves(bank / "out"), files(bank / "new"), batch_size=batch_size)
        assert [line for line in told if "that no training record has" in line] == notes
        assert_close(found, expected, CLOSE[Engine.ONNX])
        on_disk = score(halves(bank / "out"), files(bank / "new"), batch_size=batch_size, work_dir=tmp_path / "work")
        pd.testing.assert_frame_equal(on_disk, found, check_exact=True)
    assert not list((tmp_path / "work").iterdir())


def test_a_record_that_is_not_scored_may_have_any_values(bank, tmp_path, told):
    """As for predict: the record is told as left out, and its values stop nothing and are not counted."""
    expected = score(halves(bank / "out"), files(bank / "new"))
    given = files(bank / "new") | {"shop": tmp_path / "shop.csv"}
    new = pd.read_csv(bank / "new/shop.csv")
    pd.concat([pd.DataFrame({"id": ["a", "z"], "visits": np.inf}), new])[new.columns].to_csv(given["shop"], index=False)
    notes = []
    for work_dir in (None, tmp_path / "work"):
        told.clear()
        found = score(halves(bank / "out"), given, work_dir=work_dir)
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
        notes.append([*told])
    assert notes[0] == notes[1]


@pytest.mark.slow
def test_score_is_predict_in_torch_and_for_one_record_at_a_time(bank, tmp_path):
    expected = predictions(model(bank), tables(bank / "new"), tmp_path)
    for engine in Engine:
        found = score(halves(bank / "out"), files(bank / "new"), engine, batch_size=1)
        assert_close(found, expected, CLOSE[engine])


@pytest.mark.slow
def test_the_commands_of_the_page_on_trained_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = ""
    short = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    for block in blocks_of(ROOT / "docs/trained_models.md"):
        for words in commands(f"```{block.language}\n{block.code}```\n"):
            if words[0] == "python":
                monkeypatch.setattr(sys, "argv", words[1:])
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
                continue
            command, *options = [checkpoint if word == "FILE" else word for word in words[1:]]
            options += {"fit": ["--trainer.max_epochs=3", *short], "predict": short}.get(command, [])
            ran = run([command, *options])
            if command == "fit":
                checkpoint = ran.trainer.checkpoint_callback.best_model_path
    expected = pd.read_csv("predictions.csv")
    assert_close(pd.read_csv("scored.csv"), expected, CLOSE[Engine.ONNX])
    there, alone = (Manifest.read(tmp_path / path) for path in ("exported/bank", "bank_alone"))
    assert there.model == alone.model == hash_of(Path(checkpoint))
    assert there.inputs == alone.inputs


@pytest.mark.slow
def test_statistics_and_calibration_of_the_run_are_those_of_its_records(tmp_path):
    fit = ["fit", "--config", "data/digits", "--config", "protocol/mean", "--trainer.max_epochs=3"]
    fit += ["--model.missing=Exclude"]
    fit += [
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={tmp_path}",
    ]
    trained = run(fit)
    checkpoint = trained.trainer.checkpoint_callback.best_model_path
    main(
        ["export", "--ckpt_path", checkpoint, "--out", str(tmp_path / "out"), "--statistics=true", "--calibration=true"]
    )
    module, data = load_trained(Path(checkpoint)).module.eval(), trained.datamodule
    batches = list(data.train_dataloader())
    with torch.no_grad():
        for m, name in enumerate(party_names(module)):
            expected = torch.cat([module.bottoms.parties[m](batch.features[m]) for batch in batches]).double().numpy()
            found = Manifest.read(tmp_path / "out" / name).training
            assert found.records == len(expected)
            np.testing.assert_allclose(found.mean, expected.mean(0), atol=1e-5)
            np.testing.assert_allclose(found.deviation, expected.std(0), atol=1e-5)
        expected = torch.cat([module(batch) for batch in batches]).double().numpy()
    manifest = Manifest.read(tmp_path / "out" / "server")
    np.testing.assert_allclose(manifest.training.mean, expected.mean(0), atol=1e-5)
    names = manifest.half.parties
    assert [one.absent for one in manifest.half.calibration] == [(), *((name,) for name in names)]
    data.setup("test")
    for absent, one in zip((None, *range(len(names))), manifest.half.calibration, strict=True):
        given, labels = without(module, absent, data.val_dataloader())
        assert one.records == len(labels)
        best = minimize_scalar(partial(slope_loss, given, labels), bounds=(0.01, 50), method="bounded")
        assert one.slope == pytest.approx(best.x, rel=1e-3)
        given, labels = without(module, absent, data.test_dataloader())
        after = calibrated(given, one.slope, one.offset)
        rows = np.arange(len(labels))
        assert -np.log(after[rows, labels]).mean() <= -np.log(given[rows, labels]).mean() + 0.01
        assert calibration_error(after, labels) <= calibration_error(given, labels) + 0.02


@torch.no_grad()
def without(module, absent, batches):
    """The probabilities with an absent party, of the model itself, and the labels."""
    given, labels = [], []
    for batch in batches:
        h = module.bottoms(batch.features)
        _, output = output_without(module, h, batch.present, () if absent is None else (absent,), Exclude(), None)
        given.append(module.objective.predict(output).double())
        labels.append(batch.labels)
    return torch.cat(given).numpy(), torch.cat(labels).numpy()


def slope_loss(given, labels, slope):
    """The log loss, where the other classes of a record share one of N + 2 parts."""
    records, classes = given.shape
    targets = np.where(np.arange(classes) == labels[:, None], records + 1, 1 / (classes - 1)) / (records + 2)
    powers = np.maximum(given, 1e-7) ** slope
    return -np.mean((targets * np.log(powers / powers.sum(1, keepdims=True))).sum(1))


# ---- no half has another's numbers


def numbers_of(network):
    """Every tensor of at least four different numbers, as it is and transposed."""
    for name, tensor in network.state_dict().items():
        if tensor.unique().numel() >= 4:
            for form in (tensor, tensor.flatten(1).T.contiguous() if tensor.ndim > 1 else tensor):
                yield name, form.numpy().tobytes()


def test_no_half_has_the_weights_or_the_scaling_of_another(bank):
    module = model(bank)
    parts = [party_part(module, 0), party_part(module, 1), server_part(Trained(module, ""))]
    content = {part.name: b"".join(f.read_bytes() for f in (bank / "out" / part.name).iterdir()) for part in parts}
    searched = 0
    for owner in parts:
        own = list(numbers_of(owner.network))
        # the search finds what is there: each tensor is in the owner's files in one of the two forms
        assert {name for name, number in own if number in content[owner.name]} == {name for name, _ in own}
        for other in parts:
            if other is not owner:
                assert not [name for name, number in own if number in content[other.name]], (owner.name, other.name)
                searched += len(own)
    assert searched > 20
    for party in parts[:2]:
        for number in torch.cat([party.network.shift, party.network.scale]):
            assert [name for name in content if number.numpy().tobytes() in content[name]] == [party.name]
    for word in (b"income", b"Paris"):
        assert [name for name in content if word in content[name]] == ["bank"]


def test_files_name_no_folder_of_the_machine(bank):
    for folder in halves(bank / "out"):
        for file in folder.iterdir():
            assert b"site-packages" not in file.read_bytes(), file


# ---- what is refused, each in one line


def copied(bank, folder):
    """A copy of the halves, to be changed."""
    shutil.copytree(bank / "out", folder / "out")
    return folder / "out"


def change(path, **values):
    """Change values of a manifest."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | values))


REFUSED = {
    "a file that has changed": (
        lambda out: (out / "bank/party.onnx").write_bytes((out / "shop/party.onnx").read_bytes()),
        r"bank/party.onnx is not the file that was exported: its sha256 is not that of .*; export the model again",
    ),
    "a file that is missing": (lambda out: (out / "shop/party.pt2").unlink(), r"party.pt2 is missing, which"),
    "another format": (
        lambda out: change(out / "bank/manifest.json", format=FORMAT + 1),
        rf"has format {FORMAT + 1}, this version reads format {FORMAT}; export the model again, or install",
    ),
    "no manifest": (lambda out: (out / "bank/manifest.json").unlink(), r"has no manifest.json; give the folders"),
    "a manifest of something else": (
        lambda out: (out / "bank/manifest.json").write_text('{"format": 1}'), r"is not the manifest of an exported",
    ),
    "a file elsewhere": (
        lambda out: change(out / "bank/manifest.json", programs={"onnx": {"path": "../shop/party.onnx", "sha256": ""}}),
        r"names ../shop/party.onnx, which is in another folder",
    ),
    "a wrong party": (
        lambda out: change(out / "shop/manifest.json", name="telco"),
        r"shop is the half of party 'telco', which .*server does not expect; it expects bank, shop",
    ),
    "a half of another checkpoint": (
        lambda out: change(out / "shop/manifest.json", model="0"),
        r"shop and .*server were exported from different checkpoints; export all halves from one checkpoint",
    ),
    "a party twice": (
        lambda out: change(out / "shop/manifest.json", name="bank"), r"the half of party 'shop' is missing, which",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_do_not_belong_together_are_refused(bank, tmp_path, name):
    out = copied(bank, tmp_path)
    harm, message = REFUSED[name]
    harm(out)
    with pytest.raises(ConfigurationError, match=message) as error:
        score(halves(out), files(bank / "new"))
    assert "\n" not in str(error.value)


TABLES = {
    "a missing column": (lambda t: t["bank"].pop("city"), {}, r"'bank' is without city, .* which has income, city"),
    "a further column": (lambda t: t["shop"].insert(1, "y", 1), {}, r"'shop' has columns y, .* --leave_out y"),
    "a number that is infinite": (
        lambda t: t["shop"].insert(1, "visits", np.inf), {}, r"96 values of column 'visits' .* are infinite",
    ),
    "text among numbers": (lambda t: t["shop"].insert(1, "visits", "a"), {}, r"96 values .* are not numbers"),
    "no common record": (lambda t: t["shop"].insert(0, "id", t["shop"].pop("id") + "x"), {}, r"have no id in common"),
    "ids of two kinds": (
        lambda t: t["shop"].insert(0, "id", range(len(t["shop"].pop("id")))), {},
        r"ids of party 'shop' are whole numbers but those of party 'bank' are text; write them in the same form",
    ),
    "records of a party": (lambda t: None, {"records_of": "bank"}, r"is for models that were trained with overlap"),
    "no table": (lambda t: t.pop("shop"), {}, r"--tables has no file of party 'shop'; add shop=FILE"),
    "a further table": (lambda t: t.update(shp=t["shop"]), {}, r"--tables names 'shp', but no folder is of this "
    "party; did you"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_another_form_are_refused(bank, tmp_path, name):
    harm, settings, message = TABLES[name]
    changed = {party: pd.read_csv(path) for party, path in files(bank / "new").items()}
    if name in ("a number that is infinite", "text among numbers"):
        changed["shop"].pop("visits")
    harm(changed)
    for party, table in changed.items():
        table.to_csv(tmp_path / f"{party}.csv", index=False)
    given = {party: tmp_path / f"{party}.csv" for party in changed}
    with pytest.raises(ConfigurationError, match=message) as error:
        score(halves(bank / "out"), given, **settings)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_server_and_a_party_twice_are_refused(bank):
    shop, server, own = halves(bank / "out")
    with pytest.raises(ConfigurationError, match=r"0 of the folders .* are a server's"):
        score([shop, own], files(bank / "new"))
    with pytest.raises(ConfigurationError, match="a party is given twice"):
        score([shop, server, own, own], files(bank / "new"))


def test_a_folder_in_use_and_an_unknown_party_are_refused(bank):
    module = model(bank)
    with pytest.raises(ConfigurationError, match="out/bank is not an empty folder; give another --out"):
        export_model(module, bank / "out")
    with pytest.raises(ConfigurationError, match=r"--party shp: the model has no such party; did you mean shop"):
        export_model(module, bank / "new-half", "shp")


def test_another_file_is_no_checkpoint(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ConfigurationError, match="is not a checkpoint of a vertical model"):
        load_trained(tmp_path / "other.ckpt")


def test_hosts_of_decoupled_training_are_refused(tmp_path):
    module = DecoupledVFL(width=4, party_shapes=[(3,), (2,)], num_classes=3)
    module.configure_model()
    with pytest.raises(ConfigurationError, match=r"DecoupledVFL has hosts .* single guests with --party NAME"):
        export_model(module, tmp_path / "out")


class Doubled(SplitVFL):
    """A protocol with an output of its own."""

    def output(self, batch, names):
        return 2 * super().output(batch, names)


def test_a_protocol_with_an_output_of_its_own_is_refused(tmp_path):
    module = Doubled(Mean(), width=4, party_shapes=[(3,), (2,)], num_classes=3)
    module.configure_model()
    with pytest.raises(ConfigurationError, match="Doubled predicts otherwise than by bottoms, aggregate and top"):
        export_model(module, tmp_path / "out")


def test_the_manifest_tells_that_predict_is_protected(bank):
    module = split(LocalGaussian(draws="seeded"))
    module.build_for(Blobs(d.ContiguousColumns(3)))
    assert "predict runs the messages of LocalGaussian" in server_part(Trained(module, "")).half.differs
    assert Manifest.read(bank / "out/server").half.differs == ""


@pytest.mark.slow
@pytest.mark.processes
def test_score_imports_neither_torch_nor_lightning(bank, tmp_path):
    code = "import sys\nfrom pathlib import Path\nfrom lightning_vfl.cli import main\n"
    code += "from lightning_vfl.export.score import score\n"  # in Python, where no command has set a rank
    parts = [str(folder) for folder in halves(bank / "out")]
    tables_of = {name: str(path) for name, path in files(bank / "new").items()}
    code += f"assert len(score([*map(Path, {parts})], {tables_of})) == {len(NEW)}\n"
    code += "try: main()\nexcept SystemExit as end: print(end.code)\n"
    code += "print({'torch', 'lightning', 'sklearn', 'numba'} & {*sys.modules})"
    given = [f"{name}={path}" for name, path in files(bank / "new").items()]
    words = ["score", *map(str, halves(bank / "out")), "--tables", *given, "--out", str(tmp_path / "p.csv")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [f"{len(NEW)} predictions: {tmp_path / 'p.csv'}", "0", "set()"]
    assert "records of party 'bank' have categories of column 'city' that no training record has: Berlin" in done.stderr
    assert len(pd.read_csv(tmp_path / "p.csv")) == len(NEW)


def test_the_command_line_tells_errors_in_one_line(bank, capsys):
    for words, status, message in (
        (["score", "nowhere", "--tables", "a=b"], 1, "nowhere has no manifest.json"),
        (["score", "nowhere", "--tables", "ab"], 2, "--tables takes PARTY=FILE"),
        (["score", "nowhere"], 2, "score needs"),
        (["score", "x", "--tables", "a=b", "--out", "p.txt"], 1, "predictions need a .csv or .parquet file"),
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        error = capsys.readouterr().err
        assert (end.value.code, error.count("\n")) == (status, 1), error
        assert message in error


@pytest.mark.parametrize("room", [500, 12_000])
def test_a_half_that_cannot_be_written_is_named_with_what_to_do(bank, room, tmp_path):
    """The system ends a file at this size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(ConfigurationError, match=r"/bank cannot be written .*; make room") as error:
            export_model(model(bank), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
