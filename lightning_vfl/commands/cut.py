"""``lightning-vfl cut``: a data set of one file as a table for each party, as hosts of their own hold them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.datamodules import Records, VerticalDataModule
from lightning_vfl.datamodules.records.records import DIVIDED
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.predictions import write_table

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

RECIPE = "csv_tables.yaml"
JOB = "lightning_vfl.federation.nvflare_job"  # its classes are named, because NVFlare may not be installed here

_ABOUT = (
    "Write the columns of each party of a data set as a table, the labels and the split of each record as another one, "
    "and a recipe of CSVTables that reads them: lightning-vfl cut --config data/digits --out parts. Values are written "
    "as training sees them, scaled, and images as flat columns, so that a fit of the recipe has the same tensors."
)


class CutCommand(Command):
    """Set up the data, and write the tables and their recipe."""

    about = _ABOUT

    def parser(self, cli: CLI) -> LightningArgumentParser:
        parser = cli.data_parser()
        parser.description = self.about
        self.add_options(parser)
        return parser

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("--out", type=str, required=True, help="folder of the tables and the recipe")
        parser.add_argument("--format", type=Literal["parquet", "csv"], default="parquet", help="of the tables")
        parser.add_argument("--nvflare", type=str, default=None, metavar="FOLDER", help="write a job of NVFlare too")

    def run(self, cli: CLI) -> int:
        data = cli._subcommand_parsers[self.name].instantiate_classes(cli.given)["data"]
        job = None if cli.given.nvflare is None else Path(cli.given.nvflare)
        if job is not None and (job / "meta.json").exists():
            raise ConfigurationError(f"{job / 'meta.json'} exists already; give another folder to --nvflare")
        for line in cut(data, Path(cli.given.out), cli.given.format):
            print(line)
        if job is not None:
            print(_write_job(_names(data), job))
        return 0


def cut(data: VerticalDataModule, out: Path, ending: str = "parquet") -> list[str]:
    """Write one table for each party, one with labels and splits, and a recipe.

    Args:
        data: the data set, before ``setup``.
        out: the folder.
        ending: ``parquet`` or ``csv``.

    Returns:
        What was written, and what differs from the data set.

    Guarantee: a fit of the recipe has the same features, labels and batches, bit for bit; features are flat.

    Raises:
        ConfigurationError: for data that are tables already, groups, records that some party does not hold, and a
            folder with such a recipe.
    """
    if data.own_files:
        raise ConfigurationError("these data are a table for each party already; give their recipe to the federation")
    if (out / RECIPE).exists():
        raise ConfigurationError(f"{out / RECIPE} exists already; give another --out, or remove it")
    splits = _set_up(data)
    names = _names(data)
    ids, own_ids = _ids(splits)
    columns = _columns(data)
    id_column = "id" if not any("id" in own for own in columns) else "cut_record_id"
    for m, name in enumerate(names):
        values = [records.features_of(m, torch.arange(len(records))).flatten(1) for records in splits.values()]
        write_table(_table(id_column, ids, columns[m], torch.cat(values).numpy()), out / f"{name}.{ending}")
    labels = torch.cat([records.labels for records in splits.values() if records.labels is not None])
    targets = list(data.targets) or ["label"]
    table = _table(id_column, ids, targets, labels.reshape(len(ids), -1).numpy())
    table["split"] = np.repeat([*splits], [len(records) for records in splits.values()])
    write_table(table, out / f"labels.{ending}")
    settings = {
        "tables": {name: f"{name}.{ending}" for name in [*names, "labels"]},
        "label_party": "labels",
        "label_column": targets if data.targets else "label",
        "id_column": id_column,
        "data_dir": str(out),
        "task": "regression" if labels.is_floating_point() else "classification",
        "split": {"class_path": "GivenSplit", "init_args": {"column": "split"}},
        "normaliser": {"class_path": "Unchanged"},
        "batch_size": data.batch_size,
        "seed": data.seed,
        "drop_last": data.drop_last,
    }
    notes = _notes(data, splits, own_ids, labels)
    text = "".join(f"# {line}\n" for line in (f"The parts of {type(data).__name__}, cut by lightning-vfl cut.", *notes))
    recipe = {"data": {"class_path": "CSVTables", "init_args": settings}}
    (out / RECIPE).write_text(text + yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return [f"{out}: tables of {', '.join(names)} and labels, {len(ids):,} records", *notes, f"--config {out / RECIPE}"]


def _write_job(names: Sequence[str], folder: Path) -> str:
    """Write a job of NVFlare that runs a federation of these parties; a line about it."""
    deployed = {"app": ["server", *names]}
    meta = {"name": folder.name, "resource_spec": {}, "deploy_map": deployed, "min_clients": len(names)}
    files = {"federation": "federation.yaml", "recipe": "recipe.yaml", "do": "fit"}
    server = {"id": "federation", "path": f"{JOB}.Federation", "args": files}
    party = {"path": f"{JOB}.Party", "args": {**files, "restarts": 3}}
    contents = {
        "meta.json": {**meta, "mandatory_clients": list(names)},
        "app/config/config_fed_server.json": {"format_version": 2, "workflows": [server]},
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["take_part"], "executor": party}],
        },
    }
    (folder / "app" / "config").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return f"{folder}: job of NVFlare for the sites {', '.join(names)}"


def _names(data: VerticalDataModule) -> list[str]:
    """The names of the parties' tables."""
    return [name if name.isidentifier() else f"party{name}" for name in data.party_names]


def _set_up(data: VerticalDataModule) -> dict[str, Records]:
    """The records of all splits that the data have."""
    for stage in ("fit", "test"):
        data.setup(stage)
    splits: dict[str, Records] = {name: data._records[name] for name in DIVIDED if name in data._records}
    for records in splits.values():
        if records.present is not None:
            raise ConfigurationError(
                "records that some party does not hold (groups, LimitedOverlap) cannot be cut into tables yet; use a "
                "partitioner that gives every party all records"
            )
    return splits


def _ids(splits: Mapping[str, Records]) -> "tuple[NDArray[np.generic], bool]":
    """The ids of all records, and whether they are the data's own; these must give the same order in every split."""
    given = [np.asarray(records.ids) for records in splits.values()]
    own = np.concatenate(given)
    ascending = all((ids[1:] > ids[:-1]).all() for ids in given)
    if own.dtype.kind in "iu" and ascending and len(np.unique(own)) == len(own):
        return own, True
    return np.arange(len(own)), False


def _columns(data: VerticalDataModule) -> list[list[str]]:
    """The names of each party's columns."""
    layout = data.layout
    return [[*layout.names_of(part)] or [f"x{i}" for i in part.positions.tolist()] for part in data.parts]


def _table(id_column: str, ids: "NDArray[np.generic]", names: list[str], values: "NDArray[Any]") -> "pd.DataFrame":
    import pandas as pd  # 0.5 s, where it is used

    table = pd.DataFrame(values, columns=names)
    table.insert(0, id_column, ids)
    return table


def _notes(data: VerticalDataModule, splits: Mapping[str, Records], own_ids: bool, labels: torch.Tensor) -> list[str]:
    """What differs from the data set, one line each."""
    notes = ["all records are predicted, not those of the test alone; labels are numbers of classes, not names"]
    if any(len(shape) > 1 for shape in data.party_shapes):
        shapes = " ".join(map(str, dict.fromkeys(data.party_shapes)))
        notes.append(f"features of shape {shapes} are flat columns, which networks for images do not take")
    if data.normaliser.fitted:
        notes.append(
            f"values are scaled by {type(data.normaliser).__name__}, fitted to the training records"
            + ("" if data.normaliser.public else "; a privacy account does not see that the scaling is not public")
        )
    if not own_ids:
        notes.append("ids are new numbers, because the data's own are not ascending numbers that occur once")
    classes = data.num_classes
    if classes is not None and (found := len(np.unique(labels.numpy()))) < classes:
        notes.append(f"records of {found} of the {classes} classes are there, so the tables have {found} classes")
    return notes
