"""Messages of one round of every aggregator, each spoilt in every way that a receiver could notice.

``python -m tests.attacks formats`` counts what becomes of them; ``test_malformed.py`` holds the code to it.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators import Aggregator, MaskedSum, Opening, PoissonBinomial, Setup
from lightning_vfl.aggregators.secure.integer_sum import IntegerSum
from lightning_vfl.testing.rounds import RECORDS, SmallRecords, Subject, Upload
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import LinearForms, Message, PartyView, ServerView

from .sides import decoded, second_leg
from .test_contract import FACTORIES, B, D, M

FIRST, SECOND = RoundNames(0, Stage.FIT, 0), RoundNames(0, Stage.FIT, 1)
SUBJECTS: dict[str, tuple[Callable[[], Aggregator], Roster]] = {
    name: (make, Roster.singles(M)) for name, make in FACTORIES.items()
} | {  # with an active party, whose record ids are sealed
    "MaskedSum, segments": (lambda: MaskedSum("segments", insecure_seeded_secrets=True), Roster.singles(M, active=0)),
    "PoissonBinomial, with recovery": (  # a small ring
        lambda: PoissonBinomial(MaskedSum(recovery="auto", insecure_seeded_secrets=True), clip=8.0, draws="seeded"),
        Roster.singles(M),
    ),
    "MaskedSum, recovery and ids": (
        lambda: MaskedSum(recovery="auto", insecure_seeded_secrets=True),
        Roster.singles(M, active=0),
    ),
}
# what no receiver can tell: it is of the right form, and another honest party could have sent it
UNNOTICEABLE = {"pieces swapped"}
Mutation = Callable[[Message], Message]


@dataclass
class Delivery:
    """One message of a round on its way.

    Args:
        message: what was sent.
        go_on: the value of the round, with another message in its place.
        before: the message of the same kind in the round before; None: there is none.
    """

    message: Message
    go_on: Callable[[Message], Tensor]
    before: Message | None


class Play:
    """Two rounds of an aggregator, played message by message; ``spoil`` may change those of the second.

    Args:
        name: of the subject.
        spoil: given the number of the message of set-up, or of the beginning of the round, and the message.
    """

    def __init__(self, name: str, spoil: Callable[[int, Message], Message] = lambda number, message: message) -> None:
        make, self.roster = SUBJECTS[name]
        self.aggregator = make().among(self.roster)
        self.memory: Any = None
        self.opening: list[Message] = []
        self.spoil = spoil
        self.agreed = {"l_w": 14} if self.aggregator.form is LinearForms else {}
        if (setup := self.aggregator.setup) is not None:
            view = self.view(FIRST)
            self.memory = setup.empty_memory(RECORDS, (4,) * M, view)
            self.hear(setup, setup.offer(SmallRecords(M, D), self.memory, view), view, True)

    def view(self, names: RoundNames) -> PartyView:
        rows = Rows(torch.tensor([6, 0, 3, 1, 7]), 0, B)
        called = torch.ones(M, dtype=torch.bool)
        return PartyView(names, self.roster, tuple(range(M)), called, rows, self.memory, None, self.agreed)

    def hear(self, part: Setup | Opening, messages: Iterator[Message], view: PartyView, spoilt: bool) -> None:
        for message in messages:
            given = self.spoil(len(self.opening), message) if spoilt else message
            self.opening += [message] if spoilt else []
            self.memory = part.accept(self.memory, given, view)

    def begin(self, names: RoundNames, spoilt: bool) -> PartyView:
        view = self.view(names)
        if (opening := self.aggregator.opening) is not None:
            if self.memory is None:
                self.memory = opening.empty_memory(view)
            self.hear(opening, opening.open(self.memory, view), self.view(names), spoilt)
        return self.view(names)

    def round(self, names: RoundNames, spoilt: bool = False) -> list[tuple[Message, Callable[[Message], Tensor]]]:
        """The messages after the beginning of a round, each with how the round goes on from it."""
        aggregator, everybody = self.aggregator, torch.ones(M, dtype=torch.bool)
        view = self.begin(names, spoilt)
        contribution = Subject(aggregator, M, D, 1, 0.0, True).contribution(aggregator, tuple(range(M)))
        widths = aggregator.widths(D, self.roster)
        if aggregator.form is not LinearForms and len({*widths}) > 1:  # one party's is wider
            leaves = [h[:, :1].expand(-1, w) for h, w in zip(contribution.leaves, widths, strict=True)]
            contribution = replace(contribution, leaves=tuple(leaves))
        server = ServerView(names, self.roster, view.rows, Roll.of(everybody), widths, None, RECORDS, self.agreed)
        upload = Upload(aggregator, contribution, view)
        first = upload.first

        def value_of(*messages: Message) -> Tensor:
            return decoded(aggregator, messages, server).value

        if first.to == "peers":

            def answered(message: Message) -> Message:
                return second_leg(aggregator, contribution, view, message, everybody)

            second = upload.then(everybody, first)
            return [(first, lambda message: value_of(answered(message))), (second, value_of)]
        if not isinstance(aggregator, IntegerSum) or aggregator._layer.recovery is None:
            return [(first, value_of)]
        layer, signed = aggregator._layer, upload.then(everybody)
        revealed = upload.then(everybody, signed)
        return [  # a party masks a round once, so the layer alone is asked again
            (signed, lambda message: value_of(first, layer.reveal(everybody, view, message))),
            (first, lambda message: value_of(message, revealed)),
            (revealed, lambda message: value_of(first, message)),
        ]


def _value_with(name: str, place: int, given: Message) -> Tensor:
    """The value of a round in which this is what comes at a place of set-up or of the round's beginning."""
    play = Play(name, lambda number, message: given if number == place else message)
    message, go_on = play.round(FIRST, spoilt=True)[-1]
    return go_on(message)


def deliveries(name: str) -> list[Delivery]:
    """All messages of a round, those of set-up and of its beginning first."""
    play = Play(name)
    before = play.round(FIRST, spoilt=True)
    found = []
    for place, message in enumerate(play.opening):
        found.append(Delivery(message, partial(_value_with, name, place), None))
    now = play.round(SECOND)
    found += [Delivery(message, go_on, old) for (message, go_on), (old, _) in zip(now, before, strict=True)]
    return found


# ---- how a message may be spoilt


def _piece(message: Message, place: int, change: Callable[[Tensor], Any]) -> Message:
    pieces = list(message.pieces)
    pieces[place] = change(pieces[place].clone())
    return replace(message, pieces=tuple(pieces))


def _put(number: Any) -> Callable[[Tensor], Tensor]:
    def change(piece: Tensor) -> Tensor:
        piece.view(-1)[0] = number
        return piece

    return change


def mutations(message: Message, before: Message | None, place: int = 0) -> dict[str, Message]:
    """Spoilt copies of a message, by what was done to the piece at this place."""
    piece, senders = message.pieces[place], message.senders
    without = [i for i in range(len(senders)) if i != place]
    changes: dict[str, Callable[[Tensor], Any]] = {
        "a row less": lambda x: x[..., :-1, :] if x.dim() > 1 else x[:-1],
        "a column less": lambda x: x[..., :-1],
        "a column more": lambda x: torch.cat([x, x[..., :1]], -1),
        "one receiver less": lambda x: x[1:],
        "flattened": lambda x: x.flatten() if x.dim() > 1 else x[None],
        "one dimension more": lambda x: x[None],
        "turned": lambda x: x.transpose(-1, -2) if x.dim() > 1 and x.shape[-1] != x.shape[-2] else x[:, None],
        "empty": lambda x: x[:0],
        "one number": lambda x: x.view(-1)[0],
        "float64": lambda x: x.double() if x.dtype != torch.float64 else x.float(),
        "float16": lambda x: x.half(),
        "int32": lambda x: x.to(torch.int32),
        "int64": lambda x: x.to(torch.int64) if x.dtype != torch.int64 else x.to(torch.int16),
        "uint8": lambda x: x.to(torch.uint8) if x.dtype != torch.uint8 else x.to(torch.int8),
        "bool": lambda x: x.to(torch.bool),
        "complex": lambda x: x.to(torch.complex64),
        "sparse": lambda x: x.to_sparse() if x.dtype != torch.uint32 else x.to(torch.int64).to_sparse(),
        "a list": lambda x: x.tolist(),
        "nothing": lambda x: None,
    }
    if piece.is_floating_point():
        numbers = {"NaN": float("nan"), "infinity": float("inf"), "minus infinity": -float("inf")}
    elif piece.dtype == torch.int64:
        numbers = {
            "minus one": -1,
            "p": 2**31 - 1,
            "2^32": 2**32,
            "2^62": 2**62,
            "-2^63": -(2**63),
            "2^63 - 1": 2**63 - 1,
        }
    else:
        numbers = {}
    changes |= {name: _put(number) for name, number in numbers.items()}
    spoilt = {name: _piece(message, place, change) for name, change in changes.items()}
    spoilt |= {
        "another kind": replace(message, kind="greetings"),
        "another destination": replace(message, to="peers" if message.to == "server" else "server"),
        "a sender less": replace(
            message, senders=tuple(senders[i] for i in without), pieces=tuple(message.pieces[i] for i in without)
        ),
        "nobody": replace(message, senders=(), pieces=()),
        "a sender twice": replace(message, senders=(*senders, senders[place]), pieces=(*message.pieces, piece)),
        "a sender in another's place": replace(
            message, senders=tuple(senders[place - 1] if i == place else s for i, s in enumerate(senders))
        ),
        "an unknown sender more": replace(message, senders=(*senders, M), pieces=(*message.pieces, piece)),
        "an unknown sender": replace(message, senders=tuple(M if i == place else s for i, s in enumerate(senders))),
        "a negative sender": replace(message, senders=tuple(-1 if i == place else s for i, s in enumerate(senders))),
        "a piece less": replace(message, pieces=message.pieces[:-1]),
        "a piece more": replace(message, pieces=(*message.pieces, piece)),
    }
    if len(senders) > 1:
        swapped = list(message.pieces)
        swapped[place], swapped[place - 1] = swapped[place - 1], swapped[place]
        spoilt["pieces swapped"] = replace(message, pieces=tuple(swapped))
    if before is not None:
        spoilt["of the round before"] = before
    if hasattr(message, "round") and message.round is not None:
        spoilt["of another stage"] = replace(message, round=message.round._replace(stage=Stage.VALIDATION))
    if message.to == "peers":
        spoilt["for other receivers"] = replace(message, receivers=(0, 2, 3))
        spoilt["for one receiver twice"] = replace(message, receivers=(0, 1, 1, 3))
    if message.kind in ("record ids", "seed shares"):  # sealed: any bit
        spoilt["one bit"] = _piece(message, place, _flip)
    if message.alongside is None:
        spoilt["something alongside"] = replace(message, alongside=replace(message, alongside=None))
    else:
        spoilt["nothing alongside"] = replace(message, alongside=None)
        own = None if before is None else before.alongside
        inner = mutations(message.alongside, own, place)
        spoilt |= {f"alongside: {name}": replace(message, alongside=m) for name, m in inner.items()}
    return spoilt


def _flip(x: Tensor) -> Tensor:
    x[(1, 20) if x.dim() > 1 else 20] ^= 1
    return x


# ---- what becomes of it

_NAMED = re.compile(r"part(y|ies) \[?[\d-]")


def outcome(delivery: Delivery, spoilt: Message, honest: Tensor) -> str:
    """What becomes of a spoilt message.

    Returns:
        ``refused``: an error that names a party; ``harmless``: the honest value, bit for bit; ``not named``: another
        error; ``wrong``: another value, without an error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = delivery.go_on(spoilt)
    except (ValueError, RuntimeError) as error:
        return "refused" if _NAMED.search(str(error)) else "not named"
    except Exception:
        return "not named"
    return "harmless" if value.dtype == honest.dtype and torch.equal(value, honest) else "wrong"


def fuzzed(name: str) -> Iterator[tuple[str, str, str]]:
    """Kind of message, what was done to it, and what became of it, for every message of an aggregator."""
    for delivery in deliveries(name):
        honest = delivery.go_on(delivery.message)
        place = len(delivery.message.senders) - 1
        for what, spoilt in mutations(delivery.message, delivery.before, place).items():
            yield delivery.message.kind, what, outcome(delivery, spoilt, honest)
