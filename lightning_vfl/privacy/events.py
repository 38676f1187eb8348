r"""Privacy events: the mechanisms and parameters of a round's releases, as plain numbers.

An event describes a release and has the cost of ONE release of ONE record: a curve ε(α) for every unit of protection.
An accountant counts releases. The unit is the difference between two neighbouring data sets:

- ``party-record``: one party's columns of one record;
- ``record``: all parties' columns of one record;
- ``record (paper)``: the same, by Theorem 6.2 of PBM-VFL, from the exact figures of ``party-record``;
- ``party``: one party's columns of ALL records, the paper's feature-set-adjacent data. Every record differs, so the
  costs of all records are added;
- ``party (paper)``: the same, as Theorem 6.1 of PBM-VFL charges it, by parallel composition: as if only the record that
  is released most often differed. It is not a guarantee for a party's columns, and always equals ``party-record``.

Privacy figures are rounded up. Unknown costs are infinite.

References:
    Tran, Castiglia, Patterson, Milanova, PBM-VFL, Theorems 6.1 and 6.2.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from math import inf, isinf, nextafter
from typing import Any

from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.poisson_binomial import chain, poisson_binomial_curve
from lightning_vfl.privacy.rdp import ORDERS, compose_rdp, up

UNITS = ("party", "party-record", "record", "record (paper)", "party (paper)")
"""The unit with the fewest assumptions comes first."""
AGAINST = ("party", "party-record")
"""The units with additional figures against a server that colludes with parties."""
ASSUMED = "if weights and scaling do not depend on the record"
_ULP = 2.0**-53


def unit_of_one_release(unit: str) -> str:
    """The unit of the curve of one release of one record: for a party's columns it is ``party-record``.

    Raises:
        ConfigurationError: for an unknown unit.

    Examples:
        >>> unit_of_one_release("party")
        'party-record'
    """
    if unit not in UNITS:
        raise ConfigurationError(f"unit {unit!r} is unknown; use one of {', '.join(map(repr, UNITS))}")
    return "party-record" if unit.startswith("party") else unit


def label(unit: str) -> str:
    """A unit with the assumption of its figure, as in the summary, the privacy command and the documentation.

    Only the figure of ``party`` holds without an assumption. The others count only messages about the record itself,
    but a record also changes the weights of its party's bottom, and through these the messages about other records.

    Raises:
        ConfigurationError: for an unknown unit.

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
    """The release of one round about every named record: frozen, plain numbers, equal if the parameters are equal.

    Laws: a curve is never below the true ε, and is infinite if the true ε is unknown. It never falls with the order,
    except for ``record (paper)``, a bound that grows towards order 1. An event costs the same for every named record.
    Different events are different kinds, which an accountant counts separately.
    """

    @abstractmethod
    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        """ε(α) at ``ORDERS``, in nats, of one release of one record; for ``party``, one summand."""

    def refuse_unit(self, unit: str) -> None:
        """Refuse a unit for which ``curve`` cannot be computed, without computing it; default: none is refused.

        Raises:
            ConfigurationError: naming what to change.
        """
        unit_of_one_release(unit)

    def signal(self, unit: str = "party-record") -> float | None:
        """The squared μ of Gaussian noise, (Δ / σ)², if it describes the release; None: only the curve is known.

        Releases with only Gaussian noise compose without loss: their squared μ are added.
        """
        del unit
        return None

    def plain(self) -> dict[str, str | int | float]:
        """Name and parameters for a checkpoint; the inverse of ``restored``."""
        return {"mechanism": type(self).__name__, **{f.name: getattr(self, f.name) for f in _fields(type(self))}}


@dataclass(frozen=True)
class PoissonBinomialEvent(PrivacyEvent):
    """The sum of the draws of n parties, D numbers of Binomial(b, 1/2 + β x) each, as the decoder reads it.

    Shapes: plain numbers.
    Units: ε in nats; ``beta`` is that of values in [-1, 1], the parties' values divided by their clip.
    Guarantee: curves as ``poisson_binomial_curve``, times D: never below the true ε, if b M is at most 1,024 or b is 1.
        With more, they are those of the worst case among parties that are all at an extreme.
    Not guaranteed: any bound if more than the sum is disclosed (broken masks, parties that disclose their draws).
        Records that only some of the parties hold: charge these records with their own event.

    Args:
        levels: b ≥ 1, trials of a party.
        beta: 0 ≤ β ≤ 1/4.
        parties: n ≥ 1, the parties that are ACTUALLY included in the sum; fewer parties hide less.
        coordinates: D ≥ 1, numbers of one record that change together: the width of the embedding.

    Raises:
        ConfigurationError: for invalid numbers.

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
        positive("coordinates", self.coordinates, whole=True)
        _make_plain(self)

    def refuse_unit(self, unit: str) -> None:
        poisson_binomial_curve(self.levels, self.beta, self.parties, (), unit_of_one_release(unit))

    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        one = _one_coordinate(self.levels, self.beta, self.parties, unit_of_one_release(unit))
        return compose_rdp([(one, self.coordinates)])


@dataclass(frozen=True)
class GaussianEvent(PrivacyEvent):
    r"""The uploads of n parties, each of which the server reads, with noise N(0, σ²) on every coordinate.

    One party's upload costs :math:`α Δ^2 / (2 σ^2)`; the uploads of all parties cost n times as much.

    Shapes: plain numbers; an upload is a vector of any length.
    Units: ε in nats; ``sigma`` and ``sensitivity`` in the units of the uploads, the sensitivity in the L2 norm.
    Guarantee: curves and ``signal`` are never below the true values, and above them by a few rounding errors.
    Not guaranteed: noise that is computed in floating point, which has observable gaps (Mironov 2012).
        ``LocalGaussian`` with ``draws: system`` rounds the ideal noise exactly, so these figures hold for it.

    Args:
        sigma: σ ≥ 0, standard deviation of the noise.
        sensitivity: Δ ≥ 0, the largest distance of two uploads of a party: 2C for vectors clipped to the L2 norm C.
        parties: n ≥ 1, the parties whose uploads the server reads.

    Raises:
        ConfigurationError: for invalid numbers.

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
        within("sigma", self.sigma, 0, most=inf)
        within("sensitivity", self.sensitivity, 0, most=inf)
        positive("parties", self.parties, whole=True)
        _make_plain(self)

    def curve(self, unit: str = "party-record") -> tuple[float, ...]:
        unit = unit_of_one_release(unit)
        once = self._signal()
        if once == 0:
            return (0.0,) * len(ORDERS)
        if unit == "record (paper)":
            return tuple(up(up(chained(order, self.parties) * once) / 2) for order in ORDERS)
        uploads = self.parties if unit == "record" else 1
        return compose_rdp([([up(order * once) / 2 for order in ORDERS], uploads)])

    def signal(self, unit: str = "party-record") -> float | None:
        unit = unit_of_one_release(unit)
        if unit == "record (paper)":
            return None  # the theorem is about curves
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
    """A release with unknown cost: infinite in every unit and at every order.

    Args:
        mechanism: the name of the mechanism.
        parameters: the other values in the checkpoint, unchanged.

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
        ConfigurationError: for invalid parameters of a known mechanism.

    Examples:
        >>> restored({"mechanism": "GaussianEvent", "sigma": 1.0, "sensitivity": 2.0, "parties": 3})
        GaussianEvent(sigma=1.0, sensitivity=2.0, parties=3)
        >>> restored({"mechanism": "Laplace", "scale": 1.0}).curve()[0]
        inf
    """
    parameters: dict[str, Any] = dict(plain)
    mechanism = str(parameters.pop("mechanism"))
    for known in PrivacyEvent.__subclasses__():
        named = {field.name for field in _fields(known)}
        if known is not UnknownEvent and known.__name__ == mechanism and named == parameters.keys():
            return known(**parameters)
    return UnknownEvent(mechanism, tuple(parameters.items()))


def against(event: PrivacyEvent, colluders: int) -> PrivacyEvent:
    """The event of the other parties against a server that colludes with k of the event's parties.

    A colluding party knows its own draws and can subtract them from the sum, so only the randomness of the other
    parties protects these: k = 1 is the server together with any one party. If one party remains, only its own
    randomness protects it. An event with unknown parties does not change.

    Args:
        event: the release that the server reads in a round.
        colluders: k ≥ 0, parties with uploads in the round that collude with the server.

    Raises:
        ConfigurationError: for a number of colluders below 0.

    Examples:
        >>> against(PoissonBinomialEvent(levels=16, beta=0.25, parties=4, coordinates=16), 1).parties
        3
    """
    within("colluders", colluders, 0, whole=True)
    if isinstance(event, PoissonBinomialEvent | GaussianEvent):
        return replace(event, parties=max(event.parties - colluders, 1))
    return event


def coalitions(parties: int, most: int) -> tuple[int, ...]:
    """The numbers of colluding parties (of M) for which figures are reported: one, and the most that are tolerated.

    Examples:
        >>> coalitions(2, 0), coalitions(3, 1), coalitions(10, 8)
        ((1,), (1,), (1, 8))
    """
    return tuple(sorted({k for k in (1, most) if 1 <= k < parties}))


def in_words(colluders: int) -> str:
    """A number of parties, as a text.

    Examples:
        >>> in_words(1), in_words(3)
        ('1 party', '3 parties')
    """
    return "1 party" if colluders == 1 else f"{colluders:,} parties"


def chained(order: float, parties: int) -> float:
    r"""S_M(α) of Theorem 6.2 of PBM-VFL, rounded up: the result of a chain over M parties for a curve ε(α) = α.

    Above 1000 parties the function returns infinity, because the value exceeds the range of floats.

    Examples:
        >>> f"{chained(2.0, 4):.10f}"
        '33.7500000000'
    """
    if parties > 1000 or isinf(order):
        return inf
    orders, factors = chain(order, parties)
    return sum(f * o for f, o in zip(factors, orders, strict=True)) * (1 + (parties + 8) * _ULP)


@lru_cache(maxsize=512)
def _one_coordinate(levels: int, beta: float, parties: int, unit: str) -> tuple[float, ...]:
    """The curve of one number; cached, because it takes milliseconds to seconds."""
    return poisson_binomial_curve(levels, beta, parties, ORDERS, unit)


def _fields(kind: type[PrivacyEvent]) -> tuple[Any, ...]:
    """The parameters of an event; none if it is not a dataclass."""
    return fields(kind) if is_dataclass(kind) else ()


def _make_plain(event: PrivacyEvent) -> None:
    """Convert the parameters to Python numbers, which the safe loader of checkpoints accepts."""
    for field in _fields(type(event)):
        number = getattr(event, field.name)
        object.__setattr__(event, field.name, int(number) if field.type is int else float(number))
