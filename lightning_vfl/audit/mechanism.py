"""Trials of an aggregator's mechanism: rounds of real messages in which a coin chooses a party's embedding."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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


class Trials(NamedTuple):
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
    name = type(aggregator).__name__
    accounting = aggregator.accounting
    wire = aggregator.wire
    clip = getattr(aggregator, "clip", None)
    if accounting is None or not isinstance(clip, float | int):
        raise ConfigurationError(
            f"{name} has no clip or accounts for no privacy, so there are no two embeddings to tell apart; use "
            "PoissonBinomial or LocalGaussian"
        )
    widths = aggregator.widths(attack.width, roster)
    parties = tuple(range(roster.parties))
    event = accounting.event(parties, widths, roster)
    if event is None:
        raise ConfigurationError(f"{name} accounts for nothing with these parties")
    if wire is None:
        raise ConfigurationError(f"{name} sends no messages of its own")
    extremes = [torch.full((width,), float(clip)) for width in widths]
    if getattr(aggregator, "bounds", "value") == "record":  # the norm is clipped, not each value
        for extreme in extremes:
            extreme[1:] = 0.0
    second = torch.rand(attack.trials, generator=torch.Generator().manual_seed(seed)) < 0.5
    transcript = Transcript(Attacker(server=True))
    sides = Sides.of(wire)
    roll = Roll.everyone(roster.parties)
    memory = None
    number = 0
    for ids in torch.split(torch.arange(attack.trials), ROWS):
        signs = torch.where(second[ids], 1.0, -1.0)[:, None]
        firsts = -torch.ones_like(signs)
        h = tuple((signs if party == attack.party else firsts) * extremes[party] for party in parties)
        for _ in range(attack.uploads):
            names = RoundNames(seed, Stage.FIT, number)
            rows = Rows(ids, 0, len(ids))
            view = PartyView(names, roster, parties, roll.called, rows)
            if aggregator.opening is not None:
                memory = aggregator.opening.empty_memory(view) if memory is None else memory
                memory = open_round(aggregator.opening, memory, view)
                view = replace(view, memory=memory)
            server = ServerView(names, roster, rows, roll, widths)
            with torch.no_grad():
                Exchange(aggregator, Embeddings(h), view, server, sides=sides, wire=wire, tap=transcript).run()
            number += 1
    inputs = {}
    for which, sign in (("first", -1.0), ("second", 1.0)):
        h = tuple((sign if party == attack.party else -1.0) * extremes[party][None] for party in parties)
        inputs[which] = aggregator.plain(h, roll)[0].double()
    seen = Seen(Attacker(server=True), transcript, attack.trials, 2, {}, {}, None, roster, aggregator, inputs=inputs)
    return Trials(seen, second, rounded_up(composed_epsilon({event: attack.uploads}, attack.delta)))
