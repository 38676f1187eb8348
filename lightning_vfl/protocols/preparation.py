"""What happens between the parties before the first round of a stage, and what it leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.blocks import Blocks
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.rounds import ExpandedRecords, set_up
from lightning_vfl.types import Leg, PartyView, RecordSource, Roll, Roster, RoundNames, Rows, Stage


@dataclass
class Preparation:
    """The parties' set-up for each stage. Shares and keys are in no checkpoint; what was agreed on in public is.

    Args:
        agreed: public settings.
        memory: by stage, what set-up has left with the parties.
        records: by stage, N.
        booked: stages whose set-up traffic is in the books: once, however often a run is resumed or repeated.
    """

    agreed: dict[str, Any] = field(default_factory=dict)
    memory: dict[Stage, Any] = field(default_factory=dict)
    records: dict[Stage, int] = field(default_factory=dict)
    booked: set[str] = field(default_factory=set)

    def run(
        self,
        aggregator: Aggregator,
        bottoms: PartyBank,
        source: RecordSource,
        roster: Roster,
        names: RoundNames,
        device: torch.device,
    ) -> tuple[Leg, ...]:
        """Let the parties set up a stage, and say what of it is not in the books yet."""
        stage, parties = names.stage, roster.parties
        networks: list[Any] = list(bottoms.parties)
        basis = tuple(len(network.weight) for network in networks) if aggregator.shares_records else ()
        expanded = ExpandedRecords(source, bottoms, device)
        if not self.agreed or (stage == "fit" and stage not in self.booked):  # a fit goes by its own records
            weights: list[Tensor] = [network.weight.detach() for network in networks] if basis else []
            self.agreed = dict(aggregator.agree(expanded, weights, roster))
        nobody = Rows(torch.empty(0, dtype=torch.int64), 0, 0)
        everyone = Roll.everyone(parties).called
        view = PartyView(names, roster, tuple(range(parties)), everyone, nobody, agreed=self.agreed)
        self.records[stage] = len(source)
        self.memory.pop(stage, None)  # what an earlier run has left, before there is a second
        self.memory[stage] = set_up(aggregator, expanded, basis, view, _announce)
        legs = aggregator.setup_legs(len(source), basis, roster)
        if stage in self.booked:
            return ()
        self.booked.add(stage)
        return legs if stage == "fit" else tuple(replace(leg, kind=f"{stage} {leg.kind}") for leg in legs)

    def blocks(self, aggregator: Aggregator, parties: int, seed: int, stage: Stage) -> Blocks | None:
        """Which records of a stage are cheap together."""
        stage = of(stage)
        if stage not in self.records:
            return None
        return aggregator.arrangement(self.records[stage], parties, seed, stage)

    def forget(self, *stages: Stage) -> None:
        """Give the memory of these stages back."""
        for stage in stages:
            self.memory.pop(stage, None)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know; plain values."""
        return {"agreed": dict(self.agreed), "booked": sorted(self.booked)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Know it again."""
        self.agreed, self.booked = dict(state["agreed"]), set(state["booked"])


def of(stage: Stage) -> Stage:
    """The stage whose set-up serves this one: the sanity check runs on validation records."""
    return "validation" if stage == "sanity check" else stage


def _announce(aggregator: Aggregator, records: int, size: int) -> None:
    rank_zero_info(
        f"{type(aggregator).__name__}: the parties share {records:,} records, {size / 2**30:.2f} GiB in every process"
    )
