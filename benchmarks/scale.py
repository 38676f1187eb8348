"""Memory and time of training as records, parties and batches grow: long tables that are read in blocks.

The files are made up: as many parties as a row says, 32 columns each, float32 numbers of 256 different values, which
Parquet stores in a byte each. Every measurement is a process of its own that prepares the records, trains ``SplitVFL``
with ``Mean`` and MLP bottoms for some steps, and then reads batches of another epoch alone, from files that the system
has been told to drop from its cache.
``MB, anonymous`` is the largest memory of the process without mapped files, sampled every 20 ms, with Python and all
imports (``MB, imports``); ``MB, resident`` is the largest of all (VmHWM), with libraries and mapped pages.

    python -m benchmarks.scale [--json FILE] [--folder FOLDER] [--records N ...] [--parties M ...] [--batch_sizes B ...]

The largest row, of 15 GB on the disk:

    python -m benchmarks.scale --records 100000000 --of_parties 1 --parties --batch_sizes
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from shutil import disk_usage, rmtree
from statistics import median
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Goal, arguments, report

COLUMNS, PARTIES, BATCH = 32, 4, 1024
RECORDS = (100_000, 1_000_000, 10_000_000)
MORE_PARTIES, OF_PARTIES = (4, 16, 64, 256), 100_000
BATCH_SIZES, OF_BATCHES = (64, 1024, 16_384), 1_000_000
LIMIT_MB = 2048 * 1.048576  # 2 GiB
NUMBERS, OVERHEAD = 4_000_000, 500  # steps of a measurement: about 5 s, where a step costs as much as 500 records more
READ = 200_000  # records that are read alone
KEPT_FREE = 15e9  # bytes of the disk that are left to others
FEATURES_OF_GROUP = (
    65_536 * COLUMNS * PARTIES
)  # of all parties in a row group: 34 MB as float32, if it has 4,096 rows or more


def write(folder: Path, records: int, parties: int) -> None:
    """A Parquet file for each party, a row group after the other; the first party has the labels."""
    group = max(4096, min(65_536, FEATURES_OF_GROUP // (COLUMNS * parties)))
    if disk_usage(folder).free - records * parties * COLUMNS * 5 < KEPT_FREE:  # and 4 bytes a feature while it trains
        raise SystemExit(f"{folder} has too little space for {records:,} records of {parties} parties")
    values = ((np.arange(256) - 127.5) / 73.9).astype(np.float32)  # mean 0, deviation 1
    for party in range(parties):
        draw, writer = np.random.Generator(np.random.PCG64([0, party])), None
        for start in range(0, records, group):
            rows = min(group, records - start)
            codes = draw.integers(0, 256, (COLUMNS, rows), dtype=np.uint8)
            columns = {f"x{i}": values[own] for i, own in enumerate(codes)}
            if party == 0:
                columns["y"] = (columns["x0"] + columns["x1"] > 0).astype(np.int8)
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(folder / f"{party}.parquet", table.schema, compression="none")
            writer.write_table(table, row_group_size=group)
        if writer is not None:
            writer.close()


def forget(folder: Path) -> None:
    """Tell the system to drop the files from its cache, so that they are read from the disk."""
    for path in folder.rglob("*.*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- in a process of its own


def memory(*names: str) -> list[float]:
    """Megabytes of these lines of ``/proc/self/status``."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) * 1.024e-3 for name in names]


@contextmanager
def sampled() -> Iterator[list[float]]:
    """The anonymous memory of the process, every 20 ms."""
    found, done = memory("RssAnon"), Event()

    def sample() -> None:
        while not done.wait(0.02):
            found.extend(memory("RssAnon"))

    thread = Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def measure(folder: Path, parties: int, batch: int, steps: int) -> dict[str, float]:
    """Train for some steps, then read blocks."""
    from lightning.pytorch import Callback, Trainer

    from lightning_vfl import SplitVFL
    from lightning_vfl.aggregators import Mean
    from lightning_vfl.commands.allocator import keep_freed_memory
    from lightning_vfl.datamodules import ParquetTables
    from lightning_vfl.networks import MLP

    keep_freed_memory()
    (imports,) = memory("RssAnon")
    ends: list[float] = []

    class Steps(Callback):
        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            ends.append(time.perf_counter())

    def tables(**settings: Any) -> ParquetTables:
        files = {f"p{party}": f"{party}.parquet" for party in range(parties)}
        return ParquetTables(files, "p0", "y", data_dir=folder, batch_size=batch, **settings)

    with sampled() as anonymous, tempfile.TemporaryDirectory(dir=folder) as work:
        data = tables(work_dir=work)
        began = time.perf_counter()
        data.setup("fit")
        ready = time.perf_counter() - began
        module = SplitVFL(Mean(), bottom=lambda shape, width: MLP(shape, width, hidden=[128]), width=64)
        plain: dict[str, Any] = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "accelerator": "cpu",
        }
        trainer = Trainer(
            **plain, callbacks=[Steps()], enable_model_summary=False, max_steps=steps, limit_val_batches=0, devices=1
        )
        trainer.fit(module, datamodule=data)
        records = data.records("train")
        if records.blocks is None:
            raise TypeError("long tables are read in blocks")
        (resident,) = memory("VmHWM")
        disk = sum(path.stat().st_size for path in Path(work).rglob("*.*"))
        forget(Path(work))
        loader = data.train_dataloader()
        loader.set_epoch(1)
        began = time.perf_counter()
        read = sum(len(some.record_ids) for some in islice(loader, max(1, READ // batch)))
        reading = time.perf_counter() - began
    step = median(np.diff(ends[1:])) * 1e3
    per_record = reading / read * 1e6
    return {
        "ready s": ready,
        "MB, disk": disk * 1e-6,
        "step ms": float(step),
        "reading us/record": per_record,
        "step with reading ms": float(step) + per_record * batch / 1e3,
        "MB, imports": imports,
        "MB, anonymous": max(anonymous),
        "MB, resident": resident,
        "MB, a batch": batch * parties * COLUMNS * 4e-6,
    }


# ---- all of them


def measured(folder: Path, parties: int, batch: int, steps: int) -> dict[str, float]:
    """``measure`` in a new process, with the files dropped from the system's cache."""
    forget(folder)
    words = [
        sys.executable,
        "-m",
        "benchmarks.scale",
        "--folder",
        str(folder),
        "--alone",
        f"{parties},{batch},{steps}",
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def files(root: Path, records: int, parties: int) -> Path:
    """The folder of the files of this size; they are written if they are not there."""
    folder = root / f"{records}_records_{parties}_parties"
    if not folder.exists():
        unfinished = root / "unfinished"
        rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished, records, parties)
        unfinished.rename(folder)
    return folder


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="where files are made and kept; default: a temporary folder")
    parser.add_argument("--records", type=int, nargs="*", default=RECORDS)
    parser.add_argument("--of_parties", type=int, default=PARTIES, help="parties in the rows of --records")
    parser.add_argument("--parties", type=int, nargs="*", default=MORE_PARTIES)
    parser.add_argument("--batch_sizes", type=int, nargs="*", default=BATCH_SIZES)
    parser.add_argument("--passes", type=float, default=1.0, help="how many times the usual number of steps")
    parser.add_argument("--alone", help="PARTIES,BATCH,STEPS: one measurement, of files that are there")
    given = parser.parse_args()
    if given.alone:
        parties, batch, steps = map(int, given.alone.split(","))
        print(json.dumps(measure(given.folder, parties, batch, steps)))
        return
    cases = [("records", n, given.of_parties, BATCH) for n in given.records]
    cases += [("parties", OF_PARTIES, m, BATCH) for m in given.parties]
    cases += [("batch size", OF_BATCHES, PARTIES, b) for b in given.batch_sizes]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for what, records, parties, batch in cases:
            folder = files(given.folder or Path(temporary), records, parties)
            steps = max(12, int(given.passes * NUMBERS / (parties * (batch + OVERHEAD))))
            found = measured(folder, parties, batch, steps)
            rows.append({"growing": what, "N": f"{records:,}", "M": str(parties), "B": f"{batch:,}"} | found)
            print(json.dumps(rows[-1]), flush=True)
    goals = [
        Goal(
            f"MB resident beside the batch, N = {row['N']}, M = {row['M']}, B = {row['B']}",
            float(row["MB, resident"]) - float(row["MB, a batch"]),
            LIMIT_MB,
        )
        for row in rows
    ]
    report(rows, goals, given.json, by="growing")


if __name__ == "__main__":
    main()
