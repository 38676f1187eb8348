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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, prod
from typing import Any, NamedTuple

from lightning_vfl.errors import ConfigurationError, MalformedFrame, MalformedMessage, printable
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.types import Stage

MOST_PARTIES = 62
COUNT = 2**53  # whole numbers up to here are exact in every JSON reader


class Rule(NamedTuple):
    """What a field may be: in words, and as a function of the value and the federation."""

    words: str
    fits: Callable[[Any, Agreed], bool]


@dataclass(frozen=True)
class Table:
    """The fields of a header.

    Args:
        needed: by name, the rules of those that are never left out.
        others: of those that may be left out.
        of_labels: the fields that the party with the labels alone may send.
        tensors: the most tensors that come with the header, where this is compared.
    """

    needed: Mapping[str, Rule] = field(default_factory=dict)
    others: Mapping[str, Rule] = field(default_factory=dict)
    of_labels: Collection[str] = ()
    tensors: int = 0

    @cached_property
    def rules(self) -> Mapping[str, Rule]:
        """The rules of all fields, by name."""
        return {**self.needed, **self.others}

    def wrong(self, header: Mapping[str, Any], agreed: Agreed) -> str | None:
        """What is wrong with the fields of a header; None: nothing."""
        for name, rule in self.needed.items():
            if name not in header:
                return f"no '{name}', which must be {rule.words}"
        for name, value in header.items():
            known = self.rules.get(name) if isinstance(name, str) else None
            if known is None:
                return f"'{printable(name, 60)}', which is no field of this message"
            if not known.fits(value, agreed):
                return f"'{name}' {printable(value, 60)}, which must be {known.words}"
        return None


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


def either(one: Rule, other: Rule) -> Rule:
    """What one of two rules allows."""
    return Rule(
        f"{one.words}, or {other.words}", lambda value, agreed: one.fits(value, agreed) or other.fits(value, agreed)
    )


def several(rule: Rule, most: int) -> Rule:
    """A list of up to ``most`` values."""
    return Rule(
        f"a list of up to {most} values, each {rule.words}",
        lambda value, agreed: _is_list(value) and len(value) <= most and all(rule.fits(one, agreed) for one in value),
    )


def row(words: str, *rules: Rule) -> Rule:
    """A list with a value for each rule."""
    return Rule(
        words,
        lambda value, agreed: (
            _is_list(value)
            and len(value) == len(rules)
            and all(rule.fits(one, agreed) for rule, one in zip(rules, value, strict=True))
        ),
    )


def by_name(rule: Rule, most: int) -> Rule:
    """An object of up to ``most`` keys, which are printable texts."""
    return Rule(
        f"an object of up to {most} keys, each value {rule.words}",
        lambda value, agreed: (
            isinstance(value, Mapping)
            and len(value) <= most
            and all(LINE.fits(key, agreed) and rule.fits(one, agreed) for key, one in value.items())
        ),
    )


def like(words: str, table: Callable[[], Table]) -> Rule:
    """An object with the fields of a table."""
    return Rule(words, lambda value, agreed: isinstance(value, Mapping) and table().wrong(value, agreed) is None)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_party(value: Any, agreed: Agreed) -> bool:
    return type(value) is int and 0 <= value < len(agreed.names)


def _are_parties(value: Any, agreed: Agreed) -> bool:
    listed = _is_list(value) and all(_is_party(one, agreed) for one in value)
    return listed and len({*value}) == len(value)


def _is_shape(value: Any, agreed: Agreed) -> bool:
    sides = SIDES.fits(value, agreed) and len(value) >= 1
    return sides and prod(value) <= agreed.limits.columns


def _are_keys(value: Any, agreed: Agreed) -> bool:
    numbers = {str(number) for number in range(len(agreed.names))}
    return isinstance(value, Mapping) and {*value} <= numbers and all(KEY.fits(one, agreed) for one in value.values())


FLAG = Rule("true or false", lambda value, _: type(value) is bool)
NULL = Rule("null", lambda value, _: value is None)
REAL = Rule("a number", lambda value, _: type(value) in (int, float))
FINITE = Rule("a finite number", lambda value, _: type(value) in (int, float) and isfinite(value))
COUNTED = whole(0, COUNT)
WORD, LINE = text(100), text(500)
WHY = Rule("a text", lambda value, _: isinstance(value, str))  # printed without control characters, see ``printable``
PARTY = Rule("the number of a party", _is_party)
PARTIES = Rule("different numbers of parties", _are_parties)
SIDES = several(whole(1, COUNT), 8)
SHAPE = Rule("sizes from 1, whose product is at most limits.columns of federation.yaml", _is_shape)
SIGNATURE = either(one_of(""), digits(64))  # empty: a benchmark without identities
KEY = row("a public key and its signature, in hexadecimal digits", digits(32), SIGNATURE)
KEYS = Rule("public keys and signatures, by the number of a party", _are_keys)
AT = row("[round, stage, batch]", whole(-1, COUNT), whole(0, 4), whole(-1, COUNT))
ROUND = row("[stage, number]", one_of(*Stage), COUNTED)
MESSAGE = like("a message as in the table LETTER", lambda: LETTER)
CLASS = either(LINE, FINITE)
CLASSES = {"num_classes": either(COUNTED, NULL), "class_names": either(several(CLASS, 100_000), NULL)}
METRICS = by_name(REAL, 1_000)


# ---- a message of the parties or of the server

LETTER: Table = Table(
    {
        "kind": WORD,
        "to": one_of("server", "peers", "parties"),
        "senders": PARTIES,
        "pieces": whole(0, 64),
        "receivers": either(PARTIES, NULL),
        "round": either(ROUND, NULL),
        "relayed": FLAG,
    },
    {"alongside": MESSAGE},
)

# ---- what a party asks; every request has the fields EVERY, and those of its word ``say``

EVERY = {"call": COUNTED, "at": AT, "turn": whole(-1, 2**16), "say": WORD}

REQUESTS: Mapping[str, Table] = {
    "hello": Table(
        {**EVERY, "public": KEY, "rounds": COUNTED},
        {
            "process": digits(16),
            "digest": digits(32),
            "versions": by_name(CLASS, 20),
            "method": one_of("fit", "validate", "test", "predict"),
            "weights": one_of("secret", "seeded"),
            "recipe": by_name(LINE, 5_000),
        },
    ),
    "publics": Table(EVERY),
    "ids": Table(EVERY, {"count": COUNTED, "sha256": digits(32)}, tensors=1),  # the tensor: the ids
    "order": Table(  # the label holder draws the splits; tensors: the ids of each
        {**EVERY, "splits": several(WORD, 20)},
        {"sizes": several(COUNTED, 20)},
        of_labels=["splits", "sizes"],
        tensors=20,
    ),
    "shape": Table(  # labels_sha256: to a server that has the labels too
        {**EVERY, "shape": SHAPE}, {"labels_sha256": digits(32), **CLASSES}, of_labels=[*CLASSES]
    ),
    "failed": Table(EVERY),  # its records cannot be aligned; the reason may name records, so that it stays at the party
    "psi": Table(  # alignment by masked ids; ``private_ring`` compares sender, receiver and list
        {**EVERY, "step": one_of("session", "give", "list", "fetch", "places", "failed")},
        {
            "process": digits(8),
            "to": whole(-1, MOST_PARTIES - 1),
            "of": either(WORD, whole(-1, MOST_PARTIES - 1)),
            "what": WORD,
            "why": WHY,
        },
        tensors=1,
    ),
    "ready": Table(EVERY),
    "metrics": Table(  # from the label holder, if the last half of the top is there: it alone has predictions
        EVERY, {"metrics": METRICS, "batches": COUNTED}, of_labels=["metrics", "batches"]
    ),
    "listen": Table(EVERY, {"part": one_of("upload")}),
    "propose": Table({**EVERY, "proposal": by_name(whole(-COUNT, COUNT), 100)}),
    "tell": Table(  # tensors: those of the message, the labels, what is sealed
        EVERY,
        {
            "part": one_of("upload", "open", "setup", "cut"),  # cut: from the label holder alone
            "message": MESSAGE,
            "labels": FLAG,  # true: from the label holder alone, see ``_wrong_request``
            "sealed": PARTIES,
            "renew": FLAG,
            "request": whole(0, 2**31 - 1),
            "loss": REAL,
        },
        tensors=2 * 64,
    ),
}

# ---- what the server answers

PLAN = Table(
    {
        "called": PARTIES,
        "included": PARTIES,
        "responders": PARTIES,
        "filled": PARTIES,
        "sent": several(PARTIES, 64),
        "seconds": FINITE,
        "skipped": FLAG,
    }
)
STANDING = Table(
    {
        "at": AT,
        "called": PARTIES,
        "enough": FLAG,
        "counts": by_name(COUNTED, 20),
        "keyed": by_name(PARTIES, 20),
        "joins": COUNTED,
        "retries": COUNTED,
    }
)
HEARD = Table({"included": PARTIES, "answering": PARTIES})
ANSWERS = Table(
    {"outcome": one_of("go", "closed", "over", "refused")},
    {
        "why": WHY,
        "standing": like("where the server stands, as in the table STANDING", lambda: STANDING),
        "plan": like("the plan of a round, as in the table PLAN", lambda: PLAN),
        "metrics": METRICS,
        "publics": KEYS,
        "injected": FLAG,
        "splits": several(WORD, 20),
        "by": PARTY,
        "shapes": several(SHAPE, MOST_PARTIES),
        **CLASSES,
        "session": Rule("the settings of a session", lambda value, _: isinstance(value, Mapping)),
        "server": FLAG,
        "done": FLAG,
        "agreed": by_name(FINITE, 100),
        "over": FLAG,
        "relayed": PARTIES,
        "heard": like("who is in a round, as in the table HEARD", lambda: HEARD),
        "message": MESSAGE,
        "final": FLAG,
        "number": COUNTED,
        "clock": FINITE,
    },
)


# ---- the checks


def refuse_request(party: int, header: Mapping[str, Any], tensors: int, agreed: Agreed) -> None:
    """Accept the header of a request, before its tensors are read.

    Args:
        party: the sender, by its certificate.
        header: of the request.
        tensors: how many come with it.
        agreed: of the federation.

    Raises:
        MalformedFrame: naming the sender and the field.
    """
    wrong = _wrong_request(party, header, tensors, agreed)
    if wrong is not None:
        raise MalformedFrame(
            f"{agreed.party(party)} has sent {wrong}; all must run the same recipe and the same version"
        )


def _wrong_request(party: int, header: Mapping[str, Any], tensors: int, agreed: Agreed) -> str | None:
    say = header.get("say")
    table = REQUESTS.get(say) if isinstance(say, str) else None
    if table is None:
        return f"a frame that is no request ('say' is {printable(say, 60)})"
    wrong = table.wrong(header, agreed)
    if wrong is not None:
        return f"{wrong} (request '{say}')"
    if tensors > table.tensors:
        return f"{tensors} tensors with '{say}', where at most {table.tensors} are allowed"
    of_labels = [name for name in table.of_labels if name in header]
    if header.get("labels") is True:
        of_labels.append("labels")
    if header.get("part") == "cut":
        of_labels.append("part: cut")
    if of_labels and party != agreed.labels:
        holder = "the server has them" if agreed.labels is None else f"{agreed.party(agreed.labels)} has them"
        return f"'{of_labels[0]}', which belongs to the labels, and {holder}"
    return None


def refuse_answer(header: Mapping[str, Any], agreed: Agreed) -> None:
    """Accept the header of the server's answer.

    Raises:
        ConfigurationError: naming the server and the field.
    """
    wrong = ANSWERS.wrong(header, agreed)
    if wrong is not None:
        raise ConfigurationError(f"the server has sent {wrong}; check who runs the server, and its version")


def checked_letter(letter: object, agreed: Agreed) -> Mapping[str, Any]:
    """The header of a message of another process, which has the fields of LETTER.

    Raises:
        MalformedMessage: naming the field.
    """
    if not isinstance(letter, Mapping):
        raise MalformedMessage("the header of a message is not a JSON object")
    wrong = LETTER.wrong(letter, agreed)
    if wrong is not None:
        raise MalformedMessage(f"the header of a message has {wrong}")
    return letter
