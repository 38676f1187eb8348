"""Every field that one process of a federation sends and another one uses: who may send it, and what it may be.

``REQUESTS`` are fields of a party for the server, ``ANSWERS`` fields of the server for a party, ``LETTER`` those of a
message that either carries. The receiving code reads these tables: ``Hub`` before it reads the tensors of a request,
``Link`` for an answer, ``letters`` for a message. Otherwise:

- a request with a field that is not in its table, has another value, or is sent by another party is refused: nothing of
  it is used, the server prints a line with the sender's name, and the sender ends with this line;
- an answer of the server that breaks its table ends the party, with a line that names the server;
- a message that another party has sealed is refused with the number of that party.

Tensors have no names. Their number, dtypes and sizes are listed in a frame, and are compared with ``Limits.frame``
before memory is allocated. ``attendance.misfit`` compares uploads with the planned leg (shape, dtype, finite numbers up
to ``Limits.value``), labels with the batch, and gradients at the cut of a top with its width. ``AtParty.refuse_absurd``
compares what the server answers; the aggregators compare what parties send to each other.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import isfinite, prod
from typing import Any, NamedTuple

from lightning_vfl.errors import ConfigurationError, MalformedFrame, MalformedMessage, printable
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.types import Stage

MOST_PARTIES = 62
COUNT = 2**53  # whole numbers up to here are exact in every JSON reader


class Sender(StrEnum):
    """Who may send a field."""

    PARTY = "any party"
    LABELS = "the party with the labels"
    SERVER = "the server"


class Rule(NamedTuple):
    """What a field may be: in words, and as a function of the value and the federation."""

    words: str
    fits: Callable[[Any, Agreed], bool]


class Field(NamedTuple):
    """A field of a table; ``needed``: it is never left out."""

    sender: Sender
    rule: Rule
    needed: bool = False


Table = Mapping[str, Field]


# ---- rules


def whole(low: int, high: int) -> Rule:
    """A whole number from ``low`` to ``high``."""
    return Rule(f"a whole number from {low} to {high}", lambda value, _: type(value) is int and low <= value <= high)


def text(most: int) -> Rule:
    """A text without control characters."""
    return Rule(
        f"a text of up to {most} printable characters",
        lambda value, _: isinstance(value, str) and len(value) <= most and value.isprintable(),
    )


def digits(size: int) -> Rule:
    """So many bytes as hexadecimal digits."""
    return Rule(
        f"{2 * size} hexadecimal digits",
        lambda value, _: isinstance(value, str) and len(value) == 2 * size and not value.strip("0123456789abcdef"),
    )


def one_of(*words: str) -> Rule:
    """One of some texts."""
    return Rule(f"one of {', '.join(words)}", lambda value, _: isinstance(value, str) and value in words)


def maybe(rule: Rule) -> Rule:
    """As ``rule`` says, or nothing."""
    return Rule(f"{rule.words}, or null", lambda value, agreed: value is None or rule.fits(value, agreed))


def several(rule: Rule, most: int) -> Rule:
    """A list of up to ``most`` values."""
    return Rule(
        f"a list of up to {most} values, each {rule.words}",
        lambda value, agreed: (
            isinstance(value, list | tuple) and len(value) <= most and all(rule.fits(one, agreed) for one in value)
        ),
    )


def by_name(rule: Rule, most: int) -> Rule:
    """An object of up to ``most`` keys, which are printable texts."""
    name = text(500)
    return Rule(
        f"an object of up to {most} keys, each value {rule.words}",
        lambda value, agreed: (
            isinstance(value, Mapping)
            and len(value) <= most
            and all(name.fits(key, agreed) and rule.fits(one, agreed) for key, one in value.items())
        ),
    )


def _is_party(value: Any, agreed: Agreed) -> bool:
    return type(value) is int and 0 <= value < len(agreed.names)


def _are_parties(value: Any, agreed: Agreed) -> bool:
    listed = isinstance(value, list | tuple) and len(value) <= len(agreed.names)
    return listed and all(_is_party(one, agreed) for one in value) and len({*value}) == len(value)


def _is_shape(value: Any, agreed: Agreed) -> bool:
    sides = isinstance(value, list | tuple) and 1 <= len(value) <= 8 and all(type(one) is int for one in value)
    return sides and min(value) >= 1 and prod(value) <= agreed.limits.columns


def _are_keys(value: Any, agreed: Agreed) -> bool:
    numbers = {str(number) for number in range(len(agreed.names))}
    return isinstance(value, Mapping) and {*value} <= numbers and all(_is_key(one, agreed) for one in value.values())


def _is_key(value: Any, agreed: Agreed) -> bool:
    pair = isinstance(value, list | tuple) and len(value) == 2
    return pair and digits(32).fits(value[0], agreed) and _is_signature(value[1], agreed)


def _is_signature(value: Any, agreed: Agreed) -> bool:
    return value == "" or digits(64).fits(value, agreed)  # empty: a benchmark without identities


def _has(table: Table) -> Callable[[Any, Agreed], bool]:
    def fits(value: Any, agreed: Agreed) -> bool:
        return isinstance(value, Mapping) and wrong_field(value, table, agreed) is None

    return fits


def _is_letter(value: Any, agreed: Agreed) -> bool:
    return isinstance(value, Mapping) and wrong_field(value, LETTER, agreed) is None


FLAG = Rule("true or false", lambda value, _: type(value) is bool)
REAL = Rule("a number", lambda value, _: type(value) in (int, float))
FINITE = Rule("a finite number", lambda value, _: type(value) in (int, float) and isfinite(value))
COUNTED = whole(0, COUNT)
PARTY = Rule("the number of a party", _is_party)
PARTIES = Rule("different numbers of parties", _are_parties)
SHAPE = Rule("sizes from 1, whose product is at most limits.columns of federation.yaml", _is_shape)
KEY = Rule("a public key and its signature, in hexadecimal digits", _is_key)
KEYS = Rule("public keys and signatures, by the number of a party", _are_keys)
AT = Rule(
    "[round, stage, batch]",
    lambda value, _: (
        isinstance(value, list | tuple)
        and len(value) == 3
        and all(type(one) is int and -1 <= one <= COUNT for one in value)
        and 0 <= value[1] <= 4
    ),
)
ROUND = Rule(
    "[stage, number]",
    lambda value, agreed: (
        isinstance(value, list | tuple)
        and len(value) == 2
        and value[0] in [*map(str, Stage)]
        and COUNTED.fits(value[1], agreed)
    ),
)
WORD, LINE = text(100), text(500)
MESSAGE = Rule("a message as in the table LETTER", _is_letter)
CLASS = Rule(
    "a class: a printable text or a number",
    lambda value, agreed: LINE.fits(value, agreed) or FINITE.fits(value, agreed),
)
NAMED = several(CLASS, 100_000)
WHY = Rule("a text", lambda value, _: isinstance(value, str))  # printed without control characters, see ``printable``


# ---- a message of the parties or of the server

_PARTY, _LABELS, _SERVER = Sender.PARTY, Sender.LABELS, Sender.SERVER

LETTER: Table = {
    "kind": Field(_PARTY, WORD, needed=True),
    "to": Field(_PARTY, one_of("server", "peers", "parties"), needed=True),
    "senders": Field(_PARTY, PARTIES, needed=True),
    "pieces": Field(_PARTY, whole(0, 64), needed=True),
    "receivers": Field(_PARTY, maybe(PARTIES), needed=True),
    "round": Field(_PARTY, maybe(ROUND), needed=True),
    "relayed": Field(_PARTY, FLAG, needed=True),
    "alongside": Field(_PARTY, MESSAGE),
}

# ---- what a party asks; every request has the fields EVERY, and those of its word ``say``

EVERY: Table = {
    "call": Field(_PARTY, COUNTED, needed=True),
    "at": Field(_PARTY, AT, needed=True),
    "turn": Field(_PARTY, whole(-1, 2**16), needed=True),
    "say": Field(_PARTY, WORD, needed=True),
}

REQUESTS: Mapping[str, Table] = {
    "hello": {
        "public": Field(_PARTY, KEY, needed=True),
        "rounds": Field(_PARTY, COUNTED, needed=True),
        "process": Field(_PARTY, digits(16)),
        "digest": Field(_PARTY, digits(32)),
        "versions": Field(_PARTY, by_name(CLASS, 20)),
        "method": Field(_PARTY, one_of("fit", "validate", "test", "predict")),
        "weights": Field(_PARTY, one_of("secret", "seeded")),
        "recipe": Field(_PARTY, by_name(LINE, 5_000)),
    },
    "publics": {},
    "ids": {"count": Field(_PARTY, COUNTED), "sha256": Field(_PARTY, digits(32))},  # or a tensor: the ids
    "order": {  # the label holder draws the splits; tensors: the ids of each
        "splits": Field(_LABELS, several(WORD, 20), needed=True),
        "sizes": Field(_LABELS, several(COUNTED, 20)),
    },
    "shape": {
        "shape": Field(_PARTY, SHAPE, needed=True),
        "labels_sha256": Field(_PARTY, digits(32)),  # to a server that has the labels too
        "num_classes": Field(_LABELS, maybe(COUNTED)),
        "class_names": Field(_LABELS, maybe(NAMED)),
    },
    "failed": {},  # its records cannot be aligned; the reason may name records, so that it stays at the party
    "psi": {  # alignment by masked ids; ``private_ring`` compares sender, receiver and list
        "step": Field(_PARTY, one_of("session", "give", "list", "fetch", "places", "failed"), needed=True),
        "process": Field(_PARTY, digits(8)),
        "to": Field(_PARTY, whole(-1, MOST_PARTIES - 1)),
        "of": Field(
            _PARTY,
            Rule(
                "the number of a party, or the server",
                lambda value, agreed: WORD.fits(value, agreed) or (type(value) is int and -1 <= value < MOST_PARTIES),
            ),
        ),
        "what": Field(_PARTY, WORD),
        "why": Field(_PARTY, WHY),
    },
    "ready": {},
    "metrics": {  # from the label holder, if the last half of the top is there: it alone has predictions
        "metrics": Field(_LABELS, by_name(REAL, 1_000)),
        "batches": Field(_LABELS, COUNTED),
    },
    "listen": {"part": Field(_PARTY, one_of("upload"))},
    "propose": {"proposal": Field(_PARTY, by_name(whole(-COUNT, COUNT), 100), needed=True)},
    "tell": {  # tensors: those of the message, the labels, what is sealed
        "part": Field(_PARTY, one_of("upload", "open", "setup", "cut")),  # cut: from the label holder alone
        "message": Field(_PARTY, MESSAGE),
        "labels": Field(_PARTY, FLAG),  # true: from the label holder alone, see ``wrong_request``
        "sealed": Field(_PARTY, PARTIES),
        "renew": Field(_PARTY, FLAG),
        "request": Field(_PARTY, whole(0, 2**31 - 1)),
        "loss": Field(_PARTY, REAL),
    },
}
TENSORS = {"ids": 1, "order": 20, "psi": 1, "tell": 2 * 64}  # the most tensors of a request; of others none

# ---- what the server answers

PLAN: Table = {
    "called": Field(_SERVER, PARTIES, needed=True),
    "included": Field(_SERVER, PARTIES, needed=True),
    "responders": Field(_SERVER, PARTIES, needed=True),
    "filled": Field(_SERVER, PARTIES, needed=True),
    "sent": Field(_SERVER, several(PARTIES, 64), needed=True),
    "seconds": Field(_SERVER, FINITE, needed=True),
    "skipped": Field(_SERVER, FLAG, needed=True),
}
STANDING: Table = {
    "at": Field(_SERVER, AT, needed=True),
    "called": Field(_SERVER, PARTIES, needed=True),
    "enough": Field(_SERVER, FLAG, needed=True),
    "counts": Field(_SERVER, by_name(COUNTED, 20), needed=True),
    "keyed": Field(_SERVER, by_name(PARTIES, 20), needed=True),
    "joins": Field(_SERVER, COUNTED, needed=True),
    "retries": Field(_SERVER, COUNTED, needed=True),
}
HEARD: Table = {
    "included": Field(_SERVER, PARTIES, needed=True),
    "answering": Field(_SERVER, PARTIES, needed=True),
}
ANSWERS: Table = {
    "outcome": Field(_SERVER, one_of("go", "closed", "over", "refused"), needed=True),
    "why": Field(_SERVER, WHY),
    "standing": Field(_SERVER, Rule("where the server stands, as in the table STANDING", _has(STANDING))),
    "plan": Field(_SERVER, Rule("the plan of a round, as in the table PLAN", _has(PLAN))),
    "metrics": Field(_SERVER, by_name(REAL, 1_000)),
    "publics": Field(_SERVER, KEYS),
    "injected": Field(_SERVER, FLAG),
    "splits": Field(_SERVER, several(WORD, 20)),
    "by": Field(_SERVER, PARTY),
    "shapes": Field(_SERVER, several(SHAPE, MOST_PARTIES)),
    "num_classes": Field(_SERVER, maybe(COUNTED)),
    "class_names": Field(_SERVER, maybe(NAMED)),
    "session": Field(_SERVER, Rule("the settings of a session", lambda value, _: isinstance(value, Mapping))),
    "server": Field(_SERVER, FLAG),
    "done": Field(_SERVER, FLAG),
    "agreed": Field(_SERVER, by_name(FINITE, 100)),
    "over": Field(_SERVER, FLAG),
    "relayed": Field(_SERVER, PARTIES),
    "heard": Field(_SERVER, Rule("who is in a round, as in the table HEARD", _has(HEARD))),
    "message": Field(_SERVER, MESSAGE),
    "final": Field(_SERVER, FLAG),
    "number": Field(_SERVER, COUNTED),
    "clock": Field(_SERVER, FINITE),
}


# ---- the checks


def wrong_field(header: Mapping[str, Any], table: Table, agreed: Agreed) -> str | None:
    """What is wrong with the fields of a header; None: nothing."""
    for name, entry in table.items():
        if entry.needed and name not in header:
            return f"no '{name}', which must be {entry.rule.words}"
    for name, value in header.items():
        known = table.get(name) if isinstance(name, str) else None
        if known is None:
            return f"'{printable(name, 60)}', which is no field of this message"
        if not known.rule.fits(value, agreed):
            return f"'{name}' {printable(value, 60)}, which must be {known.rule.words}"
    return None


def refuse_request(party: int, header: Mapping[str, Any], listed: Sequence[tuple[int, int]], agreed: Agreed) -> None:
    """Accept the header of a request, before its tensors are read.

    Args:
        party: the sender, by its certificate.
        header: of the request.
        listed: the dimensions and the bytes in memory of each tensor.
        agreed: of the federation.

    Raises:
        MalformedFrame: naming the sender and the field.
    """
    wrong = _wrong_request(party, header, listed, agreed)
    if wrong is not None:
        raise MalformedFrame(
            f"{agreed.party(party)} has sent {wrong}; all must run the same recipe and the same version"
        )


def _wrong_request(
    party: int, header: Mapping[str, Any], listed: Sequence[tuple[int, int]], agreed: Agreed
) -> str | None:
    say = header.get("say")
    table = REQUESTS.get(say) if isinstance(say, str) else None
    if table is None:
        return f"a frame that is no request ('say' is {printable(say, 60)})"
    wrong = wrong_field(header, {**EVERY, **table}, agreed)
    if wrong is not None:
        return f"{wrong} (request '{say}')"
    most = TENSORS.get(str(say), 0)
    if len(listed) > most:
        return f"{len(listed)} tensors with '{say}', where at most {most} are allowed"
    labels = [name for name, entry in table.items() if entry.sender == Sender.LABELS and name in header]
    if header.get("labels") is True:
        labels.append("labels")
    if header.get("part") == "cut":
        labels.append("part: cut")
    if labels and party != agreed.labels:
        holder = "the server has them" if agreed.labels is None else f"{agreed.party(agreed.labels)} has them"
        return f"'{labels[0]}', which belongs to the labels, and {holder}"
    return None


def refuse_answer(header: Mapping[str, Any], agreed: Agreed) -> None:
    """Accept the header of the server's answer.

    Raises:
        ConfigurationError: naming the server and the field.
    """
    wrong = wrong_field(header, ANSWERS, agreed)
    if wrong is not None:
        raise ConfigurationError(f"the server has sent {wrong}; check who runs the server, and its version")


def refuse_letter(letter: object, agreed: Agreed) -> None:
    """Accept a message of another process.

    Raises:
        MalformedMessage: naming the field.
    """
    if not isinstance(letter, Mapping):
        raise MalformedMessage("the header of a message is not a JSON object")
    wrong = wrong_field(letter, LETTER, agreed)
    if wrong is not None:
        raise MalformedMessage(f"the header of a message has {wrong}")
