"""``lightning-vfl contribution``: what each party, and each column of a party, adds to the metrics."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from jsonargparse.typing import NonNegativeInt, PositiveInt

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.stand_ins import add_stand_in, stand_in_named
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from lightning_vfl.absence.contribution import Contributions

_ABOUT = (
    "Compute the Shapley value of each party from the metrics of all subsets of the parties: by leaving parties out of "
    "the test of a trained model, or by training anew without them. With --columns also what each column of a party "
    "adds. It prints a table and writes contribution.parquet and contribution.svg."
)
_OF_RECIPE = ("model", "data", "trainer")


class ContributionCommand(Command):
    """Measure the subsets of the parties, and share the metric between them."""

    about = _ABOUT

    def add_options(self, parser: "ArgumentParser") -> None:
        add = parser.add_argument
        add(
            "--by",
            type=Literal["absence", "retraining"],
            default="absence",
            help="absence: parties are absent at the test; retraining: a model is trained for each subset",
        )
        add("--columns", type=str, nargs="+", default=[], metavar="PARTY", help="permute the columns of these parties")
        add(
            "--resamples",
            type=NonNegativeInt,
            default=0,
            help="draws of the test records for 95 %% intervals; 0: no intervals",
        )
        add("--seeds", type=list[int], default=[0], help="of the trainings of --by retraining")
        add("--jobs", type=PositiveInt, default=1, help="trainings at a time of --by retraining")
        add_stand_in(parser)

    def run(self, cli: CLI) -> int:
        if cli.given.by == "retraining":
            return _retrain(cli)
        if cli.given.ckpt_path is None:
            raise ConfigurationError("contribution needs a trained model; give --ckpt_path best, or --by retraining")
        stand_in = stand_in_named(cli.given.stand_in)
        cli.build()
        from lightning_vfl.absence import contribution
        from lightning_vfl.absence.contribution_report import write_columns, write_report
        from lightning_vfl.absence.measure import refuse_unable
        from lightning_vfl.commands.before_test import BeforeTest
        from lightning_vfl.datamodules.party_number import party_number
        from lightning_vfl.protocols.run_folder import run_folder

        model, data, trainer = cli.model, cli.datamodule, cli.trainer
        trainer.callbacks.append(BeforeTest(lambda: refuse_unable(model, stand_in)))
        cli.take_folder()
        trainer.test(model, datamodule=data, ckpt_path=cli.given.ckpt_path, verbose=False)
        folder = Path(run_folder(trainer))
        data.setup("fit")
        tables = {}
        for name in dict.fromkeys(cli.given.columns):
            party = party_number(name, data.party_names)
            columns = _columns(data, party)
            tables[party] = contribution.importance(model, data.test_dataloader(), party, columns)
        found = contribution.by_absence(
            model, data.test_dataloader(), data.train_dataloader(), stand_in, cli.given.resamples
        )
        files = write_report(found, folder, data.party_names)
        files += [write_columns(table, folder, data.party_names[party]) for party, table in tables.items()]
        print_files(files)
        return 0


def _columns(data: Any, party: int) -> list[str]:
    """The names of a party's columns, or their numbers."""
    if party >= len(data.parts):
        raise ConfigurationError(f"--columns names party {party}, but the last is {len(data.parts) - 1}; correct it")
    names, positions = data.layout.columns, data.parts[party].positions.tolist()
    return [names[position] if names else str(position) for position in positions]


@dataclass(frozen=True)
class Coalition:
    """A subset of the parties that trains a model of its own.

    Args:
        players: those that may be absent and are there.
        recipe: the settings of its training.
    """

    players: tuple[int, ...]
    recipe: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its runs: the numbers of the parties."""
        return "+".join(map(str, self.players)) or "alone"


def coalition(recipe: dict[str, Any], there: tuple[int, ...], parties: int, active: int | None) -> dict[str, Any]:
    """The recipe in which some of the parties are there, and train as if the others did not exist."""
    reduced: dict[str, Any] = json.loads(json.dumps({key: recipe[key] for key in _OF_RECIPE}))
    data = reduced["data"]["init_args"]
    kept = {"partitioner": data.get("partitioner"), "there": [party in there for party in range(parties)]}
    data["partitioner"] = {"class_path": "lightning_vfl.datamodules.OnlyParties", "init_args": kept}
    if active is not None:
        reduced["model"]["init_args"]["active"] = there.index(active)
    return reduced


def _refuse_numbered(cli: CLI) -> None:
    """Refuse settings that name parties by numbers, which are others if some parties do not exist.

    Raises:
        ConfigurationError: names the setting.
    """
    from lightning_vfl.callbacks import FaultInjector
    from lightning_vfl.protocols import EnsembleVFL, LaserVFL, SplitVFL

    model = cli.model
    if type(model) not in (SplitVFL, LaserVFL, EnsembleVFL):
        raise ConfigurationError(
            "--by retraining works with SplitVFL, LaserVFL and EnsembleVFL; "
            f"for {type(model).__name__} use --by absence"
        )
    settings = cli.config_dump["model"]["init_args"]
    numbered = [name for name in ("bottom_of", "subsets.init_args.keep") if _setting(settings, name)]
    numbered += [type(one).__name__ for one in cli.trainer.callbacks if isinstance(one, FaultInjector)]
    if numbered:
        raise ConfigurationError(
            f"--by retraining numbers the parties anew, so {numbered[0]} would be about other parties; leave it out"
        )


def _setting(settings: Any, name: str) -> Any:
    """A setting by its dotted name; None if there is none."""
    for key in name.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def _retrain(cli: CLI) -> int:
    """Train each coalition as a run of a study, which an interruption does not lose."""
    given = cli.given
    if given.columns or given.resamples:
        option = "--columns" if given.columns else "--resamples"
        raise UsageError(f"{option} needs one trained model; leave it out, or use --by absence")
    given["ckpt_path"] = None
    cli.build()
    _refuse_numbered(cli)
    from lightning_vfl.absence.contribution import players_of
    from lightning_vfl.absence.contribution_report import write_report
    from lightning_vfl.absence.shapley import coalitions_of, orders_of

    model, data = cli.model, cli.datamodule
    data.setup("fit")
    data.setup("test")
    if data.records("train").present is not None:
        raise ConfigurationError("--by retraining needs records that all parties hold; use --by absence")
    model.build_for(data)
    players = players_of(model.roster.parties, model.active)
    orders = orders_of(players, model.seed)
    coalitions = []
    for subset in coalitions_of(players, orders):
        there = tuple(sorted((*subset, *([] if model.active is None else [model.active]))))
        if there:
            recipe = coalition(cli.config_dump, there, model.roster.parties, model.active)
            coalitions.append(Coalition(subset, recipe))
    out = Path(given.trainer.default_root_dir or "runs") / "contribution"
    found = _trained(coalitions, cli, players, orders, out.resolve())
    print_files(write_report(found, out.resolve(), data.party_names))
    return 0


def _trained(
    coalitions: list[Coalition], cli: CLI, players: tuple[int, ...], orders: Any, out: Path
) -> "Contributions":
    """The Shapley values of trainings, each metric the mean over the seeds."""
    import os

    import numpy as np
    from filelock import FileLock
    from rich.console import Console

    from lightning_vfl.absence.contribution import contributions, without_features
    from lightning_vfl.commands import program
    from lightning_vfl.study import table as tables
    from lightning_vfl.study.grid import grid
    from lightning_vfl.study.runner import Means, carry_out
    from lightning_vfl.study.spec import Entry, Study

    recipes = out / "recipes"
    recipes.mkdir(parents=True, exist_ok=True)
    for one in coalitions:
        (recipes / f"{one.name}.yaml").write_text(yaml.safe_dump(one.recipe, sort_keys=False), encoding="utf-8")
    entries = {one.name: Entry((str(recipes / f"{one.name}.yaml"),)) for one in coalitions}
    study = Study(entries, tuple(cli.given.seeds), "contribution")
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
    values = {one.players: np.array([means_of[one.name, name] for name in names]) for one in coalitions}
    if () not in values:
        values[()] = without_features(cli.model, cli.datamodule)
    return contributions(values, players, orders, names)
