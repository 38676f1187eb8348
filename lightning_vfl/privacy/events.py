r"""What a round releases about the records it names: mechanisms and their parameters, plain numbers only.

An event says what happened and what ONE release of ONE record costs, a curve ε(α) for every unit of protection; an
accountant counts releases. A unit is what two neighbouring data sets differ in:

- ``party-record``: one party's columns of one record;
- ``record``: all parties' columns of one record;
- ``record (paper)``: the same, by Theorem 6.2 of PBM-VFL, from the exact figures of ``party-record``;
- ``party``: one party's columns of ALL records, the paper's feature-set-adjacent data. They differ in every record, so
  the costs of all records add up;
- ``party (paper)``: the same, as Theorem 6.1 of PBM-VFL charges it, by parallel composition: as if only the record that
  is released most often differed. It is no guarantee for a party's columns, and always the figure of ``party-record``.

Privacy figures are rounded up, and what is unknown is infinite.

References:
    Tran, Castiglia, Patterson, Milanova, PBM-VFL, Theorems 6.1 and 6.2.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from math import inf, isinf, isnan, nextafter
from typing import Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.poisson_binomial import poisson_binomial_curve
from lightning_vfl.privacy.rdp import ORDERS, compose_rdp, up

UNITS = ("party", "party-record", "record", "record (paper)", "party (paper)")
"""The one that rests on least comes first."""
AGAINST = ("party", "party-record")
"""The units whose figures are also told against a server that parties collude with."""
ASSUMED = "if weights and scaling do not depend on the record"
_ULP = 2.0**-53


def unit_of_one_release(unit: str) -> str:
    """The unit whose curve a single release of a single record has: for a party's columns that of ``party-record``.

    Raises:
        ConfigurationError: for a unit that is not known.

    Examples:
        >>> unit_of_one_release("party")
        'party-record'
    """
    if unit not in UNITS:
        raise ConfigurationError(f"unit {unit!r} is not known; use one of {', '.join(map(repr, UNITS))}")
    return "party-record" if unit.startswith("party") else unit


def label(unit: str) -> str:
    """A unit with what its figure rests on, as the summary, the privacy command and the pages name it.

    Only the figure of ``party`` holds as it stands. The others count what is sent about the record itself: a record
    also changes the weights of its party's bottom, and through them what is sent about other records.

    Raises:
        ConfigurationError: for a unit that is not known.

    Examples:
        >>> label("party-record")
        'party-record, if weights and scaling do not depend on the record'
        >>> label("party")
        'party, its columns of all records'
        >>> label("party (paper)")
        'party (paper), a published figure and no bound'
    """
    unit_of_one_release(unit)
    if unit == "party":
        return "party, its columns of all records"
    return f"{unit}, a published figure and no bound" if unit == "party (paper)" else f"{unit}, {ASSUMED}"


class PrivacyEvent(ABC):
    """What one round releases about every record it names: frozen, plain numbers, equal where the parameters are.

    Laws: a curve is nowhere below the true ε, and infinite where that is not known. It never falls with the order, but
    for ``record (paper)``, a bound that grows towards order 1. An event costs the same for every record that it names.
    Events that differ are different kinds, which an accountant counts apart.
    """

    @abstractmethod
    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        """ε(α) at ``ORDERS``, in nats, of one release of one record; for ``party`` one summand of its sum."""

    def signal(self, unit: str = "party-record") -> float | None:
        """The squared μ of Gaussian noise, (Δ / σ)², where that is all there is to know; None: only the curve is.

        Releases of Gaussian noise alone compose without loss: their squared μ add up.
        """
        del unit
        return None

    def plain(self) -> dict[str, str | int | float]:
        """Name and parameters, as a checkpoint keeps them; the inverse of ``restored``."""
        return {"mechanism": type(self).__name__, **{f.name: getattr(self, f.name) for f in _fields(type(self))}}


@dataclass(frozen=True)
class PoissonBinomialEvent(PrivacyEvent):
    """The sum of what n parties draw, D numbers of Binomial(b, 1/2 + β x) each, seen by whoever decodes.

    Shapes: plain numbers.
    Units: ε in nats; ``beta`` is that of values in [-1, 1], the parties' values divided by their clip.
    Guarantee: curves as ``poisson_binomial_curve``, times D: never below the true ε.
    Not guaranteed: anything where the sum is not all that is seen (masks that do not hide, parties that tell their
        draws). Parties of which only some have a record: charge these records with an event of their own.

    Args:
        levels: b ≥ 1, trials of a party.
        beta: 0 ≤ β ≤ 1/4.
        parties: n ≥ 1, parties REALLY included in the sum; fewer of them hide less.
        coordinates: D ≥ 1, numbers of one record that change together: the width of the embedding.

    Raises:
        ConfigurationError: for numbers that have no meaning.

    Examples:
        >>> event = PoissonBinomialEvent(levels=4, beta=0.25, parties=3, coordinates=16)
        >>> f"{event.curve()[ORDERS.index(3.0)]:.2f} at order 3"
        '45.12 at order 3'

    References:
        Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation",
        ICML 2022, https://arxiv.org/abs/2207.09916.
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, Theorems 2.3 (one number), 6.1 and its proof (the factor P = D).
    """

    levels: int
    beta: float
    parties: int
    coordinates: int

    def __post_init__(self) -> None:
        poisson_binomial_curve(self.levels, self.beta, self.parties, (), "record")  # checks them
        _count(coordinates=self.coordinates)
        _make_plain(self)

    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        one = _one_coordinate(self.levels, self.beta, self.parties, unit_of_one_release(unit))
        return compose_rdp([(one, self.coordinates)])


@dataclass(frozen=True)
class GaussianEvent(PrivacyEvent):
    r"""The uploads of n parties, each seen by itself, with noise N(0, σ²) in every coordinate.

    One party's upload costs :math:`α Δ^2 / (2 σ^2)`, those of all parties n times as much.

    Shapes: plain numbers; an upload is a vector of any length.
    Units: ε in nats; ``sigma`` and ``sensitivity`` in those of the uploads, the sensitivity in its L2 norm.
    Guarantee: curves and ``signal`` never below the true ones, above them by a few roundings.
    Not guaranteed: anything about noise that is computed in floating point, whose gaps can be seen (Mironov 2012).
        ``LocalGaussian`` with ``draws: system`` rounds the ideal noise exactly, and these figures hold for it.

    Args:
        sigma: σ ≥ 0, standard deviation of the noise.
        sensitivity: Δ ≥ 0, how far two uploads of a party can lie apart: 2C for vectors clipped to the L2 norm C.
        parties: n ≥ 1, parties whose uploads are seen.

    Raises:
        ConfigurationError: for numbers that have no meaning.

    Examples:
        >>> event = GaussianEvent(sigma=2.0, sensitivity=2.0, parties=4)
        >>> [f"{event.curve(unit)[ORDERS.index(2.0)]:.3f}" for unit in ("party-record", "record", "record (paper)")]
        ['1.000', '4.000', '16.875']

    References:
        Mironov, "Rényi Differential Privacy", CSF 2017, https://arxiv.org/abs/1702.07476, Corollary 3 (the curve) and
        Proposition 1 (its sum).
        Dong, Roth, Su, "Gaussian Differential Privacy", 2022, https://arxiv.org/abs/1905.02383 (``signal``).
    """

    sigma: float
    sensitivity: float
    parties: int

    def __post_init__(self) -> None:
        for name, number in (("sigma", self.sigma), ("sensitivity", self.sensitivity)):
            if isnan(number) or number < 0:
                raise ConfigurationError(f"{name} {number} has no meaning; use 0 or more")
        _count(parties=self.parties)
        _make_plain(self)

    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        unit, once = unit_of_one_release(unit), self._signal()
        if once == 0:
            return (0.0,) * len(ORDERS)
        if unit == "record (paper)":
            return tuple(up(up(chained(order, self.parties) * once) / 2) for order in ORDERS)
        uploads = self.parties if unit == "record" else 1
        return compose_rdp([([up(order * once) / 2 for order in ORDERS], uploads)])

    def signal(self, unit: str = "party-record") -> float | None:
        unit = unit_of_one_release(unit)
        if unit == "record (paper)":
            return None  # a theorem about curves
        return up(self._signal() * self.parties) if unit == "record" else self._signal()

    def _signal(self) -> float:
        """(Δ / σ)² of one upload, rounded up; infinite without noise."""
        if self.sensitivity == 0 or (isinf(self.sigma) and not isinf(self.sensitivity)):
            return 0.0
        if self.sigma == 0 or isinf(self.sensitivity):
            return inf
        mu = nextafter(self.sensitivity / self.sigma, inf)
        return nextafter(mu * mu, inf)


@dataclass(frozen=True)
class UnknownEvent(PrivacyEvent):
    """A release of which nobody has said what it costs: infinite, in every unit and at every order.

    Args:
        mechanism: what it is called.
        parameters: what else a checkpoint said of it; kept as it is.

    Examples:
        >>> set(UnknownEvent("Sum").curve("record"))
        {inf}
    """

    mechanism: str
    parameters: tuple[tuple[str, str | int | float], ...] = ()

    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        unit_of_one_release(unit)
        return (inf,) * len(ORDERS)

    def plain(self) -> dict[str, str | int | float]:
        return {"mechanism": self.mechanism, **dict(self.parameters)}


def restored(plain: Mapping[str, str | int | float]) -> PrivacyEvent:
    """The event that ``plain`` describes; an ``UnknownEvent`` if no mechanism of that name and parameters is known.

    Raises:
        ConfigurationError: for parameters of a known mechanism that have no meaning.

    Examples:
        >>> restored({"mechanism": "GaussianEvent", "sigma": 1.0, "sensitivity": 2.0, "parties": 3})
        GaussianEvent(sigma=1.0, sensitivity=2.0, parties=3)
        >>> restored({"mechanism": "Laplace", "scale": 1.0}).curve()[0]
        inf
    """
    parameters: dict[str, str | int | float] = {name: value for name, value in plain.items() if name != "mechanism"}
    for known in PrivacyEvent.__subclasses__():
        named = {f.name for f in _fields(known)}
        if known is not UnknownEvent and known.__name__ == plain["mechanism"] and named == set(parameters):
            return known(**parameters)
    return UnknownEvent(str(plain["mechanism"]), tuple(parameters.items()))


def against(event: PrivacyEvent, colluders: int) -> PrivacyEvent:
    """What an event releases about the other parties to a server that k of its parties tell all they know.

    A party knows what it has drawn itself and can take it off the sum, so what is left has the randomness of the other
    parties alone: k = 1 is what the server and any one party learn together. Where nobody but one party is left, its
    own randomness is all that protects it. An event whose parties are not known stays as it is.

    Args:
        event: what the server reads of a round.
        colluders: k ≥ 0, of those whose uploads are in the round.

    Raises:
        ConfigurationError: for a number of colluders below 0.

    Examples:
        >>> against(PoissonBinomialEvent(levels=16, beta=0.25, parties=4, coordinates=16), 1).parties
        3
    """
    if colluders < 0:
        raise ConfigurationError(f"colluders {colluders} is no number of parties; use 0 or more")
    if isinstance(event, PoissonBinomialEvent | GaussianEvent):
        return replace(event, parties=max(event.parties - colluders, 1))
    return event


def coalitions(parties: int) -> tuple[int, ...]:
    """How many of M parties collude with the server in the figures that are told: one, and all but two.

    Examples:
        >>> coalitions(2), coalitions(3), coalitions(10)
        ((1,), (1,), (1, 8))
    """
    return tuple(sorted({k for k in (1, parties - 2) if 1 <= k < parties}))


def in_words(colluders: int) -> str:
    """A number of parties, in words.

    Examples:
        >>> in_words(1), in_words(3)
        ('1 party', '3 parties')
    """
    return "1 party" if colluders == 1 else f"{colluders:,} parties"


def chained(order: float, parties: int) -> float:
    r"""S_M(α) of Theorem 6.2 of PBM-VFL, rounded up: what a chain over M parties makes of a curve ε(α) = α.

    .. math:: S_1(α) = α, \qquad S_{k+1}(α) = \frac{2α - 1}{2(α - 1)} \, 2α + S_k(2α - 1) .

    With the distance a = α - 1, which doubles at every party, it is a sum of (1 + 1/(2a)) 2 (1 + a), and 1 + a at last.
    Beyond 1000 parties it is infinite, as it is no float.

    Examples:
        >>> f"{chained(2.0, 4):.10f}"
        '33.7500000000'

    References:
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, Theorem 6.2; Mironov, "Rényi Differential Privacy", 2017,
        Corollary 4 (the step).
    """
    if parties > 1000 or isinf(order):
        return inf
    away = [(order - 1) * 2.0**k for k in range(parties)]
    total = sum((1 + 1 / (2 * a)) * 2 * (1 + a) for a in away[:-1]) + 1 + away[-1]
    return total * (1 + (parties + 8) * _ULP)


@lru_cache(maxsize=512)
def _one_coordinate(levels: int, beta: float, parties: int, unit: str) -> tuple[float, ...]:
    """The curve of one number: milliseconds to seconds, so computed once."""
    return poisson_binomial_curve(levels, beta, parties, ORDERS, unit)


def _fields(kind: type[PrivacyEvent]) -> tuple[Any, ...]:
    """The parameters of an event; none if it is no dataclass."""
    return fields(kind) if is_dataclass(kind) else ()


def _make_plain(event: PrivacyEvent) -> None:
    """Python's own numbers, which the safe loader of checkpoints takes, whatever was given."""
    for field in _fields(type(event)):
        number = getattr(event, field.name)
        object.__setattr__(event, field.name, int(number) if field.type is int else float(number))


def _count(**counts: float) -> None:
    """Whole numbers from 1 on."""
    for name, count in counts.items():
        if not 1 <= count < inf or count != int(count):
            raise ConfigurationError(f"{name} {count} is no count; use 1, 2, 3, ...")
