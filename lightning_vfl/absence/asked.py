"""What ``--absent`` asks for, and the subsets of the parties that answer it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import yaml

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

USUAL = (0.1, 0.3, 0.5)  # the probabilities of ``--absent all``
EXACT = 12  # with more parties that may be absent, subsets are sampled
PER_SIZE = 32  # sampled subsets of each size

Subset = tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """What is to be measured.

    Args:
        absent: the subsets of absent parties; None: all subsets.
        probabilities: p for each row "every party is absent with probability p".
    """

    absent: tuple[Subset, ...] | None
    probabilities: tuple[float, ...]


def parse(text: str, number_of: Callable[[str], int] | None = None) -> Asked:
    """Read the value of ``--absent``.

    Args:
        text: ``all``; probabilities ``0.1,0.5``; or lists of absent parties, ``[[1],[1,2]]`` or ``[[bank]]``.
        number_of: the number of a party by its name; None: parties have numbers alone.

    Raises:
        ConfigurationError: for any other text, and for a probability outside [0, 1).

    Examples:
        >>> parse("0.1,0.5").probabilities, parse("[[1],[2,1]]").absent
        ((0.1, 0.5), ((1,), (1, 2)))
        >>> parse("[[bank]]", ["shop", "bank"].index).absent
        ((1,),)
    """
    if text.strip() == "all":
        return Asked(None, USUAL)
    try:
        read = yaml.safe_load(text if text.lstrip().startswith("[") else f"[{text}]")
    except yaml.YAMLError:
        read = None
    if isinstance(read, list) and read and all(_is_number(p) for p in read):
        return Asked(None, tuple(float(within("a probability of --absent", p, 0, below=1)) for p in read))
    if isinstance(read, list) and read and all(_is_subset(one, number_of is not None) for one in read):
        numbers = ({number_of(m) if number_of and isinstance(m, str) else m for m in one} for one in read)
        return Asked(tuple(dict.fromkeys(tuple(sorted(one)) for one in numbers)), ())
    raise ConfigurationError(
        "--absent takes all, probabilities such as 0.1,0.5 or lists of absent parties such as [[1],[1,2]] or [[bank]]; "
        f"got {text}"
    )


def subsets_of(asked: Asked, parties: int, active: int | None, seed: int) -> tuple[tuple[Subset, ...], bool]:
    """The subsets of ABSENT parties to be measured, and whether they are all subsets of their sizes.

    The active party makes the prediction and is never absent; without one, somebody is there.

    Args:
        asked: what is asked.
        parties: M.
        active: the active party; None: there is none.
        seed: names the draw of subsets, where they are sampled.

    Raises:
        ConfigurationError: for parties that do not exist, the active party, and all parties at once.
    """
    passive = [m for m in range(parties) if m != active]
    if asked.absent is not None:
        for subset in asked.absent:
            if strange := [m for m in subset if not 0 <= m < parties]:
                raise ConfigurationError(
                    f"--absent names party {strange[0]}, but the parties are 0 to {parties - 1}; correct its number"
                )
            if active in subset:
                raise ConfigurationError(
                    f"--absent names party {active}, the active party, which asks for the prediction; leave it out"
                )
            if len(subset) == parties:
                raise ConfigurationError(f"--absent {list(subset)} leaves no party; name fewer")
        return asked.absent, True
    most = len(passive) if active is not None else parties - 1
    if len(passive) <= EXACT:
        return tuple(one for k in range(most + 1) for one in combinations(passive, k)), True
    return tuple(one for k in range(most + 1) for one in _sampled(passive, k, seed)), False


def by_probability(p: float, passive: int, at_most: int) -> list[float]:
    """The probability of each number of absent parties from 0 to ``at_most``, if at most so many are absent."""
    shares = [comb(passive, k) * p**k * (1 - p) ** (passive - k) for k in range(at_most + 1)]
    return [share / sum(shares) for share in shares]


def _sampled(passive: Sequence[int], size: int, seed: int) -> Iterator[Subset]:
    """All subsets of a size if they are few; otherwise PER_SIZE different ones, drawn evenly."""
    if comb(len(passive), size) <= PER_SIZE:
        yield from combinations(passive, size)
        return
    drawn: dict[Subset, None] = {}
    number = 0
    while len(drawn) < PER_SIZE:
        order = permutation(len(passive), seed, "absent", size, number)
        drawn[tuple(sorted(passive[int(i)] for i in order[:size]))] = None
        number += 1
    yield from drawn


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_subset(value: object, named: bool) -> bool:
    """Whether this is a list of parties; YAML reads names such as ``no`` as truth values, which are none."""
    kinds = (int, str) if named else (int,)
    return isinstance(value, list) and bool(value) and all(type(m) in kinds for m in value)
