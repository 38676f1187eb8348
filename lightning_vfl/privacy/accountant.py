"""What a run has cost so far: how often which record was released by what, and the ε that follows."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, log, log1p, nextafter, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.events import PrivacyEvent, against, restored, unit_of_one_release
from lightning_vfl.privacy.gaussian import gaussian_epsilon
from lightning_vfl.privacy.rdp import ORDERS, compose_rdp, rdp_epsilon

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]  # (kinds, columns): how often each kind of event
    Floats = NDArray[np.float64]

_AT_ONCE = 4096  # columns times 121 orders at a time: 4 MiB
_LARGE = 1e280  # in the place of ∞, whose product with 0 is no number
_UP = 1 + 2.0**-40  # for a sum of up to 4000 products, the same however many kinds there are
_ROUNDED = 1e-12  # a generous bound on what rounding does to a figure in ``_Prices.bounds``


def composed_epsilon(uses: Mapping[PrivacyEvent, int], delta: float, unit: str = "party-record") -> float:
    """ε of so many releases together: of one record, or of all records of a party for the unit ``party``.

    Curves add up and are converted with the best order of ``ORDERS``; releases of Gaussian noise alone cost exactly
    what the Gaussian mechanism of their joint signal costs.

    Shapes: plain numbers.
    Units: ε in nats.
    Guarantee: never below the true ε of these releases, as far as the curves of the events are not. Infinite if one of
        them is unknown.
    Not guaranteed: the cost of a number of releases that is itself chosen in the light of them; use the largest number
        that can come about.

    Args:
        uses: how often each event happened; what happened 0 times costs nothing.
        delta: 0 ≤ δ ≤ 1, for all of them together.
        unit: what neighbouring data differ in, one of ``UNITS``.

    Raises:
        ConfigurationError: for numbers that have no meaning and a unit that is not known.

    Examples:
        >>> from lightning_vfl.privacy.events import GaussianEvent, PoissonBinomialEvent
        >>> event = PoissonBinomialEvent(levels=16, beta=0.1, parties=10, coordinates=16)
        >>> f"{composed_epsilon({event: 100}, delta=1e-5):.1f}"
        '311.9'
        >>> f"{composed_epsilon({GaussianEvent(sigma=1.0, sensitivity=1.0, parties=1): 100}, delta=1e-5):.4f}"
        '91.8173'

    References:
        As ``compose_rdp``, ``rdp_epsilon`` and ``gaussian_epsilon``.
    """
    prices = _Prices(tuple(uses), _checked(delta), unit)
    for count in uses.values():
        if not 0 <= count < 2**63 or count != int(count):
            raise ConfigurationError(f"count {count} is no number of releases; use 0, 1, 2, ...")
    return prices.of([int(count) for count in uses.values()])


class PrivacyAccountant:
    """Counts which record was released by which event, and says what the record that cost most has cost.

    Counts are exact integers, a row of N for each kind of event; prices are put on them only when somebody asks. A
    record that is named twice, in one round or in two, is charged twice.

    Laws: ``epsilon`` never falls; ``reserve`` returns what ``epsilon`` returns after ``spend`` of the same; the order
    of rounds does not matter; an accountant that was restored returns the same as one that was not interrupted.

    Shapes: ``record_ids`` (B,) integers, positions in the N records, in any order.
    Units: ε in nats.
    Guarantee: for ``party``, never below the true ε of all uploads that were charged, if the events' curves are right.
        For a unit of a record, the largest over records, never below the true ε of the uploads of that record alone.
        Infinite once an unknown event names a record.
    Not guaranteed: for a unit of a record, what the record tells through the uploads of OTHER records: by the weights
        that it has moved, or a scaling that was fitted to it. Only ``party`` charges that, and ``label`` says so.
        Anything against parties that tell the server what they drew: see ``against``.
        Anything for ``party (paper)``, which is a published figure and no bound.
        Knowledge of who was absent: an event charges all parties, also one that was not in the sum. Less than the
        sum for records that are drawn at random: server and parties know which they are. The figure at the end of a
        run whose length was decided in the light of its releases, as by early stopping: use that of the planned
        length then, or the budget.

    Args:
        records: N ≥ 1, records that are protected.

    Raises:
        ConfigurationError: for no records.

    Examples:
        >>> from lightning_vfl.privacy.events import PoissonBinomialEvent
        >>> accountant = PrivacyAccountant(records=1000)
        >>> event = PoissonBinomialEvent(levels=16, beta=0.1, parties=10, coordinates=16)
        >>> batch = torch.arange(64)
        >>> f"{accountant.reserve(event, batch, delta=1e-5):.2f} {accountant.epsilon(delta=1e-5):.2f}"
        '11.34 0.00'
        >>> accountant.spend(event, batch)
        >>> f"{accountant.epsilon(delta=1e-5):.2f} {accountant.epsilon(delta=1e-5, unit='record'):.1f}"
        '11.34 300.9'

    References:
        Mironov, "Rényi Differential Privacy", CSF 2017, https://arxiv.org/abs/1702.07476, Proposition 1 (adaptive
        composition).
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, the remark after Theorem 6.1 (no amplification by sampling).
    """

    def __init__(self, records: int) -> None:
        if not 1 <= records < inf or records != int(records):
            raise ConfigurationError(f"records {records} is no number of records to protect; use 1, 2, 3, ...")
        self.records = int(records)
        self._counts: dict[PrivacyEvent, NDArray[np.int32]] = {}  # (N,) each
        self._forget()

    def spend(self, event: PrivacyEvent, record_ids: Tensor) -> None:
        """Charge every record that is named with the event, as often as it is named.

        Raises:
            ConfigurationError: for ids that are no positions of records, and beyond 2³¹ - 1 releases of one; nothing
                is charged then.
        """
        ids = self._positions(record_ids)
        if not ids.size:
            return
        counts = self._counts.get(event)
        if counts is None:
            counts = self._counts[event] = np.zeros(self.records, np.int32)
        np.add.at(counts, ids, np.int32(1))
        if counts[ids].min() < 0:
            np.subtract.at(counts, ids, np.int32(1))
            raise ConfigurationError(
                "a record was released 2,147,483,647 times by one event, the most that is counted; end the run"
            )
        self._log.append(ids)
        self._logged += ids.size
        if self._logged > self.records:  # looking at all records is then cheaper
            self._forget()

    def epsilon(self, delta: float, unit: str = "party-record") -> float:
        """ε of the record that has cost most, or of all of them together for ``party``; 0 if nothing was spent."""
        unit_of_one_release(unit)
        prices = _prices(tuple(self._counts), _checked(delta), unit)
        if unit == "party":
            return prices.of(self._totals())
        upto, highest = self._known.get((delta, unit), (None, 0.0))
        if upto is None:
            highest = prices.highest(self._rows(slice(None)), highest)
        elif upto < len(self._log):  # counts never fall: only what has changed can have become the largest
            highest = prices.highest(self._rows(np.concatenate(self._log[upto:])), highest)
        self._known[delta, unit] = (len(self._log), highest)
        return highest

    def reserve(self, event: PrivacyEvent, record_ids: Tensor, delta: float, unit: str = "party-record") -> float:
        """The ε that there would be after this event; nothing is spent.

        A budget asks for the event that may cost most in its unit: in ``party-record`` and ``party`` the one of the
        fewest parties, in ``record`` the one of ALL parties, in ``record (paper)`` it may be any.
        """
        ids, times = np.unique(self._positions(record_ids), return_counts=True)
        now = self.epsilon(delta, unit)
        if not ids.size:
            return now
        kinds = tuple(self._counts) if event in self._counts else (*self._counts, event)
        own = kinds.index(event)
        prices = _prices(kinds, delta, unit)
        if unit == "party":
            totals = [*self._totals(), 0][: len(kinds)]
            totals[own] += int(times.sum())
            return prices.of(totals)
        after = np.zeros((len(kinds), ids.size), np.int64)
        after[: len(self._counts)] = self._rows(ids)
        after[own] += times
        return prices.highest(after, now)

    def against(self, colluders: int) -> "PrivacyAccountant":
        """The same releases as the server reads them together with so many parties that tell it all they know.

        Guarantee: the ε of the others' columns, as far as ``epsilon`` is that against the server alone.
        """
        accountant = PrivacyAccountant(self.records)
        for event, row in self._counts.items():
            fewer = against(event, colluders)
            known = accountant._counts.get(fewer)
            accountant._counts[fewer] = row.copy() if known is None else known + row
        return accountant

    def covers(self, other: "PrivacyAccountant") -> bool:
        """Whether every record has been charged with every event at least as often as in the other accountant."""
        nothing = np.zeros(self.records, np.int32)
        return self.records == other.records and all(
            bool((self._counts.get(event, nothing) >= counts).all()) for event, counts in other._counts.items()
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings, as the safe loader wants it: N, the events, counts (kinds, N) int32."""
        counts = np.stack(tuple(self._counts.values())) if self._counts else np.zeros((0, self.records), np.int32)
        events = [event.plain() for event in self._counts]
        return {"records": self.records, "events": events, "counts": torch.from_numpy(counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the count of ``state_dict``; events of unknown mechanisms stay, and are infinite.

        Raises:
            ConfigurationError: for a state of another number of records, or counts that do not fit the events.
        """
        if state["records"] != self.records:
            raise ConfigurationError(
                f"the checkpoint has charged {state['records']:,} records, this run has {self.records:,}; resume with "
                "the data it was trained on"
            )
        events = tuple(restored(plain) for plain in state["events"])
        counts = state["counts"].cpu().numpy()
        wrong = (
            counts.shape != (len(events), self.records) or counts.dtype != np.int32 or len(set(events)) < len(events)
        )
        if wrong or (counts < 0).any():
            raise ConfigurationError(
                f"counts {counts.shape} of {counts.dtype} are none of {len(events)} events and {self.records:,} "
                "records; use a checkpoint as it was saved"
            )
        self._counts = {event: row.copy() for event, row in zip(events, counts, strict=True)}
        self._forget()

    def _forget(self) -> None:
        """Look at all records when somebody asks next."""
        self._log: list[Counts] = []  # ids that were charged since
        self._logged = 0
        self._known: dict[tuple[float, str], tuple[int, float]] = {}  # (δ, unit) -> length of the log then, ε

    def _positions(self, record_ids: Tensor) -> "Counts":
        """(B,) int64, a copy."""
        if record_ids.dim() != 1 or record_ids.dtype not in (torch.int64, torch.int32):
            raise ConfigurationError(
                f"record_ids {tuple(record_ids.shape)} of {record_ids.dtype} name no records; use positions, (B,) int64"
            )
        ids = record_ids.cpu().numpy().astype(np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.records):
            raise ConfigurationError(
                f"record_ids from {ids.min():,} to {ids.max():,} name more than the {self.records:,} records that are "
                "protected; give positions in the records of the stage that is charged"
            )
        return ids

    def _rows(self, ids: "Counts | slice") -> "Counts":
        """(kinds, columns) counts of these records."""
        rows = [counts[ids] for counts in self._counts.values()]
        return np.array(rows, np.int64) if rows else np.zeros((0, 1), np.int64)

    def _totals(self) -> list[int]:
        """Releases by every kind, of all records together."""
        return [int(counts.sum(dtype=np.int64)) for counts in self._counts.values()]


class _Prices:
    """What counts of some kinds of events cost at one δ, in one unit.

    Most columns of counts are only looked at roughly, by ``bounds``; the one that may be the largest is priced exactly,
    with the few orders that may be the best, so that the figure is that of the whole grid, to the bit.
    """

    def __init__(self, kinds: tuple[PrivacyEvent, ...], delta: float, unit: str) -> None:
        self.delta = delta
        self.curves = [event.curve(unit) for event in kinds]
        self.signals = [event.signal(unit) for event in kinds]
        self.gaussian = np.array([signal is not None for signal in self.signals], bool)
        self.signal = np.array([signal or 0.0 for signal in self.signals])[:, None]
        self.table: Floats = np.minimum(np.array(self.curves).reshape(len(kinds), len(ORDERS)), _LARGE)
        self.offset, self.slack = _offsets(delta)

    def of(self, counts: Sequence[int]) -> float:
        """ε of one column."""
        if not any(counts):
            return 0.0
        if all(signal is not None for signal, count in zip(self.signals, counts, strict=True) if count):
            return _gaussian(float(self._joint(np.array(counts, np.int64)[:, None])[0]), self.delta)
        least, most = self.bounds(np.array(counts, np.float64)[:, None])
        best = np.flatnonzero(least[0] <= most[0].min()).tolist()
        nearest = int((np.array(counts, np.float64) @ self.table).argmin())  # the first to see that there is nothing
        some = sorted({nearest, *best})
        together = compose_rdp([([curve[i] for i in some], n) for curve, n in zip(self.curves, counts, strict=True)])
        return rdp_epsilon([ORDERS[i] for i in some], together, self.delta).epsilon

    def highest(self, columns: "Counts", floor: float) -> float:
        """The largest ε of these columns, or the floor."""
        columns = _distinct(columns[:, columns.any(axis=0)])
        exact = ~columns[~self.gaussian].any(axis=0)
        if exact.any():
            floor = max(floor, _gaussian(float(self._joint(columns[:, exact]).max()), self.delta))
        columns = columns[:, ~exact]
        for first in range(0, columns.shape[1], _AT_ONCE):
            some = columns[:, first : first + _AT_ONCE]
            limits = self.bounds(some.astype(np.float64))[1].min(axis=1)
            for i in np.argsort(-limits):
                if limits[i] <= floor:
                    break
                floor = max(floor, self.of(some[:, i].tolist()))
        return floor

    def bounds(self, columns: "Floats") -> "tuple[Floats, Floats]":
        """Below and above the ε that each order gives, (columns, orders), where it is not rounded to 0."""
        renyi = columns.T @ self.table
        middle, slack = renyi + self.offset, _ROUNDED * renyi + self.slack
        return middle - slack, middle + slack

    def _joint(self, columns: "Counts") -> "Floats":
        """The squared μ of columns of Gaussian noise alone, rounded up; summed kind by kind, always in this order."""
        products = np.multiply(columns, self.signal, where=columns > 0, out=np.zeros(columns.shape))
        joint: Floats = products.sum(axis=0) * _UP
        return joint


@lru_cache(maxsize=64)
def _prices(kinds: tuple[PrivacyEvent, ...], delta: float, unit: str) -> _Prices:
    """The prices of kinds that come in every round, put together once."""
    return _Prices(kinds, delta, unit)


@lru_cache(maxsize=1024)
def _gaussian(joint: float, delta: float) -> float:
    """ε of Gaussian noise with this squared μ."""
    return gaussian_epsilon(1.0, nextafter(sqrt(joint), inf) if joint else 0.0, delta)


def _offsets(delta: float) -> "tuple[Floats, Floats]":
    """What every order adds to ε(α), as in ``rdp_epsilon``, (orders,), and how far rounding may be off."""
    offsets, slacks = [0.0], [0.0]  # of order ∞
    for order in ORDERS[-2::-1]:
        share, chance = log1p(-1 / order), -log(delta) / (order - 1) if delta else _LARGE
        offsets.append(share + chance - log(order) / (order - 1))
        slacks.append(_ROUNDED * (-share + chance + log(order) / (order - 1)))
    return np.array(offsets[::-1]), np.array(slacks[::-1])


def _distinct(columns: "Counts") -> "Counts":
    """Every column once: by a number that names it, if there is one that fits into 63 bits."""
    if len(columns) == 1:
        return columns[:, [columns.argmax()]] if columns.size else columns  # more of one kind costs more
    sizes = [int(row.max(initial=0)) + 1 for row in columns]
    names, stride = np.zeros(columns.shape[1], np.int64), 1
    for row, size in zip(columns, sizes, strict=True):
        if stride * size >= 2**63:
            return np.unique(columns, axis=1)
        names += row * stride
        stride *= size
    return columns[:, np.unique(names, return_index=True)[1]]


def _checked(delta: float) -> float:
    """A δ that is a probability."""
    if not 0 <= delta <= 1:
        raise ConfigurationError(f"delta {delta} is no probability; use one from 0 to 1")
    return delta
