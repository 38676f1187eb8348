"""``lightning-vfl robustness``: the metrics with one party absent, or with faults in the records of one party."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse.typing import NonNegativeInt

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.retraining import (
    add_retraining,
    build_anew,
    chosen_party,
    copied,
    metrics_of,
    refuse_numbered,
    tested,
    with_parties,
)
from lightning_vfl.commands.stand_ins import add_stand_in
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from lightning_vfl.absence.robustness import Disturbance, Robustness

_ABOUT = (
    "Measure how much worse the metrics get if one party is absent, if its records are corrupted, or if its ids are "
    "permuted: at the test of a trained model, or with a training for each case. It prints a table, and writes "
    "robustness.csv and robustness.svg. Without --absent, --corrupt and --misalign it measures a usual grid."
)


class RobustnessCommand(Command):
    """Measure each party with each disturbance."""

    about = _ABOUT

    def add_options(self, parser: "ArgumentParser") -> None:
        add = parser.add_argument
        add("--absent", action="store_true", help="each party is absent; the active party never is")
        add(
            "--corrupt",
            type=str,
            nargs="+",
            default=[],
            metavar="FAULT:STRENGTHS",
            help="faults and strengths: Noise:0.5,1 Blur:1 DroppedColumns:0.5 ShiftedUnits:10 StaleTable:1",
        )
        add("--misalign", type=str, default="", metavar="SHARES", help="shares of ids permuted, such as 0.1,0.5")
        add("--parties", type=str, nargs="+", default=[], metavar="PARTY", help="only these parties; default: all")
        add(
            "--by",
            type=Literal["test", "retraining"],
            default="test",
            help="test: a trained model meets the disturbance; retraining: the training meets it too",
        )
        add(
            "--methods",
            type=str,
            nargs="+",
            default=[],
            metavar="FOLDER",
            help="compare with the robustness.csv in the folders of earlier runs of this command",
        )
        add(
            "--resamples",
            type=NonNegativeInt,
            default=100,
            help="draws of the test records for 95 %% intervals, with --by test; 0: no intervals",
        )
        add_retraining(parser)
        add_stand_in(parser)

    def run(self, cli: CLI) -> int:
        given = cli.given
        from lightning_vfl.absence.report import compare, write_robustness

        disturbances, absent = _asked(given)
        retrained = given.by == "retraining"
        if given.ckpt_path is None and not retrained:
            raise ConfigurationError("robustness needs a trained model; give --ckpt_path best, or --by retraining")
        found, folder = (_retrained if retrained else _tested)(cli, disturbances, absent)
        method = f"{type(cli.model).__name__} with {type(cli.model.aggregator).__name__}"
        files = write_robustness(found, method, folder, cli.datamodule.party_names)
        if given.methods:
            files += compare([*map(Path, given.methods), folder], folder)
        print_files(files)
        return 0


def _asked(given: Any) -> "tuple[list[Disturbance], bool]":
    """The faults, and whether parties are to be absent."""
    from lightning_vfl.absence.robustness import USUAL, parse_faults

    if not (given.absent or given.corrupt or given.misalign):
        return parse_faults(USUAL), True
    words = [*given.corrupt, *([f"Misaligned:{given.misalign}"] if given.misalign else [])]
    return parse_faults(words), given.absent


def _parties(cli: CLI) -> list[int]:
    """The parties that are disturbed, after the data are set up."""
    data = cli.datamodule
    names = dict.fromkeys(cli.given.parties)
    parties = [chosen_party(data, name, "--parties") for name in names]
    return parties or list(range(len(data.parts)))


def _tested(cli: CLI, disturbances: "list[Disturbance]", absent: bool) -> "tuple[Robustness, Path]":
    """The grid of a trained model."""
    from lightning_vfl.absence.robustness import by_test

    stand_in, folder = tested(cli)
    model = cli.model
    data = cli.datamodule
    parties = _parties(cli)
    away = [party for party in parties if absent and party != model.active]
    found = by_test(model, data, parties, disturbances, away, stand_in, cli.given.resamples)
    return found, folder


def _retrained(cli: CLI, disturbances: "list[Disturbance]", absent: bool) -> "tuple[Robustness, Path]":
    """The grid of trainings, each of which meets one disturbance in all its splits."""
    from lightning_vfl.absence.robustness import ABSENT, Disturbance, table_of

    given = cli.given
    build_anew(cli)
    model = cli.model
    data = cli.datamodule
    model.build_for(data)
    parties = _parties(cli)
    total = model.roster.parties
    recipes = {"undisturbed": copied(cli.config_dump)}
    names = {}
    if absent:
        refuse_numbered(cli, "--corrupt and --misalign alone, or --by test")
        for party in parties:
            if party == model.active:
                continue
            there = [other for other in range(total) if other != party]
            names[party, Disturbance(ABSENT)] = f"{party}-absent"
            recipes[f"{party}-absent"] = with_parties(cli.config_dump, there, total, model.active)
    for party in parties:
        for disturbance in disturbances:
            data.add_fault(fault := disturbance.at(party))  # refuses records that it cannot change
            data.remove_fault(fault)
            recipe = copied(cli.config_dump)
            settings = disturbance.settings(party)
            callback = {"class_path": f"lightning_vfl.callbacks.{disturbance.fault}", "init_args": settings}
            recipe["trainer"]["callbacks"] = [*(recipe["trainer"].get("callbacks") or []), callback]
            name = f"{party}-{disturbance.fault}-{disturbance.strength:g}"
            names[party, disturbance] = name
            recipes[name] = recipe
    out = (Path(given.trainer.default_root_dir or "runs") / "robustness").resolve()
    metrics = metrics_of(cli, recipes, out)
    values = {key: metrics[name] for key, name in names.items()}
    return table_of(values, metrics["undisturbed"], model.test.metrics), out
