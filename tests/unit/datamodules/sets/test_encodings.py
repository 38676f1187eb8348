"""The separator, the id column and the encoding of each party's file, in training, in scoring and in aligning."""

import pandas as pd
import pytest
import torch

from lightning_vfl.cli import run
from lightning_vfl.commands.light import answer
from lightning_vfl.datamodules import CSVTables
from lightning_vfl.errors import ConfigurationError

TOWNS = ("Köln", "Nîmes", "Łódź")


def written(folder, bank="utf-8", shop="utf-8", rows=60):
    """Two tables with other separators, id columns and encodings."""
    ids = [f"kunde-{n}é" for n in range(rows)]
    numbers = torch.randn(rows, generator=torch.Generator().manual_seed(0)).tolist()
    one = pd.DataFrame({"id": ids, "town": [TOWNS[n % 2] for n in range(rows)], "label": [n % 2 for n in range(rows)]})
    other = pd.DataFrame({"customer": ids, "income": numbers, "code": [f"00{n}" for n in range(rows)]})
    one.to_csv(folder / "bank.csv", index=False, encoding=bank)
    other.to_csv(folder / "shop.csv", index=False, encoding=shop, sep=";")
    return {"bank": folder / "bank.csv", "shop": folder / "shop.csv"}


def data(tables, folder, **more):
    ids = {"shop": "customer"}
    return CSVTables(
        tables, "bank", "label", id_column=ids, separator={"shop": ";"}, preprocess="auto", work_dir=folder, **more
    )


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(("bank", "shop"), [("cp1252", "utf-8"), ("utf-16", "latin-1")])
def test_files_of_other_encodings_are_the_same_records(tmp_path, bank, shop, on_disk):
    """As in UTF-8: the same features, codes stay texts."""
    for name in ("usual", "other", "work"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "work" if on_disk else None
    usual, other = (
        data(written(tmp_path / "usual"), folder),
        data(written(tmp_path / "other", bank, shop), folder, encoding={"bank": bank, "shop": shop}),
    )
    for one in (usual, other):
        one.setup("fit")
    assert usual.party_shapes == other.party_shapes
    ids = torch.arange(len(usual.records("train")))
    pairs = zip(usual.records("train").rows(ids), other.records("train").rows(ids), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_another_encoding_than_that_of_the_file_is_told(tmp_path):
    tables = written(tmp_path, "cp1252")
    with pytest.raises(ConfigurationError, match=r"bank.csv of party 'bank' is not UTF-8 text .* give its encoding"):
        data(tables, None).setup("fit")
    with pytest.raises(ConfigurationError, match="encoding 'utf8000' is unknown; use utf-8"):
        data(tables, None, encoding="utf8000")
    with pytest.raises(ConfigurationError, match="encoding names party 'bnak', which has no table"):
        data(tables, None, encoding={"bnak": "cp1252"})


def test_align_reads_each_file_as_its_party_wrote_it(tmp_path, capsys):
    tables = written(tmp_path, "cp1252")
    words = ["align", "local", "--tables", *(f"{party}={path}" for party, path in tables.items())]
    words += ["--id-column", "id", "shop=customer", "--separator", "{shop: ;}", "--encoding", "{bank: cp1252}"]
    assert answer([*words, "--out", str(tmp_path / "aligned")]) == 0
    one, other = (pd.read_parquet(tmp_path / "aligned" / f"{party}.parquet") for party in tables)
    assert len(one) == len(other) == 60
    assert set(one["town"]) == set(TOWNS[:2])
    assert set(other.columns) == {"id", "income", "code"}
    assert "records in common" in capsys.readouterr().out


@pytest.mark.slow
def test_score_reads_each_file_as_its_party_wrote_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = written(tmp_path)
    recipe = ["--data", "CSVTables", "--data.tables", str({k: str(v) for k, v in tables.items()}).replace("'", "")]
    recipe += ["--data.label_party", "bank", "--data.label_column", "label", "--data.preprocess", "auto"]
    recipe += ["--data.id_column", "{shop: customer}", "--data.separator", "{shop: ;}", "--config", "protocol/mean"]
    fitted = run(["fit", *recipe, "--data.batch_size", "16", "--trainer.max_epochs", "2"])
    run(["export", "--ckpt_path", fitted.trainer.checkpoint_callback.best_model_path, "--out", "halves"])
    others = written(tmp_path, "cp1252", "utf-16")
    words = ["score", *map(str, sorted((tmp_path / "halves").iterdir()))]
    words += ["--tables", *(f"{party}={path}" for party, path in others.items()), "--leave_out", "label"]
    words += ["--id_column", "{shop: customer}", "--separator", "{shop: ;}"]
    assert answer([*words, "--encoding", "{bank: cp1252, shop: utf-16}", "--out", "other.csv"]) == 0
    usual = written(tmp_path)
    assert usual == others
    assert answer([*words, "--out", "usual.csv"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv("usual.csv"), pd.read_csv("other.csv"))
