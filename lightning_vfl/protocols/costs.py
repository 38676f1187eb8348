"""The costs of rounds: seconds and traffic, from shapes, networks and the speeds of the clock."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.aggregators.clear import shared_bottoms_of, wire_of
from lightning_vfl.local_updates import LocalUpdate
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.flops import Work, work_of, works_of
from lightning_vfl.networks.halved_top import ACTIVATIONS, GRADIENTS, HalvedTop
from lightning_vfl.rounds.plan import RoundCosts
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.types import Roster, Stage
from lightning_vfl.wire import Gate, Leg, LinearForms

Shapes = tuple[tuple[int, ...], ...]


class Costs:
    """The costs of faultless rounds; each is computed once.

    Attributes:
        local_update: what parties do besides one forward and one backward pass of their bottoms; None: nothing.

    Args:
        aggregator: states the traffic.
        roster: the parties.
        clock: converts bytes and FLOPs into seconds.
        bottoms: the parties' networks.
        top: the server's network, or the halves of the server and the active party.
        shapes: the per-record shape of each party's features.
        width: D, the embedding width of the protocol, which the aggregator may correct.
        top_width: how many numbers the top gets of a record.
        more: gives the legs that are sent with the parties' last leg, from the rows of a round.
    """

    local_update: LocalUpdate | None = None

    def __init__(
        self,
        aggregator: Aggregator,
        roster: Roster,
        clock: VirtualClock,
        bottoms: PartyBank,
        top: nn.Module,
        shapes: Shapes,
        width: int,
        top_width: int,
        more: Callable[[int], tuple[Leg, ...]],
    ) -> None:
        self.aggregator, self.roster, self.clock = aggregator, roster, clock
        self.wire = wire_of(aggregator)
        self.bottoms, self.top, self.shapes, self.more = bottoms, top, shapes, more
        self.widths = aggregator.widths(width, roster)
        self.top_width = top_width
        self._work: tuple[list[Work], Work] | None = None
        self._active_work: Work | None = None
        self._basis: tuple[int, ...] | None = None
        self._rounds: dict[tuple[int, int], RoundCosts] = {}
        self._evaluation: dict[tuple[int, Stage], tuple[Leg, ...]] = {}
        self._legs: dict[int, tuple[Leg, ...]] = {}

    def of_round(self, rows: int, coded: int | None = None) -> RoundCosts:
        """Traffic and seconds of a faultless round.

        Args:
            rows: records of the joint batch.
            coded: coded rows of these records, if the aggregator computes on coded rows; None: ``rows``.
        """
        coded = rows if coded is None else coded
        key = rows, coded
        if key not in self._rounds:
            legs = (*self.legs(coded), *self.more(rows))
            downlink = self.wire.downlink(rows, self.widths, self.roster)
            updates, cut = self.updates(), self.cut(rows)
            bottoms, top = self.work()
            if self.local_update is not None:
                more = [self.local_update.flops(party, work) for party, work in enumerate(bottoms)]
                bottoms = [
                    work._replace(backward=work.backward + flops) for work, flops in zip(bottoms, more, strict=True)
                ]
            self._rounds[key] = RoundCosts.of(legs, downlink, rows, bottoms, top, self.clock, updates, cut)
        return self._rounds[key]

    def use(self, clock: VirtualClock) -> None:
        """Compute seconds with another clock from now on."""
        self.clock = clock
        self._rounds.clear()

    def legs_of_evaluation(self, rows: int, stage: Stage) -> tuple[Leg, ...]:
        """The legs of a round of evaluation, under kinds of its own."""
        if (rows, stage) not in self._evaluation:
            named = (replace(leg, kind=f"{stage} {leg.kind}") for leg in self.legs(rows))
            self._evaluation[rows, stage] = tuple(named)
        return self._evaluation[rows, stage]

    def cut(self, rows: int) -> tuple[Leg, ...]:
        """What crosses the cut of a top in halves in a training round, and comes back; empty for any other top."""
        if not isinstance(self.top, HalvedTop) or self.roster.active is None:
            return ()
        work = self._active_work or work_of(self.top.active, (self.top.cut,), input_gradient=True)
        self._active_work = work
        elements = torch.zeros(self.roster.parties, dtype=torch.int64)
        elements[self.roster.active] = rows * self.top.cut
        nothing = torch.zeros(self.roster.parties, dtype=torch.float64)
        flops = nothing.clone()
        flops[self.roster.active] = (work.forward + work.backward) * rows
        there = Leg(ACTIVATIONS, "parties", elements, FLOAT_BITS, nothing)
        return there, Leg(GRADIENTS, "server", elements, FLOAT_BITS, flops)

    def cut_of_evaluation(self, rows: int, stage: Stage) -> tuple[Leg, ...]:
        """What crosses the cut in a round of evaluation, under a kind of its own."""
        return tuple(replace(leg, kind=f"{stage} {leg.kind}") for leg in self.cut(rows)[:1])

    def legs(self, rows: int) -> tuple[Leg, ...]:
        """The aggregator's legs in a round of ``rows`` (coded) rows."""
        if rows not in self._legs:
            self._legs[rows] = self.wire.legs(rows, self.widths, self.basis_widths(), self.roster)
        return self._legs[rows]

    def work(self) -> tuple[list[Work], Work]:
        """FLOPs for one record: of each party's bottom, and of the top."""
        if self._work is None:
            server = self.top.server if isinstance(self.top, HalvedTop) else self.top
            top = work_of(server, (self.top_width,), input_gradient=True)
            bottoms = works_of(self.bottoms.parties, list(self.shapes))
            if self.aggregator.form is LinearForms:  # no party runs its bottom: a leg counts the products
                bottoms = [Work(0.0, work.backward) for work in bottoms]
            self._work = bottoms, top
        return self._work

    def updates(self) -> tuple[Leg, ...]:
        """The model updates of groups that share a bottom, and the bottoms that the server returns."""
        groups = self.roster.shared
        if not groups:
            return ()
        sizes = [sum(p.numel() for p in bottom.parameters()) for bottom in self.bottoms.parties]
        elements = torch.zeros(len(sizes), dtype=torch.int64)
        for party in (m for group in groups for m in group):
            elements[party] = sizes[party]
        nothing = torch.zeros(len(sizes), dtype=torch.float64)
        up = Leg("model updates", "server", elements, shared_bottoms_of(self.aggregator).bits, nothing)
        return up, Leg("shared bottoms", "parties", elements, FLOAT_BITS, nothing)

    def basis_widths(self) -> tuple[int, ...]:
        """(M,) widths of the expanded features, for aggregators of ``LinearForms``; empty for others."""
        if self.aggregator.form is not LinearForms:
            return ()
        if self._basis is None:
            networks: list[Any] = list(self.bottoms.parties)
            self._basis = tuple(len(network.weight) for network in networks)
        return self._basis

    def know(self) -> None:
        """Compute what depends on the networks, so that they are not needed any more."""
        self.work()
        self.cut(1)
        self.basis_widths()


def labels_leg(rows: int, roster: Roster) -> tuple[Leg, ...]:
    """The labels of a batch, from the active party to the server; no leg if the server holds the labels."""
    if roster.active is None:
        return ()
    elements = torch.zeros(roster.parties, dtype=torch.int64)
    elements[roster.active] = rows
    nothing: Tensor = torch.zeros(roster.parties, dtype=torch.float64)
    return (Leg("labels", "server", elements, FLOAT_BITS, nothing, gate=Gate.PREVIOUS),)
