"""What an alignment costs: CPU seconds a party, the time and memory of a large one, bytes an id and hop.

Every party is a process of its own, one after the other, with all cores; its CPU seconds and its largest memory include
Python and reading the table. Ids are whole numbers in an order of their own, of which half are in common. Two parties
are measured with one core too: a step has one thread for each core that it may use.

    python -m benchmarks.align [--json FILE] [--records N] [--large N] [--openmined PYTHON]

``--openmined`` is a Python with the package openmined-psi, which is measured beside (it needs a protobuf of its own).
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.harness import Goal, arguments, report

RECORDS, LARGE = 100_000, 1_000_000
CPU_SECONDS = {2: 15.0, 4: 28.0}  # a party, for a hundred thousand ids
LARGE_SECONDS, LARGE_GIBIBYTES = 150.0, 1.0  # a party, for a million ids with two parties
FASTER = 1.5  # times, with two cores instead of one: two are used
OPENMINED_SECONDS = 31.9  # both parties together, as measured before on another machine

_OPENMINED = """
import sys, time
import private_set_intersection.python as psi
n = int(sys.argv[1])
one, other = ([str(i) for i in range(s, s + n)] for s in (0, n // 2))
began = time.process_time()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-9, n, other, psi.DataStructure.RAW)
found = client.GetIntersection(setup, server.ProcessRequest(client.CreateRequest(one)))
print(time.process_time() - began, len(found))
"""


def write(folder: Path, parties: int, records: int) -> dict[str, Path]:
    """Party -> its table; half of the ids are in common."""
    draw, files = np.random.Generator(np.random.PCG64(0)), {}
    for m in range(parties):
        own = np.arange(records // 2, records) + (m + 1) * records
        ids = draw.permutation(np.concatenate([np.arange(records // 2), own]))
        files[f"party{m}"] = folder / f"party{m}.csv"
        pd.DataFrame({"id": ids, "x": ids % 7}).to_csv(files[f"party{m}"], index=False)
    return files


class Party:
    """The processes of one party, whose cost is added up.

    Args:
        cores: how many they may use; None: all.
    """

    def __init__(self, cores: int | None = None) -> None:
        self.cpu = self.wall = self.gibibytes = 0.0
        self.cores = sorted(os.sched_getaffinity(0))[:cores]

    def run(self, *words: str) -> None:
        """Run a step in a process."""
        code = f"import os, resource, sys; os.sched_setaffinity(0, {self.cores}); "
        code += "from lightning_vfl.commands.light import answer; status = answer(sys.argv[1:]); "
        code += "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_maxrss); sys.exit(status)"
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
        done = subprocess.run([sys.executable, "-c", code, "align", *words], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.wall += perf_counter() - began
        self.cpu += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.gibibytes = max(self.gibibytes, int(done.stdout.split()[-1]) / 2**20)


def measure(folder: Path, parties: int, records: int, cores: int | None = None) -> dict[str, Any]:
    """The cost of the most expensive party, and of the comparer."""
    files, out = write(folder, parties, records), folder / f"out of {parties} with {records} on {cores}"
    roles = {name: Party(cores) for name in (*files, "comparer")}
    for name, path in files.items():
        words = ("--party", name, "--parties", ",".join(files), "--table", str(path), "--out", str(out))
        roles[name].run("mask", *words)
    for _ in range(parties - 1):
        for name in files:
            roles[name].run("pass", "--party", name, "--in", str(out))
    roles["comparer"].run("match", "--in", str(out))
    for name in files:
        roles[name].run("take", "--party", name, "--in", str(out), "--out", str(folder / f"{name}.parquet"))
    comparer = roles.pop("comparer")
    lists = [path.stat().st_size for path in out.glob("*.points")]
    if len(lists) != parties**2:
        raise RuntimeError(f"{len(lists)} lists for {parties} parties")
    common = len(pd.read_parquet(folder / "party0.parquet"))
    if common != records // 2:
        raise RuntimeError(f"{common} records in common, not {records // 2}")
    return {
        "parties": parties,
        "ids": records,
        "cores": len(comparer.cores),
        "CPU s a party": max(one.cpu for one in roles.values()),
        "time s a party": max(one.wall for one in roles.values()),
        "GiB a party": max(one.gibibytes for one in roles.values()),
        "CPU s comparer": comparer.cpu,
        "GiB comparer": comparer.gibibytes,
        "bytes an id and hop": max(lists) / records,
    }


def openmined(python: str, records: int) -> float:
    """CPU seconds of openmined-psi, both parties together."""
    done = subprocess.run(
        [python, "-c", _OPENMINED, str(records)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    seconds, found = done.stdout.split()
    if int(found) != records - records // 2:
        raise RuntimeError(f"openmined-psi finds {found} records in common, not {records - records // 2}")
    return float(seconds)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--large", type=int, default=LARGE, help="0: leave it out")
    parser.add_argument("--openmined", help="a Python with openmined-psi")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    with tempfile.TemporaryDirectory() as folder:
        for parties, limit in CPU_SECONDS.items():
            row = measure(Path(folder), parties, given.records)
            rows.append(row)
            goals.append(Goal(f"CPU seconds a party, {parties} parties", row["CPU s a party"], limit))
            goals.append(Goal(f"bytes an id and hop, {parties} parties", row["bytes an id and hop"], 32.1))
        if len(os.sched_getaffinity(0)) > 1:
            rows.append(measure(Path(folder), 2, given.records, cores=1))
            faster = rows[-1]["time s a party"] / rows[0]["time s a party"]
            goals.append(Goal("time with one core / with all, 2 parties", faster, FASTER, better="higher"))
        if given.large:
            row = measure(Path(folder), 2, given.large)
            rows.append(row)
            goals.append(Goal("seconds a party, a million ids", row["time s a party"], LARGE_SECONDS))
            goals.append(Goal("GiB a party, a million ids", row["GiB a party"], LARGE_GIBIBYTES))
    if given.openmined:
        both = openmined(given.openmined, given.records)
        rows.append({"parties": 2, "ids": given.records, "CPU s a party": both / 2, "what": "openmined-psi, a half"})
        goals.append(Goal("CPU seconds of two parties / of openmined-psi", 2 * rows[0]["CPU s a party"] / both, 1.0))
    report(rows, goals, given.json)


if __name__ == "__main__":
    main()
