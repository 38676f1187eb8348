"""The parties' set-up before the first round of a stage, and the memory that it leaves them."""

from collections.abc import Callable, Mapping
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
from lightning_vfl.rounds.ends import Hear, open_round
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
        basis: tuple[int, ...],
        source: RecordSource,
        roster: Roster,
        names: RoundNames,
        device: torch.device,
        fitting: bool,
        by: Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Any]] | None = None,
        hear: Hear | None = None,
    ) -> tuple[Leg, ...]:
        """Let the parties set up a stage; returns the legs that have not been metered yet.

        ``by``: does this process's part of the set-up, from the settings that are agreed already; None: all parties are
        hosted here. ``hear``: is called with every message, if all parties are hosted here.
        """
        setup, stage = aggregator.setup, names.stage
        if setup is None:
            return ()
        if aggregator.form is not LinearForms:
            raise ConfigurationError(
                f"{type(aggregator).__name__} has a Setup, which shares expanded records; declare form = LinearForms"
            )
        self.sources[stage] = source
        self.memory.pop(stage, None)  # free the memory of an earlier run first, so that there are never two
        if by is None:
            by = partial(_set_up_here, aggregator, ExpandedRecords(source, bottoms, device), basis, roster, names, hear)
        agreed, self.memory[stage] = by(self.agreed)
        self.agreed = dict(agreed)
        legs = setup.legs(len(source), basis, roster)
        if fitting:
            if stage in self.booked:
                return ()
            self.booked.add(stage)
        return legs if stage == Stage.FIT else tuple(replace(leg, kind=f"{stage} {leg.kind}") for leg in legs)

    def opened(self, aggregator: Aggregator, stage: Stage, view: PartyView, hear: Hear | None = None) -> Any:
        """The parties' memory after the opening of a round; ``hear`` is called with every message."""
        opening = aggregator.opening
        if opening is None:
            return self.memory.get(stage)
        if stage not in self.memory:
            self.memory[stage] = opening.empty_memory(view)
        self.memory[stage] = open_round(opening, self.memory[stage], view, hear)
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


def _set_up_here(
    aggregator: Aggregator,
    records: ExpandedRecords,
    basis: tuple[int, ...],
    roster: Roster,
    names: RoundNames,
    hear: Hear | None,
    agreed: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Any]:
    """Set up all parties in this process."""
    setup = aggregator.setup
    if setup is None:
        return agreed, None
    if not agreed:
        weights: list[Tensor] = [network.weight.detach() for network in records.networks]
        agreed = setup.settle([setup.propose(records, m, weight, roster) for m, weight in enumerate(weights)])
    nobody = Rows(torch.empty(0, dtype=torch.int64), 0, 0)
    everybody = tuple(range(roster.parties))
    view = PartyView(names, roster, everybody, Roll.everyone(roster.parties).called, nobody, agreed=agreed)
    return agreed, set_up(setup, records, basis, view, partial(_announce, type(aggregator).__name__), hear)


def stage_of(stage: Stage) -> Stage:
    """The stage whose set-up this stage uses: the sanity check runs on validation records."""
    return Stage.VALIDATION if stage == Stage.SANITY_CHECK else stage


def _announce(name: str, records: int, size: int) -> None:
    rank_zero_info(f"{name}: the parties share {records:,} records, {size / 2**30:.2f} GiB in every process")
