"""What reading tables costs, beside a bare ``pyarrow.csv`` and beside pandas with scikit-learn.

Made-up CSV files: three parties of a million records and eight columns of numbers each, with the ids of each in an
order of its own; and one table of 300,000 records with nine columns of numbers and eight of texts. Every measurement
is a process of its own. ``CPU s`` is what the work takes of both cores after all imports, ``GB`` the largest memory of
the process with them. ``read``: the cells of all files are in memory; ``ready``: they are joined on the ids, scaled
and one-hot encoded, and training can begin.

    python -m benchmarks.tables [--json FILE] [--records N] [--columns F]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.harness import Goal, arguments, report

PARTIES, RECORDS, COLUMNS = 3, 1_000_000, 8
MIXED_RECORDS, MIXED_NUMBERS, MIXED_TEXTS = 300_000, 9, 8
GIGABYTES = 1.0  # for a million records and eight columns
READ_GOAL, READY_GOAL = 1.3, 4.0  # over bare pyarrow

# what each process runs: `tables` is party -> file; `work_dir` may be empty
PYARROW = """
from pyarrow import csv
def work():
    return [csv.read_csv(path) for path in tables.values()]
"""
READ = """
import pandas
from lightning_vfl.datamodules.records.party_tables import CSVForm
from lightning_vfl.datamodules.records.table_files import TableSource
def work():
    return [TableSource(Path(path), party, "id").read() for party, path in tables.items()]
"""
SCIKIT = """
import pandas, sklearn.compose, sklearn.impute, sklearn.pipeline, sklearn.preprocessing, torch
def work():
    first, *others = [pandas.read_csv(path, index_col="id") for path in tables.values()]
    joined = first.join(others, how="inner") if others else first
    labels, features = joined.pop("y"), joined
    numbers = sklearn.pipeline.make_pipeline(sklearn.impute.SimpleImputer(), sklearn.preprocessing.StandardScaler())
    texts = sklearn.preprocessing.OneHotEncoder(sparse_output=False, dtype="float32")
    of_kind = sklearn.compose.make_column_selector
    columns = sklearn.compose.make_column_transformer(
        (numbers, of_kind(dtype_include="number")), (texts, of_kind(dtype_exclude="number"))
    )
    return torch.from_numpy(columns.fit_transform(features).astype("float32")), torch.from_numpy(labels.to_numpy())
"""
READY = """
import pandas, sklearn.model_selection, torch
from lightning_vfl.datamodules import CSVTables
def work():
    data = CSVTables(tables, "party0", "y", preprocess="auto", work_dir=work_dir or None)
    data.setup("fit")
    return data
"""
PROCESS = """
import json, resource, sys
from pathlib import Path
tables, work_dir = json.loads(sys.argv[1]), sys.argv[2]
{program}
def seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
before = seconds()
kept = work()
print(json.dumps([seconds() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6]))
"""


def write_parties(folder: Path, records: int, columns: int) -> dict[str, str]:
    """Party -> its file of random numbers; the first party has the labels."""
    draw = np.random.Generator(np.random.PCG64(0))
    files = {}
    for party in range(PARTIES):
        numbers = draw.normal(size=(records, columns)).astype(np.float32)
        table = pd.DataFrame(numbers, columns=[f"x{party}_{c}" for c in range(columns)])
        table.insert(0, "id", draw.permutation(records))
        if party == 0:
            table["y"] = (numbers[:, 0] > 0).astype(np.int64)
        files[f"party{party}"] = str(folder / f"party{party}.csv")
        table.to_csv(files[f"party{party}"], index=False)
    return files


def write_mixed(folder: Path) -> dict[str, str]:
    """One party, with numbers, texts of eight kinds and the labels."""
    draw = np.random.Generator(np.random.PCG64(1))
    table = pd.DataFrame({"id": draw.permutation(MIXED_RECORDS)})
    for column in range(MIXED_NUMBERS):
        table[f"number{column}"] = draw.normal(size=MIXED_RECORDS).astype(np.float32)
    kinds = np.array(["monday", "tuesday", "basic", "family", "north", "south", "yellow", "green"])
    for column in range(MIXED_TEXTS):
        table[f"text{column}"] = draw.choice(kinds, MIXED_RECORDS)
    table["y"] = draw.integers(0, 2, MIXED_RECORDS)
    path = folder / "mixed.csv"
    table.to_csv(path, index=False)
    return {"party0": str(path)}


def measure(program: str, files: dict[str, str], work_dir: str = "") -> tuple[float, float]:
    """CPU seconds and gigabytes of a process that runs the program."""
    command = [sys.executable, "-c", PROCESS.format(program=program), json.dumps(files), work_dir]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    seconds, gigabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, gigabytes


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    given = parser.parse_args()
    measured: dict[tuple[str, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parties = write_parties(folder, given.records, given.columns)
        mixed = write_mixed(folder)
        for tables, files in (("three tables of numbers", parties), ("a table with texts", mixed)):
            for what, program, work_dir in (
                ("read, pyarrow.csv", PYARROW, ""),
                ("read, lightning_vfl", READ, ""),
                ("ready, pandas and scikit-learn", SCIKIT, ""),
                ("ready, lightning_vfl", READY, ""),
                ("ready, lightning_vfl on the disk", READY, name),
            ):
                measured[tables, what] = measure(program, files, work_dir)
    rows: list[dict[str, Any]] = [
        {"tables": tables, "what": what, "CPU s": seconds, "GB": gigabytes, "/ pyarrow": seconds / bare}
        for (tables, what), (seconds, gigabytes) in measured.items()
        for bare in [measured[tables, "read, pyarrow.csv"][0]]
    ]
    over_pyarrow = {(row["tables"], row["what"]): row["/ pyarrow"] for row in rows}
    goals = [
        Goal("reading over pyarrow.csv", over_pyarrow["three tables of numbers", "read, lightning_vfl"], READ_GOAL),
        Goal(
            "ready over pyarrow.csv, with texts", over_pyarrow["a table with texts", "ready, lightning_vfl"], READY_GOAL
        ),
        Goal("gigabytes, in memory", measured["three tables of numbers", "ready, lightning_vfl"][1], GIGABYTES),
        Goal(
            "gigabytes, on the disk",
            measured["three tables of numbers", "ready, lightning_vfl on the disk"][1],
            GIGABYTES,
        ),
    ]
    report(rows, goals, given.json)


if __name__ == "__main__":
    main()
