"""``lightning-vfl contribution``: what each party, and each column of a party, adds to the metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse.typing import NonNegativeInt

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.retraining import (
    add_retraining,
    build_anew,
    chosen_party,
    metrics_of,
    refuse_numbered,
    tested,
    with_parties,
)
from lightning_vfl.commands.stand_ins import add_stand_in
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_ABOUT = (
    "Compute the Shapley value of each party from the metrics of all subsets of the parties: by leaving parties out of "
    "the test of a trained model, or by training anew without them. With --columns also what each column of a party "
    "adds. It prints a table and writes contribution.parquet and contribution.svg."
)


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
        add_retraining(parser)
        add_stand_in(parser)

    def run(self, cli: CLI) -> int:
        if cli.given.by == "retraining":
            return _retrain(cli)
        if cli.given.ckpt_path is None:
            raise ConfigurationError("contribution needs a trained model; give --ckpt_path best, or --by retraining")
        stand_in, folder = tested(cli)
        from lightning_vfl.absence import contribution
        from lightning_vfl.absence.report import write_columns, write_contributions

        model = cli.model
        data = cli.datamodule
        tables = {}
        for name in dict.fromkeys(cli.given.columns):
            party = chosen_party(data, name, "--columns")
            tables[party] = contribution.importance(model, data.test_dataloader(), party, _columns(data, party))
        found = contribution.by_absence(
            model, data.test_dataloader(), data.train_dataloader(), stand_in, cli.given.resamples
        )
        files = write_contributions(found, folder, data.party_names)
        files += [write_columns(table, folder, data.party_names[party]) for party, table in tables.items()]
        print_files(files)
        return 0


def _columns(data: Any, party: int) -> list[str]:
    """The names of a party's columns, or their numbers."""
    part = data.parts[party]
    return [*data.layout.names_of(part)] or [*map(str, part.positions.tolist())]


def _retrain(cli: CLI) -> int:
    """Train each coalition as a run of a study, which an interruption does not lose."""
    given = cli.given
    if given.columns or given.resamples:
        option = "--columns" if given.columns else "--resamples"
        raise UsageError(f"{option} needs one trained model; leave it out, or use --by absence")
    build_anew(cli)
    from lightning_vfl.absence.contribution import contributions, players_of, without_features
    from lightning_vfl.absence.report import write_contributions
    from lightning_vfl.absence.shapley import coalitions_of, orders_of

    model = cli.model
    data = cli.datamodule
    refuse_numbered(cli, "--by absence")
    model.build_for(data)
    players = players_of(model.roster.parties, model.active)
    orders = orders_of(players, model.seed)
    recipes = {}
    for subset in coalitions_of(players, orders):
        there = tuple(sorted((*subset, *([] if model.active is None else [model.active]))))
        if there:
            recipes[subset] = with_parties(cli.config_dump, there, model.roster.parties, model.active)
    out = (Path(given.trainer.default_root_dir or "runs") / "contribution").resolve()
    metrics = metrics_of(cli, {_name(subset): recipe for subset, recipe in recipes.items()}, out)
    values = {subset: metrics[_name(subset)] for subset in recipes}
    if () not in values:
        values[()] = without_features(model, data)
    found = contributions(values, players, orders, [str(name) for name in model.test.metrics])
    print_files(write_contributions(found, out, data.party_names))
    return 0


def _name(players: tuple[int, ...]) -> str:
    """The name of a subset's runs: the numbers of the parties."""
    return "+".join(map(str, players)) or "alone"
