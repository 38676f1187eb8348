"""Trials of an aggregator's mechanism: rounds of real messages in which a coin chooses a party's embedding."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.audit.attack import Seen
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.epsilon_lower_bound import EpsilonLowerBound
from lightning_vfl.audit.transcript import Transcript
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import composed_epsilon, rounded_up
from lightning_vfl.rounds.ends import open_round
from lightning_vfl.rounds.exchange import Exchange, Sides
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView

if TYPE_CHECKING:
    from lightning_vfl.aggregators.base import Aggregator

ROWS = 2**16  # trials of one round


@dataclass(frozen=True, eq=False)
class Trials:
    """The trials as the attacker sees them, and the truth.

    Args:
        seen: what the server sees.
        second: (n,) bool, whether the second embedding was uploaded.
        claimed: the accountant's ε.
    """

    seen: Seen
    second: Tensor
    claimed: float


def run_trials(aggregator: "Aggregator", roster: Roster, attack: EpsilonLowerBound, seed: int) -> Trials:
    """Run the rounds.

    All other parties upload the first embedding as well, which leaves the sum of a Poisson binomial mechanism the least
    noise.

    Raises:
        ConfigurationError: for an aggregator that does not account for privacy, or without single embeddings.
    """
    accounting, m = aggregator.accounting, roster.parties
    clip = getattr(aggregator, "clip", None)
    if accounting is None or not isinstance(clip, float | int):
        raise ConfigurationError(
            f"{type(aggregator).__name__} has no clip or accounts for no privacy, so there are no two embeddings to "
            "tell apart; use PoissonBinomial or LocalGaussian"
        )
    widths = aggregator.widths(attack.width, roster)
    everybody = tuple(range(m))
    event = accounting.event(everybody, widths, roster)
    if event is None:
        raise ConfigurationError(f"{type(aggregator).__name__} accounts for nothing with these parties")
    of_record = getattr(aggregator, "bounds", "value") == "record"  # the norm is clipped, not each value
    extremes = [_extreme(width, float(clip), of_record) for width in widths]
    coins = torch.rand(attack.trials, generator=torch.Generator().manual_seed(seed)) < 0.5
    transcript = Transcript(Attacker(server=True))
    wire, memory = aggregator.wire, None
    if wire is None:
        raise ConfigurationError(f"{type(aggregator).__name__} sends no messages of its own")
    sides, roll, number = Sides.of(wire), Roll.everyone(m), 0
    for begin in range(0, attack.trials, ROWS):
        own = coins[begin : begin + ROWS]
        ids = torch.arange(begin, begin + len(own))
        h = tuple(_embeddings(own if party == attack.party else None, extremes[party], len(own)) for party in everybody)
        for _ in range(attack.uploads):
            names, rows = RoundNames(seed, Stage.FIT, number), Rows(ids, 0, len(own))
            view = PartyView(names, roster, everybody, roll.called, rows)
            if aggregator.opening is not None:
                memory = aggregator.opening.empty_memory(view) if memory is None else memory
                memory = open_round(aggregator.opening, memory, view)
                view = replace(view, memory=memory)
            server = ServerView(names, roster, rows, roll, widths)
            with torch.no_grad():
                Exchange(aggregator, Embeddings(h), view, server, sides=sides, wire=wire, tap=transcript).run()
            number += 1
    ends = [_noiseless(aggregator, roll, extremes, attack.party, sign) for sign in (-1.0, 1.0)]
    inputs = {"first": ends[0], "second": ends[1]}
    seen = Seen(Attacker(server=True), transcript, attack.trials, 2, {}, {}, None, roster, aggregator, inputs=inputs)
    return Trials(seen, coins, rounded_up(composed_epsilon({event: attack.uploads}, attack.delta)))


def _extreme(width: int, clip: float, of_record: bool) -> Tensor:
    """(D,) an embedding as far from zero as clipping allows."""
    extreme = torch.full((width,), clip)
    if of_record:
        extreme[1:] = 0.0
    return extreme


def _embeddings(coins: Tensor | None, extreme: Tensor, rows: int) -> Tensor:
    """(rows, D): the second embedding where the coin says so, the first otherwise."""
    signs = -torch.ones(rows) if coins is None else torch.where(coins, 1.0, -1.0)
    return signs[:, None] * extreme


def _noiseless(aggregator: "Aggregator", roll: Roll, extremes: list[Tensor], party: int, sign: float) -> Tensor:
    h = tuple((sign if other == party else -1.0) * extreme[None] for other, extreme in enumerate(extremes))
    value: Tensor = aggregator.plain(h, roll)[0].double()
    return value
