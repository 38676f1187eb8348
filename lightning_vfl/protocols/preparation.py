"""The parties' set-up before the first round of a stage, and the memory that it leaves them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.coded.blocks import Blocks
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.rounds.ends import open_round
from lightning_vfl.rounds.exchange import ExpandedRecords, set_up
from lightning_vfl.types import RecordSource, Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Leg, LinearForms, PartyView


@dataclass
class Preparation:
    """The parties' set-up for each stage. Shares and keys are in no checkpoint; the public settings are.

    Args:
        agreed: public settings that the set-up has fixed.
        memory: by stage, the keys or shares that the parties hold.
        sources: by stage, the records that were set up.
        booked: stages of a fit whose set-up traffic has been metered. A resumed fit does not meter it again.
    """

    agreed: dict[str, Any] = field(default_factory=dict)
    memory: dict[Stage, Any] = field(default_factory=dict, repr=False)
    sources: dict[Stage, RecordSource] = field(default_factory=dict, repr=False)
    booked: set[str] = field(default_factory=set)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out memory and records: a copy or a saved module has no shares and no keys."""
        return {**vars(self), "memory": {}, "sources": {}}

    def start_over(self) -> None:
        """Delete settings and metered stages, for a fit that does not resume a checkpoint."""
        self.agreed = {}
        self.booked -= {Stage.FIT, Stage.VALIDATION}

    def run(
        self,
        aggregator: Aggregator,
        bottoms: PartyBank,
        source: RecordSource,
        roster: Roster,
        names: RoundNames,
        device: torch.device,
        fitting: bool,
    ) -> tuple[Leg, ...]:
        """Let the parties set up a stage; returns the legs that have not been metered yet."""
        setup, stage, parties = aggregator.setup, names.stage, roster.parties
        if setup is None:
            return ()
        if aggregator.form is not LinearForms:
            raise ConfigurationError(
                f"{type(aggregator).__name__} has a Setup, which shares expanded records; declare form = LinearForms"
            )
        networks: list[Any] = list(bottoms.parties)
        basis = tuple(len(network.weight) for network in networks)
        expanded = ExpandedRecords(source, bottoms, device)
        if not self.agreed:
            weights: list[Tensor] = [network.weight.detach() for network in networks]
            proposals = [setup.propose(expanded, m, weight, roster) for m, weight in enumerate(weights)]
            self.agreed = dict(setup.settle(proposals))
        nobody = Rows(torch.empty(0, dtype=torch.int64), 0, 0)
        everyone = Roll.everyone(parties).called
        view = PartyView(names, roster, tuple(range(parties)), everyone, nobody, agreed=self.agreed)
        self.sources[stage] = source
        self.memory.pop(stage, None)  # free the memory of an earlier run first, so that there are never two
        self.memory[stage] = set_up(setup, expanded, basis, view, partial(_announce, type(aggregator).__name__))
        legs = setup.legs(len(source), basis, roster)
        if fitting:
            if stage in self.booked:
                return ()
            self.booked.add(stage)
        return legs if stage == Stage.FIT else tuple(replace(leg, kind=f"{stage} {leg.kind}") for leg in legs)

    def opened(self, aggregator: Aggregator, stage: Stage, view: PartyView) -> Any:
        """The parties' memory after the opening of a round."""
        opening = aggregator.opening
        if opening is None:
            return self.memory.get(stage)
        if stage not in self.memory:
            self.memory[stage] = opening.empty_memory(view)
        self.memory[stage] = open_round(opening, self.memory[stage], view)
        return self.memory[stage]

    def blocks(self, aggregator: Aggregator, parties: int, seed: int, stage: Stage) -> Blocks | None:
        """The arrangement of a stage's records in coded rows; None: there are no coded rows."""
        stage, setup = stage_of(stage), aggregator.setup
        if setup is None or stage not in self.sources:
            return None
        return setup.arrangement(len(self.sources[stage]), parties, seed, stage)

    def count(self, stage: Stage) -> int:
        """N, the number of records of a stage; 0: the stage was not set up."""
        return len(self.sources[stage]) if stage in self.sources else 0

    def forget(self, *stages: Stage) -> None:
        """Free the memory of these stages."""
        for stage in stages:
            self.memory.pop(stage, None)
            self.sources.pop(stage, None)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint; plain values."""
        return {"agreed": dict(self.agreed), "booked": sorted(stage.value for stage in map(Stage, self.booked))}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the settings and the metered stages from a checkpoint."""
        self.agreed, self.booked = dict(state.get("agreed", {})), set(state.get("booked", ()))


def stage_of(stage: Stage) -> Stage:
    """The stage whose set-up this stage uses: the sanity check runs on validation records."""
    return Stage.VALIDATION if stage == Stage.SANITY_CHECK else stage


def _announce(name: str, records: int, size: int) -> None:
    rank_zero_info(f"{name}: the parties share {records:,} records, {size / 2**30:.2f} GiB in every process")
