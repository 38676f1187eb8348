"""The help of a command, on one screen: its own options, and of those of a recipe the ones that most users need.

The options of every command stand in ``options.json``, which ``python -m tests.options`` writes from the parsers: the
help and completion need neither the parsers nor their classes, whose imports take seconds.
"""

import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightning_vfl.commands.table import COMMANDS

_COLUMN = 34
_WIDEST = 110


@dataclass(frozen=True)
class Told:
    """An option in the help.

    Args:
        option: as it is written, with the name of its value.
        about: what it does.
    """

    option: str
    about: str


GROUPS: dict[str, tuple[Told, ...]] = {
    "recipes": (
        Told("--config RECIPE", "a file, or a packaged recipe (lightning-vfl list); may be repeated: a later one wins"),
        Told("--print_config", "print the settings as one recipe, and exit"),
        Told("--seed_everything N", "seed of networks, batches, faults and noise of the simulation (default: 0)"),
    ),
    "model (all settings of a protocol: --model.help SplitVFL)": (
        Told(
            "--model CLASS",
            "the protocol: SplitVFL, AsyncVFL, DecoupledVFL, CascadeVFL, LaserVFL, ..., or a class of your own",
        ),
        Told("--model.aggregator CLASS", "joins the embeddings: Concat, Sum, Mean, Max, MaskedSum, LagrangeCoded, ..."),
        Told(
            "--model.bottom CLASS",
            "network of a party: MLP, ConvNet, ResNet18, ...; its settings: --model.bottom.hidden",
        ),
        Told("--model.top CLASS", "network of the server"),
        Told("--model.width N", "width of the embeddings"),
        Told("--optimizer CLASS", "optimiser of torch; its settings: --optimizer.lr 0.01"),
        Told("--lr_scheduler CLASS", "learning-rate schedule of torch; its settings: --lr_scheduler.step_size 5"),
    ),
    "data (all settings of a data set: --data.help Digits)": (
        Told("--data CLASS", "the data set: Digits, CSVTables, ..., or a class of your own"),
        Told("--data.data_dir DIR", "folder of the published files; default: $LIGHTNING_VFL_DATA/NAME"),
        Told("--data.partitioner CLASS", "divides the columns between the parties; --data.partitioner.parties N"),
        Told("--data.batch_size N", "records of a batch"),
    ),
    "trainer (all options of Lightning's trainer: --help.all)": (
        Told("--trainer.max_epochs N", "number of passes over the training records (default: 20)"),
        Told("--trainer.accelerator NAME", "cpu, gpu or auto (default: auto)"),
        Told("--trainer.devices N", "number of processes or GPUs (default: auto)"),
        Told("--trainer.precision KIND", "32-true, bf16-mixed, ..."),
        Told(
            "--trainer.default_root_dir DIR",
            "folder of logs and checkpoints; every run has a folder of its own in it (default: runs)",
        ),
        Told("--trainer.logger CLASS", "lightning.pytorch.loggers.WandbLogger, ...; false: none"),
        Told("--trainer.callbacks+ CLASS", "add a callback: EarlyStopping, PrivacyBudget, ..."),
        Told("--trainer.fast_dev_run true", "try one batch of each stage, and write nothing (default: False)"),
    ),
    "this run": (
        Told(
            "--ckpt_path PATH",
            "a checkpoint: its file, the folder of its run, or best or last of the newest fit; with its recipe",
        ),
        Told("--predictions.path FILE", "file that predict writes, .csv or .parquet (default: predictions.csv)"),
        Told("--summary full", "print traffic, virtual time and every ε too"),
        Told("--summary.enabled false", "print no summary (default: True)"),
    ),
}
OPTIONS = Path(__file__).with_name("options.json")


@cache
def known_options() -> Any:
    """What ``options.json`` says: by command, its text and its options; and the options of a recipe."""
    return json.loads(OPTIONS.read_text(encoding="utf-8"))


def short_help(command: str) -> str:
    """The help: the options of the command itself, and those of recipes that are used most."""
    known = known_options()["commands"][command]
    recipe = bool(COMMANDS[command].method)
    given = "--config data/NAME --config protocol/NAME [options]" if recipe else known["usage"]
    lines = [f"usage: lightning-vfl {command} {given}", "", *_wrapped(known["about"], "")]
    own = tuple(Told(option, about) for option, about in known["own"])
    groups = {**({"this command": own} if own else {}), **(GROUPS if recipe else {})}
    for group, options in groups.items():
        lines += ["", f"{group}:"]
        for told in options:
            lines += _row(told)
    more = ["", "--help.all lists every option; each of them can also be set in a recipe."] if recipe else []
    return "\n".join([*lines, *more, ""])


def _row(told: Told) -> Iterator[str]:
    option = f"  {told.option}"
    if len(option) >= _COLUMN:
        yield option
        option = ""
    first, *others = _wrapped(told.about, " " * _COLUMN)
    yield f"{option:{_COLUMN}}{first.strip()}"
    yield from others


def _wrapped(text: str, indent: str) -> list[str]:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return textwrap.wrap(text, max(width, _COLUMN + 20), initial_indent=indent, subsequent_indent=indent) or [""]
