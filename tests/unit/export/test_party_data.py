"""Files of one party's records: arrays of pixels, and the wrong form."""

import numpy as np
import pytest

from lightning_vfl.datamodules.records.party_tables import CSVForm
from lightning_vfl.datamodules.records.step_chain import plain_numbers
from lightning_vfl.datamodules.records.work_folders import WorkFolder
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Manifest, PartyHalf, Port, ServerHalf
from lightning_vfl.export.party_data import read_party

BYTES = np.arange(48, dtype=np.uint8).reshape(4, 1, 3, 4)


def manifest(half, *shape):
    return Manifest("strip", "", half, (Port("features", ("records", *shape), "float32"),), (), {})


IMAGES = manifest(PartyHalf(None), 1, 3, 4)


def read(path, of=IMAGES):
    return read_party(of, path, "id", ",")


@pytest.mark.parametrize("shape", [(4, 1, 3, 4), (4, 12)])
def test_a_byte_stands_for_a_number_and_ids_are_kept(tmp_path, shape):
    np.savez(tmp_path / "a.npz", features=BYTES.reshape(shape), id=np.array(["d", "b", "a", "c"]))
    data = read(tmp_path / "a.npz")
    assert data.index.tolist() == ["d", "b", "a", "c"]
    found = data.features(np.array([2, 0]))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (BYTES[[2, 0]] / np.float32(255)).astype(np.float32))


def test_ids_of_an_array_alone_are_positions_and_numbers_stay(tmp_path):
    np.save(tmp_path / "a.npy", BYTES.astype(np.float64))
    data = read(tmp_path / "a.npy")
    assert data.index.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(data.features(np.arange(4)), BYTES)


REFUSED = {
    "another shape": (lambda p: np.save(p, BYTES[:, :, :2]), "a.npy", r"\(4, 1, 2, 4\) and 4 ids; give"),
    "no ids": (lambda p: np.savez(p, features=BYTES), "a.npz", "id is not a file in the archive"),
    "too few ids": (lambda p: np.savez(p, features=BYTES, id=np.arange(3)), "a.npz", "and 3 ids; give features"),
    "an id twice": (lambda p: np.savez(p, features=BYTES, id=np.zeros(4, int)), "a.npz", "or text, each id once"),
    "ids of another kind": (lambda p: np.savez(p, features=BYTES, id=np.ones(4)), "a.npz", "must be whole numbers or"),
    "texts": (lambda p: np.save(p, BYTES.astype(str)), "a.npy", "holds <U3; give bytes or numbers"),
    "objects": (lambda p: np.save(p, np.array([{}])), "a.npy", r"cannot be read \(ValueError"),
    "no file": (lambda p: None, "a.npy", r"cannot be read \(FileNotFoundError"),
    "a table": (lambda p: p.write_text("id,p0\n1,2\n"), "a.csv", r"is a table, but its features are arrays"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_another_form_is_refused_in_one_line(tmp_path, name):
    write, file, message = REFUSED[name]
    write(tmp_path / file)
    with pytest.raises(ConfigurationError, match=message) as error:
        read(tmp_path / file)
    assert "\n" not in str(error.value)


def test_an_array_for_columns_and_a_file_for_the_server_are_refused(tmp_path):
    columns = manifest(PartyHalf((plain_numbers("age").state(),), ("age",)), 1)
    with pytest.raises(ConfigurationError, match="is an array, but it has columns; give a table"):
        read(tmp_path / "a.npy", columns)
    with pytest.raises(ConfigurationError, match="given for the server, which has no features"):
        read(tmp_path / "a.csv", manifest(ServerHalf((), (), "Mean()"), 1))


@pytest.mark.parametrize("stored", [False, True])
def test_what_is_unlike_the_training_is_counted_over_all_batches(stored, told, tmp_path):
    number = {"step": "ReadNumbers", "text": "words", "decimal": ""}
    median = {"step": "Fill", "strategy": "median", "fitted": [1.0]}
    columns = [
        {"kind": "chain", "column": name, "steps": [number, median], "seen": [[0.0, 9.0]], "missing": missing}
        for name, missing in {"age": 0.25, "late": 0.0, "calls": 0.0, "bills": 0.25}.items()
    ]
    # of age, 10 to 40 are outside; of late, two are missing; of bills, as many as in the training
    rows = [(10 * i if i < 5 else i, "-" if i in (2, 7) else i, i, "" if i in (1, 4, 8) else i) for i in range(10)]
    lines = "".join(f"{i},{','.join(map(str, row))}\n" for i, row in enumerate(rows))
    (tmp_path / "a.csv").write_text(f"id,age,late,calls,bills\n{lines}")
    of = manifest(PartyHalf(tuple(columns), ("age", "late", "calls", "bills")), 4)
    work = WorkFolder(str(tmp_path)) if stored else None
    data = read_party(of, tmp_path / "a.csv", "id", CSVForm(), work=work)
    for start in range(0, 10, 3):
        data.features(np.arange(start, min(start + 3, 10)))
    data.new.tell()
    records = "of 10 records of party 'strip', "
    assert [line.removeprefix(records) for line in told if line.startswith(records)] == [
        "numbers lie outside those of the training records in: age 4",
        "values are missing, more than in the training records, in: late 2 (training 0.0 %)",
    ]
