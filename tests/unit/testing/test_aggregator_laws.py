"""Every law of aggregators finds an aggregator that breaks it, and names law and numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from lightning_vfl.aggregators import (
    Aggregator,
    Concat,
    Mean,
    PartySide,
    PoissonBinomial,
    ServerSide,
    Sum,
    Traits,
)
from lightning_vfl.aggregators.clear import ClearParty, EmbeddingWire, PlainServer
from lightning_vfl.aggregators.messages import gradients_in
from lightning_vfl.testing import LawBroken, aggregator_laws, check_aggregator
from lightning_vfl.testing.rounds import Subject
from lightning_vfl.wire import Message
from tests.device_laws import another_device_gives_the_same_value


def no_change(h, *_):
    return h


@dataclass(frozen=True)
class Party(PartySide):
    """Sends what ``change`` makes of an embedding."""

    change: Callable[..., Any] = no_change
    factor: float = 1.0
    by_place: bool = False
    noted: Any = None

    def upload(self, contribution, view):
        h = [self.change(x.detach(), i, view.parties[i], view) for i, x in enumerate(contribution.leaves)]
        yield Message("embeddings", "server", view.parties, tuple(h), round=view.names)

    def carry(self, answer, contribution, view):
        if self.by_place:
            return answer.pieces[: len(view.parties)] or tuple(map(torch.zeros_like, contribution.leaves))
        return tuple(self.factor * g for g in gradients_in(answer, contribution.leaves, view))


@dataclass(frozen=True)
class Flat(ServerSide):
    """Of embeddings in one row."""

    def decode(self, messages, view):
        h = tuple(x.view(len(view.rows.ids), -1) for x in messages[0].pieces)
        return PlainServer(Mean()).decode((replace(messages[0], pieces=h),), view)

    def answer(self, grad, aggregate, view):
        return PlainServer(Mean()).answer(grad, aggregate, view)


@dataclass(frozen=True)
class Wired(EmbeddingWire):
    party: Callable[[], PartySide] = Party
    server: Callable[[], ServerSide] = lambda: PlainServer(Mean())
    joined: Aggregator = field(default_factory=Mean)
    visible: bool = True
    bits: int = 32

    @property
    def traits(self):
        return Traits(self.visible, loses_quietly=True)

    def legs(self, rows, widths, basis, roster):
        return tuple(replace(leg, bits=self.bits) for leg in EmbeddingWire.legs(self, rows, widths, basis, roster))

    def protection(self, uploads):
        return None

    def party_side(self):
        return self.party()

    def server_side(self):
        return self.server()

    def clear(self, contribution, view, roll):
        return PlainServer(self.joined).aggregate(contribution.leaves, roll, view.present)


class WiredMean(Mean):
    """The mean over a wire with one fault."""

    def __init__(self, **fault):
        self._wire = Wired(**fault)

    @property
    def wire(self):
        return self._wire


class ForEverybody(Mean):
    def plain(self, h, roll, present=None):
        return torch.stack(h).mean(0)


class IgnoringHolders(Mean):
    def plain(self, h, roll, present=None):
        return Mean().plain(h, roll)


class Growing(Mean):
    """Another value in every call."""

    def __init__(self):
        self._calls = []

    def plain(self, h, roll, present=None):
        self._calls.append(0)
        return Mean().plain(h, roll, present) * len(self._calls)


class WrongColumns(Mean):
    def columns(self, widths, roll):
        return torch.ones(7, dtype=torch.bool)


class Unprintable(Mean):
    def __init__(self):
        self.rule = object()


class Narrow(Mean):
    def out_width(self, width, roster):
        return width + 1


class Wide(Mean):
    """In float64."""

    def plain(self, h, roll, present=None):
        return Mean().plain(h, roll, present).double()


class Centred(Mean):
    """A row depends on the other rows."""

    def plain(self, h, roll, present=None):
        value = Mean().plain(h, roll, present)
        return value - value.mean(0)


class WithoutNoise(Mean):
    """It charges rounds in which nothing is random."""

    @property
    def accounting(self):
        return PoissonBinomial().accounting


class LeftBehind(Mean):
    """A tensor stays on the CPU."""

    def plain(self, h, roll, present=None):
        value = Mean().plain(h, roll, present)
        return value * torch.ones(value.shape[1])


class LeftOnTheServer(Mean):
    """The aggregate stays on the CPU."""

    def plain(self, h, roll, present=None):
        return Mean().plain(tuple(x.cpu() for x in h), roll, present)


class Remembering:
    """A party side factory whose sides add the error of their last round."""

    def __call__(self):
        kept = {}

        def change(h, place, party, view):
            h = h + kept.get(party, 0.0)
            kept[party] = h - h.round()
            return h.round()

        return Party(change)


NOTES: list[int] = []


def noting(h, *_):
    NOTES.append(0)
    return h


BROKEN = {
    "messages decode to clear": [lambda: WiredMean(joined=Sum())],
    "a round is plain": [lambda: WiredMean(server=lambda: PlainServer(Sum()), joined=Sum()), Narrow, Wide],
    "a record changes its own row alone": [Centred],
    "columns fit the value": [WrongColumns],
    "answer and carry are the adjoint of plain": [lambda: WiredMean(party=lambda: Party(factor=2.0))],
    "uncounted parties change nothing and learn nothing": [ForEverybody],
    "rows that a party does not hold do not count": [IgnoringHolders],
    "what is charged has noise": [WithoutNoise],
    "the short way is the way through messages": [Growing],
    "messages fit their legs": [lambda: WiredMean(bits=16)],
    "hosting together is hosting alone": [lambda: WiredMean(party=lambda: Party(lambda h, place, *_: h + place))],
    "carrying together is carrying alone": [lambda: WiredMean(party=lambda: Party(by_place=True))],
    "visible is what the code does": [
        lambda: WiredMean(visible=False),
        lambda: WiredMean(visible=False, party=lambda: Party(lambda h, *_: -3 * h.half().float() + 1)),
        lambda: WiredMean(server=Flat, party=lambda: Party(lambda h, *_: h.view(1, -1))),
    ],
    "hidden embeddings are not handed over": [
        lambda: WiredMean(visible=False, server=Flat, party=lambda: Party(lambda h, *_: h.view(1, -1)))
    ],
    "the sides share no mutable object": [lambda: WiredMean(party=lambda: Party(noting, noted=NOTES))],
    "nothing is kept between rounds": [lambda: WiredMean(party=Remembering())],
    "the printed form names the settings": [Unprintable],
}


def broken_law(aggregator, name):
    (law,) = [law for law in aggregator_laws(aggregator) if law.name == name]
    with pytest.raises(LawBroken) as error:
        law()
    return str(error.value)


@pytest.mark.parametrize("name", BROKEN)
def test_a_law_finds_who_breaks_it(name):
    for make in BROKEN[name]:
        said = broken_law(make(), name)
        assert f"breaks the law '{name}': " in said
        assert "\n" not in said


@pytest.mark.parametrize("cls", [LeftBehind, LeftOnTheServer])
def test_the_law_about_devices_of_these_tests_finds_who_breaks_it(cls):
    with pytest.raises((LawBroken, RuntimeError), match="device"):
        another_device_gives_the_same_value(Subject(cls(), 4, 8, 1, 0.0, True))


def test_every_law_has_a_breaker_and_the_wire_of_the_breakers_is_sound_without_a_fault():
    assert [law.name for law in aggregator_laws(Mean())] == list(BROKEN)
    check_aggregator(WiredMean(party=ClearParty))
    check_aggregator(Concat(), parties=2, width=1)


def turned(h, *_):
    """A compressed form that has the shape of embeddings: random directions in place of the columns."""
    drawn = torch.randn(h.numel(), h.numel(), generator=torch.Generator().manual_seed(1))
    return (torch.linalg.qr(drawn).Q @ h.flatten()).view_as(h)


def test_what_has_the_form_of_embeddings_and_not_their_numbers_may_be_hidden():
    (law,) = [
        law
        for law in aggregator_laws(WiredMean(visible=False, party=lambda: Party(turned)))
        if law.name == "visible is what the code does"
    ]
    law()


def test_the_message_has_the_numbers():
    said = broken_law(ForEverybody(), "uncounted parties change nothing and learn nothing")
    assert "party 2 away: Tensor-likes are not equal! Mismatched elements: 40 / 40" in said
    assert "Greatest absolute difference: 25" in said
    with pytest.raises(LawBroken, match="its leg announces 16"):
        check_aggregator(WiredMean(bits=16))


def test_an_error_of_the_class_is_the_cause():
    class Raising(Mean):
        def plain(self, h, roll, present=None):
            raise KeyError("h")

    with pytest.raises(LawBroken, match="Raising breaks the law 'messages decode to clear': KeyError: 'h'") as error:
        check_aggregator(Raising())
    assert isinstance(error.value.__cause__, KeyError)
