"""What reading tables costs: three parties' CSV files of a million records and eight columns each, until ready.

The files are made up, with the ids of each in an order of its own. Every measurement is a process of its own, which
sets up training and validation records once, in memory or on the disk; its CPU seconds and its largest memory include
Python and all imports.

    python -m benchmarks.tables [--json FILE] [--records N] [--columns F]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.harness import Goal, arguments, report

PARTIES, RECORDS, COLUMNS = 3, 1_000_000, 8
CPU_SECONDS, GIGABYTES = 12.0, 1.0  # for a million records and eight columns

_SETUP = """
import json, resource, sys
from lightning_vfl.datamodules import CSVTables
tables, preprocess, work_dir = json.loads(sys.argv[1]), sys.argv[2] or None, sys.argv[3] or None
CSVTables(tables, "party0", "y", preprocess=preprocess, work_dir=work_dir).setup("fit")
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6]))
"""


def write(folder: Path, records: int, columns: int) -> dict[str, str]:
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


def measure(files: dict[str, str], preprocess: str, work_dir: str) -> tuple[float, float]:
    """CPU seconds and gigabytes of a process that sets the tables up; ``work_dir`` empty: in memory."""
    command = [sys.executable, "-c", _SETUP, json.dumps(files), preprocess, work_dir]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    seconds, gigabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, gigabytes


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    given = parser.parse_args()
    rows, goals = [], []
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), given.records, given.columns)
        for preprocess, work_dir in (("", ""), ("auto", ""), ("auto", folder)):
            seconds, gigabytes = measure(files, preprocess, work_dir)
            name, place = preprocess or "none", "on the disk" if work_dir else "in memory"
            rows.append({"preprocess": name, "where": place, "CPU s": seconds, "GB": gigabytes})
            goals.append(Goal(f"CPU seconds, preprocess {name}, {place}", seconds, CPU_SECONDS))
            goals.append(Goal(f"gigabytes, preprocess {name}, {place}", gigabytes, GIGABYTES))
    report(rows, goals, given.json)


if __name__ == "__main__":
    main()
