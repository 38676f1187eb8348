"""The tidy table: one line a run, seed, step and metric."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study.grid import Run
from lightning_vfl.study.spec import Study
from lightning_vfl.trained.predictions import write_table
from lightning_vfl.whole_files import whole_path

IDENTITY = ("run", "recipe", "override", "seed")
MEASURES = ("step", "passes", "virtual_seconds", "bytes", "up_bytes", "down_bytes", "peer_bytes")
COLUMNS = (*IDENTITY, *MEASURES, "metric", "value")
_FINGERPRINT = b"lightning_vfl.fingerprint"


def write_result(rows: Sequence[Mapping[str, object]], run: Run) -> None:
    """Write the result of one run, with its fingerprint in the file; a half-written file never has the final name."""
    if not rows:
        raise ConfigurationError("the run has no measurements; switch validation on, or set test: true in the study")
    frame = pd.DataFrame(rows).assign(run=run.name, recipe=run.recipe, override=run.override, seed=run.seed)
    table = pa.Table.from_pandas(frame[list(COLUMNS)], preserve_index=False)
    with whole_path(run.result) as whole:
        pq.write_table(table.replace_schema_metadata({_FINGERPRINT: run.fingerprint.encode()}), whole)


def is_finished(run: Run) -> bool | None:
    """Whether this run has a result; None: the result is of other recipes, settings or of another version."""
    if not run.result.is_file():
        return False
    try:
        metadata = pq.read_schema(run.result).metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return True if metadata.get(_FINGERPRINT) == run.fingerprint.encode() else None


def collect(runs: Iterable[Run], study: Study) -> pd.DataFrame:
    """The results of finished runs in one table, in the order of the runs; see ``chosen``."""
    # read file by file, since pyarrow would take the folders' names for partition keys
    tables = [pq.ParquetFile(run.result).read().replace_schema_metadata(None) for run in runs]
    frame = pa.concat_tables(tables).to_pandas() if tables else pd.DataFrame(columns=list(COLUMNS))
    return chosen(frame, study)


def chosen(frame: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The metrics that the study names, or all metrics if it names none that was measured."""
    named = {*study.metrics, *study.targets, *filter(None, [study.figure.metric])}
    wanted = frame["metric"].isin(named)
    return frame[wanted].reset_index(drop=True) if study.metrics and wanted.any() else frame


def unmeasured(frame: pd.DataFrame, study: Study) -> list[str]:
    """One line for each metric that the study names and no run has measured; empty if nothing was measured at all."""
    measured = sorted(frame["metric"].unique())
    figure = [] if study.figure.metric is None else [study.figure.metric]
    named = {"metrics": study.metrics, "targets": study.targets, "figure.metric": figure}
    return [
        f"{key}: no run has measured {metric}; there are {', '.join(measured)}"
        for key, metrics in named.items()
        for metric in metrics
        if measured and metric not in measured
    ]


def write(frame: pd.DataFrame, folder: Path, name: str) -> None:
    """Write ``name.parquet`` and ``name.csv``; a half-written file never has the final name."""
    for ending in ("parquet", "csv"):
        write_table(frame, folder / f"{name}.{ending}")


def read(folder: Path) -> pd.DataFrame:
    """The table of a folder of results.

    Raises:
        ConfigurationError: if there is none.
    """
    try:
        return pd.read_parquet(folder / "table.parquet")
    except (OSError, pa.ArrowException):
        raise ConfigurationError(
            f"{folder} has no table.parquet of a study; give the folder that lightning-vfl study has written"
        ) from None
