"""``lightning-vfl privacy``: an upper bound of the privacy cost of a fit, computed without training."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from lightning_vfl.commands import trials
from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.planned_cost import Plan, planned
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import PoissonBinomialEvent
from lightning_vfl.privacy.events import AGAINST, UNITS, against, coalitions, in_words, label
from lightning_vfl.privacy.solve import solve_beta, solve_levels
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.terminal import console

DELTAS = [1e-3, 1e-5, 1e-7]

_ABOUT = (
    "Compute what a fit of this recipe costs its records in privacy at most, without training. The command takes the "
    "options of fit (--config data/digits --config protocol/pbm --trainer.max_epochs 10) and the options below."
)


class PrivacyCommand(Command):
    """Print the table of a recipe, and the setting that would meet a target."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("--delta", type=float, nargs="+", default=DELTAS, help="values of δ in the table")
        parser.add_argument("--solve", type=Literal["beta", "levels", "epochs"], help="setting to find for a target ε")
        parser.add_argument("--target-epsilon", type=float, help="largest ε that --solve may reach")
        parser.add_argument(
            "--try",
            action="store_true",
            help="train the setting that --solve finds, and fewer epochs, smaller widths and larger batches, for "
            f"{trials.ROUNDS} rounds each, and recommend the best",
        )
        parser.add_argument("--unit", type=Literal[UNITS], default="party-record", help="what --solve protects")

    def run(self, cli: CLI) -> int:
        own = cli.given
        if (own.solve is None) != (own.target_epsilon is None):
            raise UsageError("--solve and --target-epsilon belong together; give both")
        if own["try"] and own.solve not in ("beta", "levels"):
            raise UsageError("--try trains what --solve beta or --solve levels finds; give one of them")
        cli.build()
        module = cli.model
        accounting = module.aggregator.accounting
        if accounting is None or not isinstance(module, VFLModule):
            downlink = getattr(module, "downlink", None)
            labels = (
                "" if downlink is None else f" (what {type(downlink).__name__} costs labels, the summary of fit says)"
            )
            raise ConfigurationError(
                f"{type(module.aggregator).__name__} has no privacy guarantee to account for{labels}; use "
                "PoissonBinomial or LocalGaussian"
            )
        plan = planned(module, cli.datamodule, cli.trainer)
        _print(plan, own.delta, coalitions(plan.parties, accounting.colluders(module.roster)))
        if accounting.simulated is not None:
            print(accounting.simulated)
        if own.solve is not None:
            print(_solved(plan, own))
        if own["try"]:
            trials.compare(partial(_changed, cli), plan, lambda plan: _setting(plan, own))
        return 0


def _print(plan: Plan, deltas: Sequence[float], against_server: Sequence[int]) -> None:
    releases = plan.releases
    several = len(plan.events) > 1
    print(
        f"ε after {releases.epochs:,} epochs of {releases.rounds:,} rounds in all over {plan.records:,} records, each "
        f"released {releases.most:,} times at most; {'the most expensive of ' if several else ''}"
        + "; ".join(map(str, plan.events))
    )
    table = Table("unit")
    for delta in deltas:
        table.add_column(f"δ = {delta:g}", justify="right")
    for unit in UNITS:
        rows = {label(unit): plan.events}
        for colluders in against_server if unit in AGAINST else ():
            fewer = tuple(against(event, colluders) for event in plan.events)
            if any(one.curve(unit) != other.curve(unit) for one, other in zip(fewer, plan.events, strict=True)):
                rows[f"{label(unit)}, against the server and {in_words(colluders)}"] = fewer
        for name, events in rows.items():
            table.add_row(name, *(str(plan.figure(delta, unit, events)) for delta in deltas))
    console().print(table)


def _changed(cli: CLI, options: Sequence[str]) -> VFLCLI:
    """The recipe of this command with further options."""
    return VFLCLI([*cli.arguments, *options]).build()


def _solved(plan: Plan, own: Namespace) -> str:
    target = own.target_epsilon
    delta = _delta(own)
    unit = own.unit
    goal = f"ε ≤ {target:g} of a {label(unit)}, at δ = {delta:g}"
    if own.solve == "epochs":
        return f"{goal}: epochs = {plan.most_epochs(target, delta, unit):,}"
    found = _setting(plan, own)
    epochs = plan.releases.epochs
    if own.solve == "beta":
        return f"{goal}: beta = {found:.6g} with levels = {_binomial(plan, own)[0].levels} and {epochs:,} epochs"
    return f"{goal}: levels = {found} with beta = {_binomial(plan, own)[0].beta:g} and {epochs:,} epochs"


def _setting(plan: Plan, own: Namespace) -> float | int:
    """The largest beta, or number of levels, with which the plan meets the target.

    Raises:
        ConfigurationError: if there is none, and for another aggregator.
    """
    target = own.target_epsilon
    delta = _delta(own)
    unit = own.unit
    events = _binomial(plan, own)
    if own.solve == "beta":
        return solve_beta(target, lambda beta: plan.epsilon(delta, unit, [replace(e, beta=beta) for e in events]))
    if plan.timed:
        raise ConfigurationError(
            "--solve levels: uploads of more levels take longer, and the order of CascadeVFL's periods depends on "
            "that; use --solve beta or --solve epochs"
        )
    return solve_levels(target, lambda n: plan.epsilon(delta, unit, [replace(e, levels=n) for e in events]))


def _binomial(plan: Plan, own: Namespace) -> list[PoissonBinomialEvent]:
    events = [event for event in plan.events if isinstance(event, PoissonBinomialEvent)]
    if len(events) < len(plan.events) or not events:
        raise ConfigurationError(f"--solve {own.solve} is for PoissonBinomial; with this aggregator use --solve epochs")
    return events


def _delta(own: Namespace) -> float:
    """The δ of the target."""
    return own.delta[0] if len(own.delta) == 1 else 1e-5
