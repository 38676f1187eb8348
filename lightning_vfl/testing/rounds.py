"""Rounds of a few parties in which the laws of aggregators are checked: records, contributions, views and legs."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.aggregators.parts import Heard, Opening, PartySide
from lightning_vfl.networks.polynomial import PolynomialNetwork
from lightning_vfl.rounds.ends import open_round
from lightning_vfl.rounds.exchange import Exchange, Sides
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import (
    Aggregate,
    Contribution,
    Embeddings,
    LinearForms,
    Message,
    PartyView,
    ServerView,
)

ROWS = (6, 0, 3, 1, 7)  # positions of the records of a round
RECORDS = 8
BASIS = 4  # width of the expanded features of ``SmallRecords``


class SmallRecords:
    """Records of M parties with one number each, on the grid of 2^-8; every party expands its own to degree three."""

    def __init__(self, parties: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        drawn = torch.randn(RECORDS, parties, generator=torch.Generator().manual_seed(2))
        self.x = ((drawn * 256).round() / 256 * 2).round() / 2  # in halves, so that the cubes are on the grid too
        self.networks = [PolynomialNetwork((1,), width, degree=3).to(dtype) for _ in range(parties)]
        self.dtype = dtype

    def __len__(self) -> int:
        return RECORDS

    def basis(self, party: int, ids: Tensor) -> Tensor:
        """(B, 4), the expanded feature of a party."""
        return self.networks[party].expand(self.x[ids, party : party + 1].to(self.dtype))


class Upload:
    """One round of hosted parties, leg by leg.

    Args:
        aggregator: the aggregator of the wire.
        contribution: of the hosted parties.
        view: of the hosted parties.
        side: their party side; None: a new one.

    ``first`` is the message of the first leg; ``then`` gives the next one.
    """

    def __init__(
        self, aggregator: Aggregator, contribution: Contribution, view: PartyView, side: PartySide | None = None
    ) -> None:
        self.view = view
        self.legs = (side or wire_of(aggregator).party_side()).upload(contribution, view)
        self.first = next(self.legs)

    def then(
        self, included: Tensor, received: Message | None = None, parties: tuple[int, ...] | None = None
    ) -> Message:
        """The next leg of these parties (None: of all hosted parties), after the last leg has been closed."""
        return self.legs.send(Heard(included, self.view.parties if parties is None else parties, received))


class Played(NamedTuple):
    """One round that has not been run yet."""

    aggregator: Aggregator
    contribution: Contribution
    parties: PartyView
    server: ServerView

    def exchange(self, sides: Sides | None = None) -> Exchange:
        """The round, as the protocols run it; ``sides``: None for new ones."""
        return Exchange(self.aggregator, self.contribution, self.parties, self.server, sides=sides)

    def messages(self) -> tuple[list[Message], Aggregate]:
        """All messages of the parties in a round in which all answer, and the server's aggregate."""
        upload, included = Upload(self.aggregator, self.contribution, self.parties), self.server.roll.included
        messages: list[Message] = []
        message: Message | None = upload.first
        while message is not None:
            messages.append(message)
            received = message if message.to == "peers" or message.relayed else None
            try:
                message = upload.then(included, received)
            except StopIteration:
                message = None
        to_decode = tuple(message for message in messages if message.to == "server" and not message.relayed)
        return messages, wire_of(self.aggregator).server_side().decode(to_decode, self.server)


@dataclass(frozen=True)
class Subject:
    """An aggregator under test.

    Args:
        aggregator: an object of the class.
        parties: M.
        width: D, the embedding width that every party is asked for.
        fewest: the fewest included parties that the aggregator has to join.
        error: how far a number of the aggregate may be from ``plain``, where the aggregator has a wire.
        partly_held: whether the aggregator has to join records that some parties do not hold.
    """

    aggregator: Aggregator
    parties: int
    width: int
    fewest: int
    error: float
    partly_held: bool

    @cached_property
    def roster(self) -> Roster:
        """M parties, each a group of its own."""
        return Roster.singles(self.parties)

    @cached_property
    def bound(self) -> Aggregator:
        """The aggregator for these parties."""
        return self.aggregator.among(self.roster)

    @cached_property
    def rolls(self) -> dict[str, Roll]:
        """Rolls that the aggregator has to accept, by a name for messages."""
        m, middle = self.parties, self.parties // 2
        away = {
            "everyone included": (),
            f"party {middle} away": (middle,),
            f"parties {middle - 1} and {middle} away": (middle - 1, middle),
            f"only party {middle} included": tuple(p for p in range(m) if p != middle),
            "nobody included": tuple(range(m)),
        }
        wire = wire_of(self.bound)
        needed = wire.needed(m)
        found: dict[str, Roll] = {}
        for name, missing in away.items():
            there = torch.tensor([p not in missing for p in range(m)])
            count = int(there.sum())
            usable = torch.equal(wire.takes_part(there, there, self.roster), there)
            if usable and count >= self.fewest and (needed == 1 or count >= needed):
                found[name] = Roll.of(there)
        return found

    @property
    def partly(self) -> tuple[str, Roll]:
        """A roll with a missing party, if the aggregator has to accept one; else the roll of everyone."""
        name = list(self.rolls)[min(1, len(self.rolls) - 1)]
        return name, self.rolls[name]

    @cached_property
    def random(self) -> bool:
        """Whether two uploads of the same numbers differ: secrets or noise that no seed fixes."""
        rounds = (self.play(), self.play())
        uploads = [Upload(one.aggregator, one.contribution, one.parties).first.pieces for one in rounds]
        return not all(torch.equal(a, b) for a, b in zip(*uploads, strict=True))

    def play(
        self,
        roll: Roll | None = None,
        present: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        hosted: Iterable[int] | None = None,
        number: int = 0,
    ) -> Played:
        """A new round under new secrets, with the same numbers every time.

        Args:
            roll: the roll of the round; None: everyone.
            present: (B, M) bool, the rows that each party holds; None: all.
            dtype: of the embeddings.
            hosted: the parties of this process; None: all.
            number: of the round.
        """
        aggregator = deepcopy(self.aggregator).among(self.roster)
        roll = roll or Roll.everyone(self.parties)
        members = tuple(range(self.parties) if hosted is None else hosted)
        view = self.view(aggregator, members, roll.called, present, number)
        contribution = self.contribution(aggregator, members, dtype)
        widths = aggregator.widths(self.width, self.roster)
        seen = present if wire_of(aggregator).traits.visible else None
        server = ServerView(view.names, self.roster, view.rows, roll, widths, seen, RECORDS, view.agreed)
        return Played(aggregator, contribution, view, server)

    def contribution(
        self, aggregator: Aggregator, parties: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> Contribution:
        """The contribution of these parties, with leaves that need gradients; the same numbers for any others."""
        generator, ids = torch.Generator().manual_seed(0), torch.tensor(ROWS)
        widths = aggregator.widths(self.width, self.roster)
        if aggregator.form is LinearForms:
            records = SmallRecords(self.parties, widths[0], dtype)
            weights = [torch.randn(BASIS, w, generator=generator, dtype=dtype) for w in widths]
            leaves = tuple(weights[m].requires_grad_() for m in parties)
            return LinearForms(leaves, tuple(records.basis(m, ids) for m in parties))
        h = [torch.randn(len(ROWS), w, generator=generator, dtype=dtype) for w in widths]
        return Embeddings(tuple(h[m].requires_grad_() for m in parties))

    def view(
        self, aggregator: Aggregator, parties: tuple[int, ...], called: Tensor, present: Tensor | None, number: int = 0
    ) -> PartyView:
        """The view of these hosted parties, after their set-up or the opening of the round."""
        names, rows = RoundNames(0, Stage.FIT, number), Rows(torch.tensor(ROWS), 0, len(ROWS))
        agreed = self._agreed(aggregator)
        view = PartyView(names, self.roster, parties, called, rows, None, present, agreed)
        everyone = PartyView(names, self.roster, tuple(range(self.parties)), called, rows, None, None, agreed)
        if aggregator.opening is not None:
            return replace(view, memory=_opened(aggregator.opening, view, everyone))
        if (setup := aggregator.setup) is None:
            return view
        records, basis = SmallRecords(self.parties, self.width), (BASIS,) * self.parties
        memory = setup.empty_memory(RECORDS, basis, view)
        for message in setup.offer(records, setup.empty_memory(RECORDS, basis, everyone), everyone):
            memory = setup.accept(memory, message, view)
        return replace(view, memory=memory)

    def _agreed(self, aggregator: Aggregator) -> Mapping[str, int]:
        """The public settings of the set-up."""
        if (setup := aggregator.setup) is None:
            return {}
        records = SmallRecords(self.parties, self.width)
        everyone = self.contribution(aggregator, tuple(range(self.parties)))
        proposals = [setup.propose(records, m, w.detach(), self.roster) for m, w in enumerate(everyone.leaves)]
        return setup.settle(proposals)


def embeddings(contribution: Contribution, leaves: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """The embeddings that these leaves (None: those of the contribution) stand for."""
    leaves = contribution.leaves if leaves is None else leaves
    if isinstance(contribution, LinearForms):
        return tuple(basis @ weight for basis, weight in zip(contribution.basis, leaves, strict=True))
    return leaves


def with_leaves(contribution: Contribution, leaves: tuple[Tensor, ...]) -> Contribution:
    """The same contribution with other leaves."""
    return LinearForms(leaves, contribution.basis) if isinstance(contribution, LinearForms) else Embeddings(leaves)


def _opened(opening: Opening, view: PartyView, everyone: PartyView) -> Any:
    """The memory of these hosted parties, after they have received all messages of the beginning of a round."""
    if view.parties == everyone.parties:
        return open_round(opening, opening.empty_memory(view), view)
    own, everybodys = (opening.empty_memory(v) for v in (view, everyone))
    sent = opening.open(own, view)
    for message in opening.open(everybodys, everyone):
        next(sent, None)
        everybodys = opening.accept(everybodys, message, everyone)
        own = opening.accept(own, message, view)
    return own
