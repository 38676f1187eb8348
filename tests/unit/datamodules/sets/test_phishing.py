"""Phishing Websites from small files in the published format, against what was written into them, and scipy."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import arff

from lightning_vfl.datamodules import ContiguousColumns, Phishing
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
    "a missing value": (
        change("port", r3="?", r7="?"),
        rf"2 values of column 'port' of .* are not -1, 0 or 1, first '\?' in row {FIRST + 3}; correct or remove",
    ),
    "another value": (change("SFH", r199=2), f"1 values of column 'SFH' .* first '2' in row {FIRST + 199};"),
    "a class between": (
        change("Result", r1=0, r2=0),
        f"2 values of column 'Result' of .* are neither -1 nor 1, first '0' in row {FIRST + 1}; write 1 for a "
        f"record of a legit",
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
