"""Trainings of variants of one recipe, as runs of a study: what ``--by retraining`` compares."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse.typing import PositiveInt

from lightning_vfl.commands.command import CLI
from lightning_vfl.commands.stand_ins import stand_in_named
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from jsonargparse import ArgumentParser
    from numpy.typing import NDArray

    from lightning_vfl.absence import AbsentStandIn

_OF_RECIPE = ("model", "data", "trainer")


def add_retraining(parser: "ArgumentParser") -> None:
    """Add the options of ``--by retraining``."""
    parser.add_argument("--seeds", type=list[int], default=[0], help="of the trainings of --by retraining")
    parser.add_argument("--jobs", type=PositiveInt, default=1, help="trainings at a time of --by retraining")


def copied(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the parts of a recipe that a training has, which may be changed."""
    copy: dict[str, Any] = json.loads(json.dumps({key: recipe[key] for key in _OF_RECIPE}))
    return copy


def with_parties(recipe: Mapping[str, Any], there: Sequence[int], parties: int, active: int | None) -> dict[str, Any]:
    """The recipe in which some of the parties are there, and train as if the others did not exist."""
    reduced = copied(recipe)
    data = reduced["data"]["init_args"]
    kept = {"partitioner": data.get("partitioner"), "there": [party in there for party in range(parties)]}
    data["partitioner"] = {"class_path": "lightning_vfl.datamodules.OnlyParties", "init_args": kept}
    if active is not None:
        reduced["model"]["init_args"]["active"] = list(there).index(active)
    return reduced


def refuse_numbered(cli: CLI, instead: str) -> None:
    """Refuse settings that name parties by numbers, which are others if some parties do not exist.

    Args:
        cli: built, with data that are set up.
        instead: what the user can do instead.

    Raises:
        ConfigurationError: names the setting.
    """
    from lightning_vfl.callbacks import FaultInjector
    from lightning_vfl.protocols import EnsembleVFL, LaserVFL, SplitVFL

    model = cli.model
    if type(model) not in (SplitVFL, LaserVFL, EnsembleVFL):
        raise ConfigurationError(
            f"--by retraining works with SplitVFL, LaserVFL and EnsembleVFL; for {type(model).__name__} use {instead}"
        )
    settings = cli.config_dump["model"]["init_args"]
    numbered = [name for name in ("bottom_of", "optimizer_of", "subsets.init_args.keep") if _setting(settings, name)]
    numbered += [type(one).__name__ for one in cli.trainer.callbacks if isinstance(one, FaultInjector)]
    if numbered:
        raise ConfigurationError(
            f"--by retraining numbers the parties anew, so {numbered[0]} would be about other parties; leave it out"
        )
    if cli.datamodule.records("train").present is not None:
        raise ConfigurationError(f"--by retraining needs records that all parties hold; use {instead}")


def tested(cli: CLI) -> "tuple[AbsentStandIn, Path]":
    """Test the trained model of a recipe that is to do without parties; returns the stand-in and the run's folder.

    Raises:
        ConfigurationError: for a model that needs all parties.
    """
    from lightning_vfl.absence.measure import refuse_unable
    from lightning_vfl.commands.before_test import BeforeTest
    from lightning_vfl.protocols.run_folder import run_folder

    stand_in = stand_in_named(cli.given.stand_in)
    cli.build()
    model = cli.model
    data = cli.datamodule
    trainer = cli.trainer
    trainer.callbacks.append(BeforeTest(lambda: refuse_unable(model, stand_in)))
    cli.take_folder()
    trainer.test(model, datamodule=data, ckpt_path=cli.given.ckpt_path, verbose=False)
    data.setup("fit")
    return stand_in, Path(run_folder(trainer))


def build_anew(cli: CLI) -> None:
    """Build the recipe for trainings from the start, with all records; a model that was trained is left out."""
    cli.given["ckpt_path"] = None
    cli.build()
    cli.datamodule.setup("fit")
    cli.datamodule.setup("test")


def chosen_party(data: Any, name: str, option: str) -> int:
    """The number of a party that an option names, of data that are set up.

    Raises:
        ConfigurationError: if there is no such party.
    """
    from lightning_vfl.datamodules.party_number import party_number

    party = party_number(name, data.party_names)
    if party >= len(data.parts):
        raise ConfigurationError(f"{option} names party {party}, but the last is {len(data.parts) - 1}; correct it")
    return party


def metrics_of(cli: CLI, recipes: Mapping[str, Mapping[str, Any]], out: Path) -> "dict[str, NDArray[np.float64]]":
    """Train and test each recipe as a run of a study below ``out``; runs that are finished are not repeated.

    Args:
        cli: built; its model has the metrics.
        recipes: by the name of their runs.
        out: the folder of the study.

    Returns:
        (metrics,) for each name, the means over the seeds.

    Raises:
        ConfigurationError: for trainings that fail.
    """
    import numpy as np
    from filelock import FileLock
    from rich.console import Console

    from lightning_vfl.commands import program
    from lightning_vfl.study import table as tables
    from lightning_vfl.study.grid import grid
    from lightning_vfl.study.runner import Means, carry_out
    from lightning_vfl.study.spec import Entry, Study

    folder = out / "recipes"
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, recipe in recipes.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(recipe), sort_keys=False), encoding="utf-8")
        entries[name] = Entry((str(path),))
    study = Study(entries, tuple(cli.given.seeds), out.name)
    runs = list(grid(study, out))
    with FileLock(out / ".lock"), os.fdopen(os.dup(2), "w") as stream:
        todo = [run for run in runs if not tables.is_finished(run)]
        if todo:
            means = Means(cli.given.jobs, 1)
            carry_out(todo, program.run_or_exit, means, str(out / ".lock"), Console(file=stream))
    if failed := [run for run in runs if not tables.is_finished(run)]:
        raise ConfigurationError(f"{len(failed)} trainings failed, such as {failed[0].label}; see {failed[0].log}")
    table = tables.collect(runs, study)
    names = [str(name) for name in cli.model.test.metrics]
    means_of = table[table["metric"].isin(names)].groupby(["recipe", "metric"])["value"].mean()
    return {name: np.array([means_of[name, metric] for metric in names]) for name in recipes}


def _setting(settings: Any, name: str) -> Any:
    """A setting by its dotted name; None if there is none."""
    for key in name.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings
