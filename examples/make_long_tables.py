"""Make up long tables of a bank and of a telephone company: Parquet files with the same customers in the same order.

``python examples/make_long_tables.py FOLDER [RECORDS]`` writes ``bank.parquet`` and ``telco.parquet``, a hundred
thousand customers if no number is given. Row groups are written one after the other, so memory does not grow.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 16_384  # rows of a row group


def write(folder: Path, records: int) -> None:
    """Write the two files."""
    folder.mkdir(parents=True, exist_ok=True)
    writers: dict[str, pq.ParquetWriter] = {}
    for start in range(0, records, GROUP):
        rng = np.random.default_rng([7, start])
        rows = min(GROUP, records - start)
        bank, telco = rng.normal(size=(2, 8, rows)).astype(np.float32)
        risk = bank[0] - bank[1] + telco[0] * telco[1] + rng.normal(0, 0.5, rows)
        tables = {
            "bank": {"id": np.arange(start, start + rows), "default": (risk > 0).astype(np.int8)},
            "telco": {"id": np.arange(start, start + rows)},
        }
        for party, numbers in (("bank", bank), ("telco", telco)):
            table = pa.table(tables[party] | {f"{party}{i}": column for i, column in enumerate(numbers)})
            if party not in writers:
                writers[party] = pq.ParquetWriter(folder / f"{party}.parquet", table.schema)
            writers[party].write_table(table)
    for writer in writers.values():
        writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "long"), int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
