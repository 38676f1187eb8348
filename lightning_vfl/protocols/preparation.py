"""The parties' set-up before the first round of a stage, and the memory that it leaves them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_vfl.aggregators.parts import Opening, Setup
from lightning_vfl.rounds.exchange import Hear, open_round
from lightning_vfl.types import RecordSource, Stage, stage_of
from lightning_vfl.wire import Leg, PartyView


@dataclass
class Preparation:
    """The parties' set-up for each stage. Shares and keys are in no checkpoint; the public settings are.

    Args:
        agreed: public settings that the set-up has fixed.
        memory: by stage, the keys or shares that the parties hold.
        sources: by stage, the records that were set up.
        booked: stages of a fit whose set-up traffic has been metered. A resumed fit does not meter it again.
        setup: the part of the aggregator; None: there is none.
        opening: as ``setup``.
        needed: whether there is one of the two.
    """

    agreed: dict[str, Any] = field(default_factory=dict)
    memory: dict[Stage, Any] = field(default_factory=dict, repr=False)
    sources: dict[Stage, RecordSource] = field(default_factory=dict, repr=False)
    booked: set[str] = field(default_factory=set)
    setup: Setup | None = None
    opening: Opening | None = None
    needed: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out memory and records: a copy or a saved module has no shares and no keys."""
        return {**vars(self), "memory": {}, "sources": {}}

    def start_over(self) -> None:
        """Delete settings and metered stages, for a fit that does not resume a checkpoint."""
        self.agreed = {}
        self.booked -= {Stage.FIT, Stage.VALIDATION}

    def begin(self, stage: Stage, source: RecordSource) -> None:
        """Begin the set-up of a stage: the memory of an earlier run is freed, so that there are never two."""
        self.sources[stage] = source
        self.memory.pop(stage, None)

    def uncounted(self, legs: tuple[Leg, ...], stage: Stage, fitting: bool) -> tuple[Leg, ...]:
        """The legs of the set-up of a stage that have not been metered yet."""
        if fitting:
            if stage in self.booked:
                return ()
            self.booked.add(stage)
        return tuple(leg.of_stage(stage) for leg in legs)

    def opened(self, view: PartyView, hear: Hear | None = None) -> Any:
        """The parties' memory after the opening of a round; ``hear`` is called with every message."""
        stage = stage_of(view.names.stage)
        if self.opening is None:
            return self.memory.get(stage)
        if stage not in self.memory:
            self.memory[stage] = self.opening.empty_memory(view)
        self.memory[stage] = open_round(self.opening, self.memory[stage], view, hear)
        return self.memory[stage]

    def count(self, stage: Stage) -> int:
        """N, the number of records of a stage; 0: the stage was not set up."""
        source = self.sources.get(stage_of(stage))
        return 0 if source is None else len(source)

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
        self.agreed = dict(state.get("agreed", {}))
        self.booked = set(state.get("booked", ()))
