"""Rounds of a few parties in which the laws of aggregators are checked: records, contributions, views and legs."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
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
from lightning_vfl.rounds.exchange import Exchange, Sides, open_round
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Rows, Stage, Tensors
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

    def then(self, included: Tensor, received: Message | None = None, parties: Parties | None = None) -> Message:
        """The next leg of these parties (None: of all hosted parties), after the last leg has been closed."""
        return self.legs.send(Heard(included, self.view.parties if parties is None else parties, received))


class Played(NamedTuple):
    """One round that has not been run yet."""

    aggregator: Aggregator
    contribution: Contribution
    parties: PartyView
    server: ServerView

    def plain(self, h: Tensors | None = None, present: Tensor | None = None) -> Tensor:
        """``plain`` of these embeddings; None: of those of the round."""
        h = embeddings(self.contribution) if h is None else h
        return self.aggregator.plain(h, self.server.roll, present)

    def exchange(self, sides: Sides | None = None) -> Exchange:
        """The round, as the protocols run it; ``sides``: None for new ones."""
        return Exchange(self.aggregator, self.contribution, self.parties, self.server, sides=sides)

    def first(self) -> Message:
        """The message of the first leg."""
        return Upload(self.aggregator, self.contribution, self.parties).first

    def messages(self) -> tuple[list[Message], Aggregate]:
        """All messages of the parties in a round in which all answer, and the server's aggregate."""
        upload = Upload(self.aggregator, self.contribution, self.parties)
        messages = [upload.first]
        with suppress(StopIteration):
            while True:
                last = messages[-1]
                received = last if last.to == "peers" or last.relayed else None
                messages.append(upload.then(self.server.roll.included, received))
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
        m = self.parties
        middle = self.parties // 2
        away = {
            "everyone included": (),
            f"party {middle} away": (middle,),
            f"parties {middle - 1} and {middle} away": (middle - 1, middle),
            f"only party {middle} included": tuple(p for p in range(m) if p != middle),
            "nobody included": tuple(range(m)),
        }
        wire = wire_of(self.bound)
        needed = wire.needed(m)
        rolls: dict[str, Roll] = {}
        for name, missing in away.items():
            there = torch.tensor([p not in missing for p in range(m)])
            count = int(there.sum())
            usable = torch.equal(wire.takes_part(there, there, self.roster), there)
            if usable and count >= self.fewest and (needed == 1 or count >= needed):
                rolls[name] = Roll.of(there)
        return rolls

    def rounds(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Played]]:
        """A round with each of the rolls, and the name of the roll."""
        for name, roll in self.rolls.items():
            yield name, self.play(roll, dtype=dtype)

    @property
    def partly(self) -> tuple[str, Roll]:
        """A roll with a missing party, if the aggregator has to accept one; else the roll of everyone."""
        name = list(self.rolls)[min(1, len(self.rolls) - 1)]
        return name, self.rolls[name]

    @cached_property
    def random(self) -> bool:
        """Whether two uploads of the same numbers differ: secrets or noise that no seed fixes."""
        once = self.play()
        again = self.play()
        pairs = zip(once.first().pieces, again.first().pieces, strict=True)
        return not all(torch.equal(a, b) for a, b in pairs)

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
        self, aggregator: Aggregator, parties: Parties, dtype: torch.dtype = torch.float32
    ) -> Contribution:
        """The contribution of these parties, with leaves that need gradients; the same numbers for any others."""
        generator = torch.Generator().manual_seed(0)
        widths = aggregator.widths(self.width, self.roster)
        linear = aggregator.form is LinearForms
        rows = BASIS if linear else len(ROWS)
        numbers = [torch.randn(rows, width, generator=generator, dtype=dtype) for width in widths]
        leaves = tuple(numbers[m].requires_grad_() for m in parties)
        if not linear:
            return Embeddings(leaves)
        records = SmallRecords(self.parties, widths[0], dtype)
        return LinearForms(leaves, tuple(records.basis(m, torch.tensor(ROWS)) for m in parties))

    def view(
        self, aggregator: Aggregator, parties: Parties, called: Tensor, present: Tensor | None, number: int = 0
    ) -> PartyView:
        """The view of these hosted parties, after their set-up or the opening of the round."""
        names = RoundNames(0, Stage.FIT, number)
        rows = Rows(torch.tensor(ROWS), 0, len(ROWS))
        agreed = self._agreed(aggregator)
        view = PartyView(names, self.roster, parties, called, rows, None, present, agreed)
        everyone = replace(view, parties=tuple(range(self.parties)), present=None)
        if aggregator.opening is not None:
            return replace(view, memory=_opened(aggregator.opening, view, everyone))
        setup = aggregator.setup
        if setup is None:
            return view
        records = SmallRecords(self.parties, self.width)
        basis = (BASIS,) * self.parties
        memory = setup.empty_memory(RECORDS, basis, view)
        for message in setup.offer(records, setup.empty_memory(RECORDS, basis, everyone), everyone):
            memory = setup.accept(memory, message, view)
        return replace(view, memory=memory)

    def _agreed(self, aggregator: Aggregator) -> Mapping[str, int]:
        """The public settings of the set-up."""
        setup = aggregator.setup
        if setup is None:
            return {}
        records = SmallRecords(self.parties, self.width)
        everyone = self.contribution(aggregator, tuple(range(self.parties)))
        proposals = [setup.propose(records, m, w.detach(), self.roster) for m, w in enumerate(everyone.leaves)]
        return setup.settle(proposals)


def embeddings(contribution: Contribution, leaves: Tensors | None = None) -> Tensors:
    """The embeddings that these leaves (None: those of the contribution) stand for."""
    leaves = contribution.leaves if leaves is None else leaves
    if isinstance(contribution, LinearForms):
        return tuple(basis @ weight for basis, weight in zip(contribution.basis, leaves, strict=True))
    return leaves


def with_leaves(contribution: Contribution, leaves: Tensors) -> Contribution:
    """The same contribution with other leaves."""
    return LinearForms(leaves, contribution.basis) if isinstance(contribution, LinearForms) else Embeddings(leaves)


def _opened(opening: Opening, view: PartyView, everyone: PartyView) -> Any:
    """The memory of these hosted parties, after they have received all messages of the beginning of a round."""
    if view.parties == everyone.parties:
        return open_round(opening, opening.empty_memory(view), view)
    memory = opening.empty_memory(view)
    memory_of_all = opening.empty_memory(everyone)
    sent = opening.open(memory, view)
    for message in opening.open(memory_of_all, everyone):
        next(sent, None)
        memory_of_all = opening.accept(memory_of_all, message, everyone)
        memory = opening.accept(memory, message, view)
    return memory


def parts_of(messages: Iterable[Message]) -> Iterator[Message]:
    """All messages, each followed by the message alongside it."""
    for message in messages:
        yield message
        if message.alongside is not None:
            yield message.alongside
