"""``lightning-vfl privacy``: what a recipe would cost its records, told without training."""

import argparse
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.parse_errors import OneLineParser
from lightning_vfl.privacy import (
    PoissonBinomialEvent,
    PrivacyEvent,
    planned_epsilon,
    solve_beta,
    solve_epochs,
    solve_levels,
)
from lightning_vfl.privacy.events import AGAINST, UNITS, against, coalitions, in_words, label

DELTAS = (1e-3, 1e-5, 1e-7)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own arguments, and those of the recipe."""
    parser = OneLineParser(
        prog="lightning-vfl privacy",
        description="What a training by this recipe would cost its records in privacy. Besides the options below it "
        "takes those of fit: --config data/digits --config protocol/pbm --trainer.max_epochs 10.",
        allow_abbrev=False,
    )
    parser.add_argument("--delta", type=float, nargs="+", default=DELTAS, help="δ of the table (default: %(default)s)")
    parser.add_argument("--solve", choices=("beta", "levels", "epochs"), help="what to find for --target-epsilon")
    parser.add_argument("--target-epsilon", type=float, help="ε to stay below")
    parser.add_argument("--unit", choices=UNITS, default="party-record", help="of --solve (default: %(default)s)")
    own, recipe = parser.parse_known_args(list(arguments))
    if (own.solve is None) != (own.target_epsilon is None):
        parser.error("--solve and --target-epsilon belong together; give both")
    return own, recipe


def execute(arguments: Sequence[str], build: Callable[[Sequence[str]], Any]) -> None:
    """Print the table of a recipe, and what would meet a target.

    Args:
        arguments: of ``lightning-vfl``, behind ``privacy``.
        build: makes a command line of ``fit`` that has built everything and runs nothing.

    Raises:
        ConfigurationError: for a recipe whose aggregator accounts for nothing.
    """
    own, recipe = parse(arguments)
    done = build(["fit", *recipe])
    module, data, trainer = done.model, done.datamodule, done.trainer
    if not module.aggregator.accounts:
        raise ConfigurationError(
            f"{type(module.aggregator).__name__} claims no privacy that could be counted; use PoissonBinomial or "
            "LocalGaussian"
        )
    data.setup("fit")
    module.build_for(data)
    module.refuse_shared_statistics(data)  # as the fit will
    records = len(data.records("train"))
    everybody = tuple(range(module.roster.parties))
    event = module.aggregator.event(everybody, module.embedding_widths, module.roster)
    batches = -(-records // data.batch_size)
    epochs = trainer.max_epochs if trainer.max_steps < 0 else ceil(trainer.max_steps / batches)
    if epochs is None or epochs < 0:
        raise ConfigurationError(
            "a training without end has no price; give --trainer.max_epochs or --trainer.max_steps"
        )
    _print(event, module.roster.parties, epochs, records, own.delta)
    if module.aggregator.simulated is not None:
        print(module.aggregator.simulated)
    if own.solve is not None:
        print(_solved(event, epochs, records, own))


def _print(event: PrivacyEvent, parties: int, epochs: int, records: int, deltas: Sequence[float]) -> None:
    print(f"ε after {epochs:,} epochs over {records:,} records, nobody away: {event}")
    table = Table("unit")
    for delta in deltas:
        table.add_column(f"δ = {delta:g}", justify="right")
    for unit in UNITS:
        rows = {label(unit): event}
        for colluders in coalitions(parties) if unit in AGAINST else ():
            fewer = against(event, colluders)
            if fewer.curve(unit) != event.curve(unit):
                rows[f"{label(unit)}, against the server and {in_words(colluders)}"] = fewer
        for name, release in rows.items():
            figures = (planned_epsilon(release, epochs, delta, unit, records) for delta in deltas)
            table.add_row(name, *(f"{epsilon:,.4g}" for epsilon in figures))
    Console().print(table)


def _solved(event: PrivacyEvent, epochs: int, records: int, own: argparse.Namespace) -> str:
    target, delta, unit = own.target_epsilon, own.delta[0] if len(own.delta) == 1 else 1e-5, own.unit
    goal = f"ε ≤ {target:g} of a {label(unit)}, at δ = {delta:g}"
    if own.solve == "epochs":
        return f"{goal}: epochs = {solve_epochs(target, delta, event, unit, records):,}"
    if not isinstance(event, PoissonBinomialEvent):
        raise ConfigurationError(f"--solve {own.solve} is for PoissonBinomial; with this aggregator use --solve epochs")
    rest = {"parties": event.parties, "coordinates": event.coordinates, "epochs": epochs, "unit": unit}
    if own.solve == "beta":
        beta = solve_beta(target, delta, levels=event.levels, records=records, **rest)
        return f"{goal}: beta = {beta:.6g} with levels = {event.levels} and {epochs:,} epochs"
    levels = solve_levels(target, delta, beta=event.beta, records=records, **rest)
    return f"{goal}: levels = {levels} with beta = {event.beta:g} and {epochs:,} epochs"
