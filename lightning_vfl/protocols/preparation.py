"""What happens between the parties before the first round of a stage, and what it leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.coded.blocks import Blocks
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.rounds.exchange import ExpandedRecords, open_round, set_up
from lightning_vfl.types import RecordSource, Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Leg, LinearForms, PartyView


@dataclass
class Preparation:
    """The parties' set-up for each stage. Shares and keys are in no checkpoint; what was agreed on in public is.

    Args:
        agreed: public settings.
        memory: by stage, what set-up has left with the parties.
        sources: by stage, the records that were set up.
        booked: stages of a fit whose set-up traffic is in the books: once, however often the fit is resumed.
    """

    agreed: dict[str, Any] = field(default_factory=dict)
    memory: dict[Stage, Any] = field(default_factory=dict, repr=False)
    sources: dict[Stage, RecordSource] = field(default_factory=dict, repr=False)
    booked: set[str] = field(default_factory=set)

    def __getstate__(self) -> dict[str, Any]:
        """Without memory and records: a copy or a saved module takes nobody's shares along."""
        return {**vars(self), "memory": {}, "sources": {}}

    def start_over(self) -> None:
        """A fit that resumes nothing settles and sends everything anew."""
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
        """Let the parties set up a stage, and say what of it is not in the books yet."""
        stage, parties = names.stage, roster.parties
        networks: list[Any] = list(bottoms.parties)
        forms = aggregator.form is LinearForms
        basis = tuple(len(network.weight) for network in networks) if forms else ()
        expanded = ExpandedRecords(source, bottoms, device)
        if not self.agreed:
            weights: list[Tensor] = [network.weight.detach() for network in networks] if basis else []
            self.agreed = dict(aggregator.agree(expanded, weights, roster))
        nobody = Rows(torch.empty(0, dtype=torch.int64), 0, 0)
        everyone = Roll.everyone(parties).called
        view = PartyView(names, roster, tuple(range(parties)), everyone, nobody, agreed=self.agreed)
        self.sources[stage] = source
        self.memory.pop(stage, None)  # what an earlier run has left, before there is a second
        self.memory[stage] = set_up(aggregator, expanded, basis, view, _announce)
        legs = aggregator.setup_legs(len(source), basis, roster)
        if fitting:
            if stage in self.booked:
                return ()
            self.booked.add(str(stage))
        return legs if stage == Stage.FIT else tuple(replace(leg, kind=f"{stage} {leg.kind}") for leg in legs)

    def opened(self, aggregator: Aggregator, stage: Stage, view: PartyView) -> Any:
        """What the parties know when a round has begun; where nothing was shared before, it begins with nothing."""
        if not aggregator.opens:
            return self.memory.get(stage)
        if stage not in self.memory:
            self.memory[stage] = aggregator.empty_memory(0, (), view)
        self.memory[stage] = open_round(aggregator, self.memory[stage], view)
        return self.memory[stage]

    def blocks(self, aggregator: Aggregator, parties: int, seed: int, stage: Stage) -> Blocks | None:
        """Which records of a stage are cheap together."""
        stage = stage_of(stage)
        if stage not in self.sources:
            return None
        return aggregator.arrangement(len(self.sources[stage]), parties, seed, stage)

    def count(self, stage: Stage) -> int:
        """N of a stage; 0: nothing was set up."""
        return len(self.sources[stage]) if stage in self.sources else 0

    def forget(self, *stages: Stage) -> None:
        """Give the memory of these stages back."""
        for stage in stages:
            self.memory.pop(stage, None)
            self.sources.pop(stage, None)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know; plain values."""
        return {"agreed": dict(self.agreed), "booked": sorted(self.booked)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Know it again."""
        self.agreed, self.booked = dict(state.get("agreed", {})), set(state.get("booked", ()))


def stage_of(stage: Stage) -> Stage:
    """The stage whose set-up serves this one: the sanity check runs on validation records."""
    return Stage.VALIDATION if stage == Stage.SANITY_CHECK else stage


def _announce(aggregator: Aggregator, records: int, size: int) -> None:
    rank_zero_info(
        f"{type(aggregator).__name__}: the parties share {records:,} records, {size / 2**30:.2f} GiB in every process"
    )
