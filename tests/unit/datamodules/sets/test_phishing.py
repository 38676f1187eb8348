"""Phishing Websites from small files in the published format, against what was written into them, and scipy."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import arff
from sklearn.model_selection import train_test_split

from lightning_vfl.datamodules import ContiguousColumns, NamedColumns, Phishing, Standardise
from lightning_vfl.errors import ConfigurationError

from ..miniature import PHISHING, phishing, write_phishing

FILE = "Training Dataset.arff"
SPLITS = ("train", "val", "test")
SOURCE = "https://archive.ics.uci.edu/dataset/327/phishing+websites"
FIRST = 37  # line of the first record


def open_data(folder, **settings: Any):
    data = Phishing(data_dir=folder, **{"expected_records": None} | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def written() -> np.ndarray:
    """All records as they were written, label last."""
    return np.array(list(phishing().values())).T


def check(data):
    """All records of all splits are those of their ids."""
    table = written()
    for name in (*SPLITS, "predict"):
        records = data.records(name)
        np.testing.assert_array_equal(records.features.numpy(), table[records.ids][:, :-1])
        np.testing.assert_array_equal(records.labels.numpy(), table[records.ids][:, -1] == 1)
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(200))


@pytest.fixture
def folder(tmp_path):
    write_phishing(tmp_path)
    return tmp_path


def test_records_are_those_of_the_file(folder):
    data = open_data(folder)
    check(data)
    assert data.layout.columns == tuple(PHISHING)
    assert data.num_classes == 2
    assert data.records("predict").ids.tolist() == data.records("test").ids.tolist()
    assert {data.records(name).features.dtype for name in SPLITS} == {torch.float32}


def test_records_are_those_that_scipy_reads(folder):
    data = open_data(folder, val_share=0, test_share=0.5)
    table, _ = arff.loadarff(folder / FILE)
    for name in ("train", "test"):
        records = data.records(name)
        for i, column in enumerate(PHISHING):
            np.testing.assert_array_equal(records.features[:, i].numpy(), table[column][records.ids].astype(float))
        np.testing.assert_array_equal(records.labels.numpy(), table["Result"][records.ids] == b"1")


@pytest.mark.parametrize(
    "change",
    ["order", "byte order mark", "blanks", "blank lines", "comments", "capitals", "numeric", "unix", "another file"],
)
def test_other_ways_to_say_the_same(folder, change):
    path = folder / FILE
    text = path.read_text()
    head, body = text.split("@data\n")
    if change == "order":
        write_phishing(folder, dict(reversed(phishing().items())))
    elif change == "another file":
        (folder / ".old.arff").write_text("not looked at")
    else:
        texts = {
            "byte order mark": "\ufeff" + text.removeprefix("@relation phishing\n\n"),
            "blanks": f"{head}  @data \n" + body.replace(",", " ,\t "),
            "blank lines": f"{head}@data\n" + body.replace("\n", "\n \n\n") + "\n\n",
            "comments": f'% a, "head\n%\n{head}@data\n% 1,1\n' + body.replace("\n", "\n  % as on line 3\n"),
            "capitals": head.replace("@attribute", "@ATTRIBUTE").replace("@relation", "@RELATION") + "@DATA\n" + body,
            "numeric": head.replace("{-1,1}", "numeric") + "@data\n" + body,
            "unix": text + "\n",
        }
        path.write_text(texts[change], encoding="utf-8")
    check(open_data(folder))


@pytest.mark.parametrize(("parties", "width"), [(5, 6), (10, 3)])
def test_the_parties_of_pbm_vfl(folder, parties, width):
    """ "5 and 10 parties, where each party holds 6 or 3 features", runs of the file's columns."""
    data = open_data(folder, partitioner=None if parties == 5 else ContiguousColumns(parties))
    assert data.party_shapes == ((width,),) * parties
    records = data.records("test")
    table = written()[records.ids]
    for party, own in enumerate(records.rows(torch.arange(len(records)))):
        np.testing.assert_array_equal(own.numpy(), table[:, width * party : width * (party + 1)])


def test_columns_by_name(folder):
    cut = NamedColumns({"browser": ["Favicon", "Redirect"], "registry": ["DNSRecord"]}, drop_rest=True)
    records = open_data(folder, partitioner=cut).records("train")
    np.testing.assert_array_equal(records.features.numpy(), written()[records.ids][:, [9, 18, 24]])


def test_columns_are_scaled_if_that_is_wanted(folder):
    data = open_data(folder, normaliser=Standardise())
    table = written()[:, :-1]
    train, test = (table[data.records(name).ids] for name in ("train", "test"))
    expected = (test - train.mean(0)) / train.std(0)
    np.testing.assert_allclose(data.records("test").features.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shares", "sizes", "legitimate"),
    [((0.1, 0.2), [140, 20, 40], [84, 12, 24]), ((0.25, 0.25), [100, 50, 50], [60, 30, 30])],
)
def test_shares_and_stratification(folder, shares, sizes, legitimate):
    data = open_data(folder, val_share=shares[0], test_share=shares[1])
    assert [len(data.records(name)) for name in SPLITS] == sizes
    assert [int(data.records(name).labels.sum()) for name in SPLITS] == legitimate
    labels = written()[:, -1] == 1
    _, tests = train_test_split(labels, test_size=shares[1], stratify=labels)
    assert data.records("test").labels.bincount().tolist() == np.bincount(tests).tolist()


def test_the_seed_names_the_split(folder):
    ids = [open_data(folder, seed=seed).records("train").ids.tolist() for seed in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]


def test_the_shares_of_pbm_vfl(folder):
    data = Phishing(data_dir=folder, expected_records=200, val_share=0)
    data.setup("fit")
    data.setup("test")
    assert [len(data.records(name)) for name in ("train", "test")] == [160, 40]
    assert data.val_dataloader() == []


def test_shares_of_nothing(folder):
    data = open_data(folder, val_share=0, test_share=0)
    assert len(data.records("train")) == 200
    with pytest.raises(ConfigurationError, match="Phishing has no 'test' records"):
        data.test_dataloader()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (-0.1, 0.2)])
def test_impossible_shares(shares):
    with pytest.raises(ConfigurationError, match="use shares from 0 that add up to less than 1"):
        Phishing(val_share=shares[0], test_share=shares[1])


def test_a_checkpoint_keeps_what_decides_about_the_records(folder):
    kept = open_data(folder).state_dict()
    assert kept == {
        "partitioner": "ContiguousColumns(parties=5)",
        "normaliser": "Unchanged()",
        "seed": 0,
        "val_share": 0.1,
        "test_share": 0.2,
    }
    with pytest.raises(ConfigurationError, match=r"test_share = 0.2, these data have 0.3; give the same test_share"):
        Phishing(data_dir=folder, test_share=0.3).load_state_dict(kept)


def test_pos_weight_is_that_of_the_training_records(folder):
    write_phishing(folder, phishing() | {"Result": [1] * 30 + [-1] * 170})
    data = Phishing(data_dir=folder, expected_records=200, test_share=0.5, val_share=0.1)
    weight = data.pos_weight  # also before setup
    data.setup("fit")
    ids = data.records("train").ids
    assert weight == (ids >= 30).sum() / (ids < 30).sum()
    assert 17 / 3 - 0.5 < weight < 17 / 3 + 0.5


def test_pos_weight_without_a_legitimate_site_in_training(folder):
    write_phishing(folder, phishing() | {"Result": [1] * 2 + [-1] * 198})
    data = open_data(folder, val_share=0, test_share=0.9)
    with pytest.raises(ConfigurationError) as error:
        _ = data.pos_weight
    assert str(error.value) == (
        "Phishing has 20 training records, none of them of a legitimate site; keep more records for training"
    )


def test_the_classes_are_reported_once(folder, monkeypatch):
    said = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.one_table.rank_zero_info", said.append)
    open_data(folder)
    assert said == ["Phishing: 200 records of Training Dataset.arff, 120 of them (60.0%) of a legitimate site"]


def test_the_folder_of_all_data(tmp_path, monkeypatch):
    (tmp_path / "phishing").mkdir()
    write_phishing(tmp_path / "phishing")
    monkeypatch.setenv("LIGHTNING_VFL_DATA", str(tmp_path))
    data = Phishing(expected_records=200)
    data.setup("fit")
    assert len(data.records("train")) == 140


def test_no_file(tmp_path):
    (tmp_path / ".old.arff").touch()
    with pytest.raises(ConfigurationError) as error:
        Phishing(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds no data of Phishing; put '{FILE}' from {SOURCE} there, or name another folder with data_dir "
        "or LIGHTNING_VFL_DATA"
    )


def change(column: str, **values: object) -> dict[str, list[Any]]:
    """The sites with some values (r3=... is the record 3 from 0) of a column replaced."""
    table = phishing()
    for row, value in values.items():
        table[column][int(row[1:])] = value
    return table


def without(*names: str) -> dict[str, list[Any]]:
    return {name: column for name, column in phishing().items() if name not in names}


REFUSALS = {
    "a column missing": (
        without("port"),
        r"has 30 columns that are not the 31 columns of this data set \(missing: port\); correct the columns or "
        r"fetch the",
    ),
    "columns missing": (without("Result", "SFH"), r"has 29 columns .* \(missing: SFH, Result\)"),
    "a column too much": (phishing() | {"id": [1] * 200}, r"has 32 columns .* \(unknown: id\); correct the columns"),
    "another column": (
        {"popUpWindow" if name == "popUpWidnow" else name: column for name, column in phishing().items()},
        r"has 31 columns .* \(missing: popUpWidnow; unknown: popUpWindow\)",
    ),
    "a missing value": (
        change("port", r3="?", r7="?"),
        rf"2 values of column 'port' of .* are not -1, 0 or 1, first '\?' in row {FIRST + 3}; correct or remove",
    ),
    "an empty field": (change("Iframe", r0=""), f"1 values of column 'Iframe' .* 1, first '' in row {FIRST}; correct"),
    "another value": (change("SFH", r199=2), f"1 values of column 'SFH' .* first '2' in row {FIRST + 199};"),
    "text": (change("Favicon", r1="yes"), f"1 values of column 'Favicon' .* first 'yes' in row {FIRST + 1}"),
    "not a number": (change("Favicon", r1="nan"), f"1 values of column 'Favicon' .* 'nan' in row {FIRST + 1}"),
    "a class between": (
        change("Result", r1=0, r2=0),
        f"2 values of column 'Result' of .* are neither -1 nor 1, first '0' in row {FIRST + 1}; write 1 for a "
        f"record of a legit",
    ),
    "no label": (change("Result", r1="?"), r"1 values of column 'Result' of .* are neither -1 nor 1, first '\?'"),
    "one class": (
        phishing() | {"Result": [1] * 200},
        r"holds 200 records of 1 class\(es\) instead of 2; fetch it again from",
    ),
    "no records": ({name: [] for name in phishing()}, "holds 0 records instead of at least one; fetch it again from"),
    "one phishing site": (
        phishing() | {"Result": [-1] + [1] * 199},
        r"200 records give no test split of 20% \(.*\); use more records",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_files_are_refused(tmp_path, refusal):
    table, message = REFUSALS[refusal]
    path = write_phishing(tmp_path, table)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(path) in str(error.value) or refusal == "one phishing site"


@pytest.mark.parametrize(("line", "fields"), [("1,1", 2), ("1" + ",1" * 31, 32), ("{0 1, 30 1}", 2), ("1;1;1", 1)])
def test_records_of_another_length(folder, line, fields):
    path = folder / FILE
    path.write_text(path.read_text() + f"\n{line}\n")
    with pytest.raises(ConfigurationError) as error:
        open_data(folder)
    start = line.split(",")[0]
    assert str(error.value) == (
        f"1 rows of {path} do not have 31 fields, first row {FIRST + 200} with {fields} (the first is '{start}'); "
        f"fetch it again from {SOURCE}"
    )


def test_a_file_cut_short(folder):
    path = folder / FILE
    path.write_text("\n".join(path.read_text().splitlines()[:-50]))
    with pytest.raises(ConfigurationError) as error:
        open_data(folder, expected_records=200)
    assert str(error.value) == (
        f"{path} holds 150 records instead of 200; fetch it again from {SOURCE}, or set expected_records to the "
        "number of your own file"
    )
    with pytest.raises(ConfigurationError, match="holds 150 records instead of 11055; fetch it again"):
        Phishing(data_dir=folder).setup("fit")
    assert len(open_data(folder).records("train")) == 105


def head(*attributes: str) -> bytes:
    return "\n".join(["@relation phishing", *attributes, "@data", "1,1"]).encode()


NO_DATA = "is not an ARFF file: it has no line '@data'; fetch it again from"
UNREADABLE = {
    "empty": (b"", NO_DATA),
    "a page": (b"<html>\n404\n</html>", NO_DATA),
    "a table of commas": (b"port,Result\n1,-1\n", NO_DATA),
    "a head alone": (b"@relation phishing\n@attribute port {1,-1}\n", NO_DATA),
    "another coding": (b"@relation \xff\xfe", r"cannot be read \(.*invalid start byte\); fetch it again from"),
    "no columns": (head(), r"has 0 columns that are not the 31 columns of this data set \(missing: having_IP_Add"),
    "a column twice": (
        head("@attribute port {1}", "@attribute port {1}"),
        r"the head of .* cannot be read \(ValueError: .*'port' occurs more than once\); fetch the file again from",
    ),
    "text columns": (
        head("@attribute port string"),
        r"the head of .* cannot be read \(NotImplementedError: String attributes .*\); fetch the file again from",
    ),
    "a column without values": (
        head("@attribute port"),
        r"the head of .* cannot be read \(ParseArffError: .*\); fetch",
    ),
}


@pytest.mark.parametrize("file", UNREADABLE)
def test_files_that_are_no_such_table(tmp_path, file):
    content, message = UNREADABLE[file]
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)
