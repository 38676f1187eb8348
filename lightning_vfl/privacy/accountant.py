"""The privacy account of a run: how often each event has released each record, and the resulting ε."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, nextafter, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.events import PrivacyEvent, against, restored, unit_of_one_release
from lightning_vfl.privacy.gaussian import gaussian_epsilon
from lightning_vfl.privacy.loss_distribution import Account, Figure, loss_epsilon, smaller
from lightning_vfl.privacy.rdp import ORDERS, converted

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Counts = NDArray[np.int64]  # (kinds, columns): the count of each kind of event
    Floats = NDArray[np.float64]

_AT_ONCE = 4096  # columns times 121 orders at a time: 4 MiB
_COLUMNS = 64  # different columns whose loss distributions are composed; further ones keep their Rényi figure
_LARGE = 1e280  # replaces ∞, whose product with 0 is NaN
ROUNDED_UP = 1 + 2.0**-40  # rounds up a sum of up to 4000 products, equal for any number of kinds


def composed_epsilon(uses: Mapping[PrivacyEvent, int], delta: float, unit: str = "party-record") -> float:
    """ε of several releases together: of one record, or of all records of a party for the unit ``party``.

    The curves are added and converted with the best order of ``ORDERS``. If all releases have Gaussian noise, the ε is
    exactly that of the Gaussian mechanism with their joint signal.

    Shapes: plain numbers.
    Units: ε in nats.
    Guarantee: never below the true ε of these releases, if no curve of an event is below the true curve. Infinite if an
        event is unknown.
    Not guaranteed: the cost of a number of releases that depends on earlier releases; use the largest possible number.

    Args:
        uses: the count of each event; an event with count 0 costs nothing.
        delta: 0 ≤ δ ≤ 1, for all releases together.
        unit: the difference between neighbouring data, one of ``UNITS``.

    Raises:
        ConfigurationError: for invalid numbers and an unknown unit.

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
    prices = _prices(tuple(uses), within("delta", delta, 0, 1), unit)
    for count in uses.values():
        within("count of releases", count, 0, 2**63 - 1, whole=True)
    return prices.of(list(uses.values()))


class PrivacyAccountant:
    """Counts the releases of every record by event, and computes the ε of the record with the highest cost.

    Counts are exact integers, one row of N for each kind of event; ε is computed only on request. A record that is
    named twice, in one round or in two, is charged twice.

    Laws: ``epsilon`` never falls. ``reserve`` returns the same as ``epsilon`` after ``spend`` with the same arguments.
    The order of rounds has no effect. A restored accountant returns the same as one that was not interrupted.

    Shapes: ``record_ids`` (B,) integers, positions in the N records, in any order.
    Units: ε in nats.
    Guarantee: for ``party``, never below the true ε of all charged uploads, if the events' curves are correct. For a
        unit of a record, the largest figure over the records, never below the true ε of the uploads of that record
        alone. Infinite if an unknown event names a record.
    Not guaranteed: for a unit of a record, information about the record in the uploads of OTHER records: through the
        weights that the record has changed, or a scaling that was fitted to it. Only ``party`` charges this, and
        ``label`` states it. Protection against parties that disclose their draws to the server: see ``against``.
        Any bound for ``party (paper)``, which is a published figure. Use of knowledge about absent parties: an event
        charges all parties, also a party that was not in the sum. Amplification for records that are drawn at random:
        server and parties know these records. The figure at the end of a run whose length depends on its releases (for
        example early stopping): use the figure of the planned length, or the budget.

    Args:
        records: N ≥ 0, the number of protected records; ``grow`` adds further ones.

    Raises:
        ConfigurationError: for N below 0.

    Examples:
        >>> from lightning_vfl.privacy.events import PoissonBinomialEvent
        >>> accountant = PrivacyAccountant(records=1000)
        >>> event = PoissonBinomialEvent(levels=16, beta=0.1, parties=10, coordinates=16)
        >>> batch = np.arange(64)
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
        self.records = within("records", records, 0, whole=True)
        self._counts: dict[PrivacyEvent, NDArray[np.int32]] = {}  # (N,) each
        self._forget()

    def spend(self, event: PrivacyEvent, record_ids: "Tensor | Counts", times: int = 1) -> None:
        """Charge every named record with the event, so many times for each time that it is named.

        Raises:
            ConfigurationError: for ids that are not positions of records, and above 2³¹ - 1 releases of one record; no
                record is charged then.
        """
        ids = self._positions(record_ids)
        if not ids.size:
            return
        counts = self._counts.get(event)
        if counts is None:
            counts = self._counts[event] = np.zeros(self.records, np.int32)
        np.add.at(counts, ids, np.int32(times))
        if counts[ids].min() < 0:
            np.subtract.at(counts, ids, np.int32(times))
            raise ConfigurationError(
                "a record was released 2,147,483,647 times by one event, the largest possible count; end the run"
            )
        self._log.append(ids)
        self._logged += ids.size
        if self._logged > self.records:  # checking all records is then cheaper
            self._forget()

    def grow(self, records: int) -> None:
        """Account for further records, which have not been released; their positions follow those of the others.

        Raises:
            ConfigurationError: for fewer records than there are.
        """
        more = records - self.records
        if more < 0:
            raise ConfigurationError(f"the account has {self.records:,} records; it cannot shrink to {records:,}")
        self._counts = {event: np.pad(counts, (0, more)) for event, counts in self._counts.items()}
        self.records = records

    def epsilon(self, delta: float, unit: str = "party-record") -> float:
        """ε of the record with the highest cost, or of all records together for ``party``; 0 without charges."""
        unit_of_one_release(unit)
        prices = _prices(tuple(self._counts), within("delta", delta, 0, 1), unit)
        if unit == "party":
            return prices.of(self._totals())
        upto, highest = self._known.get((delta, unit), (None, 0.0))
        if upto is None:
            highest = prices.highest(self._rows(slice(None)), highest)
        elif upto < len(self._log):  # counts never fall: only a changed record can have the largest ε
            highest = prices.highest(self._rows(np.concatenate(self._log[upto:])), highest)
        self._known[delta, unit] = (len(self._log), highest)
        return highest

    def tightest(self, delta: float, unit: str = "party-record") -> Figure:
        """As ``epsilon``, by privacy loss distributions where these give less, and the account that gave the figure.

        Guarantee: as ``epsilon``, and never above it.
        Not guaranteed: that no charge lowers the figure: it is rounded up by up to 1e-4 of ε, not always by as much.
        """
        renyi = self.epsilon(delta, unit)
        prices = _prices(tuple(self._counts), delta, unit)
        if prices.gaussian.all():
            return Figure(renyi, Account.GAUSSIAN if self._counts else Account.RENYI)
        if unit == "party":
            return smaller(renyi, prices.by_losses(self._totals()))
        return smaller(renyi, prices.highest_by_losses(self._rows(slice(None))))

    def reserve(
        self, event: PrivacyEvent, record_ids: "Tensor | Counts", delta: float, unit: str = "party-record"
    ) -> float:
        """The ε after this event, without a charge.

        A budget passes the event with the highest possible cost in its unit: in ``party-record`` and ``party`` the
        event of the fewest parties, in ``record`` the event of ALL parties, in ``record (paper)`` possibly any event.
        Several releases of one event together: ``record_ids`` names each record once for each of its releases.
        """
        ids, times = np.unique(self._positions(record_ids), return_counts=True)
        now = self.epsilon(delta, unit)
        if not ids.size:
            return now
        kinds = tuple(dict.fromkeys([*self._counts, event]))
        place = kinds.index(event)
        prices = _prices(kinds, delta, unit)
        if unit == "party":
            totals = [*self._totals(), 0][: len(kinds)]
            totals[place] += int(times.sum())
            return prices.of(totals)
        after = np.zeros((len(kinds), ids.size), np.int64)
        after[: len(self._counts)] = self._rows(ids)
        after[place] += times
        return prices.highest(after, now)

    def against(self, colluders: int) -> "PrivacyAccountant":
        """The account of the same releases against the server and ``colluders`` parties that disclose all data to it.

        Guarantee: the ε of the other parties' columns, if ``epsilon`` is correct against the server alone.
        """
        accountant = PrivacyAccountant(self.records)
        for event, row in self._counts.items():
            fewer = against(event, colluders)
            known = accountant._counts.get(fewer)
            accountant._counts[fewer] = row.copy() if known is None else known + row
        return accountant

    def covers(self, other: "PrivacyAccountant") -> bool:
        """Whether every record of the other accountant has been charged here at least as often, by every event.

        The records of the other accountant are the first of this one.
        """
        if self.records < other.records:
            return False
        nothing = np.zeros(self.records, np.int32)
        charged = [self._counts.get(event, nothing)[: other.records] for event in other._counts]
        return all(bool((here >= there).all()) for here, there in zip(charged, other._counts.values(), strict=True))

    @property
    def counts(self) -> "Mapping[PrivacyEvent, NDArray[np.int32]]":
        """By event, (N,) how often each record is charged with it."""
        return self._counts

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, for the safe loader: N, the events, counts (kinds, N) int32."""
        import torch  # production charges in a process without it

        counts = np.stack(tuple(self._counts.values())) if self._counts else np.zeros((0, self.records), np.int32)
        events = [event.plain() for event in self._counts]
        return {"records": self.records, "events": events, "counts": torch.from_numpy(counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of ``state_dict``; events of unknown mechanisms are kept, with infinite ε.

        Raises:
            ConfigurationError: for a state with another number of records, or counts that do not fit the events.
        """
        if state["records"] != self.records:
            raise ConfigurationError(
                f"the checkpoint has charged {state['records']:,} records, but this run has {self.records:,}; resume "
                "with the same data"
            )
        events = tuple(restored(plain) for plain in state["events"])
        counts = as_array(state["counts"])
        wrong = (
            counts.shape != (len(events), self.records) or counts.dtype != np.int32 or len(set(events)) < len(events)
        )
        if wrong or (counts < 0).any():
            raise ConfigurationError(
                f"counts must be integers for {len(events)} events and {self.records:,} records; got {counts.shape} of "
                f"{counts.dtype}; use an unchanged checkpoint"
            )
        self._counts = {event: row.copy() for event, row in zip(events, counts, strict=True)}
        self._forget()

    def _forget(self) -> None:
        """Delete cached figures: the next ``epsilon`` checks all records."""
        self._log: list[Counts] = []  # ids charged since the last figure
        self._logged = 0
        self._known: dict[tuple[float, str], tuple[int, float]] = {}  # (δ, unit) -> length of the log at that time, ε

    def _positions(self, record_ids: "Tensor | Counts") -> "Counts":
        """(B,) int64, a copy."""
        given = as_array(record_ids)
        if given.ndim != 1 or given.dtype not in (np.int64, np.int32):
            raise ConfigurationError(f"record_ids must be positions (B,) int64; got {given.shape} of {given.dtype}")
        ids = given.astype(np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.records):
            raise ConfigurationError(
                f"record_ids must be positions in the {self.records:,} protected records; got {ids.min():,} to "
                f"{ids.max():,}; give positions in the records of the charged stage"
            )
        return ids

    def _rows(self, ids: "Counts | slice") -> "Counts":
        """(kinds, columns), the counts of the records ``ids``."""
        rows = [counts[ids] for counts in self._counts.values()]
        return np.array(rows, np.int64) if rows else np.zeros((0, 1), np.int64)

    def _totals(self) -> list[int]:
        """The number of releases by each kind of event, of all records together."""
        return [int(counts.sum(dtype=np.int64)) for counts in self._counts.values()]


def as_array(values: "Tensor | NDArray[Any]") -> "NDArray[Any]":
    """An array, or a tensor as one."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


class _Prices:
    """Computes ε from counts of some kinds of events, at one δ and in one unit."""

    def __init__(self, kinds: tuple[PrivacyEvent, ...], delta: float, unit: str) -> None:
        self.kinds = kinds
        self.delta = delta
        self.unit = unit
        signals = [event.signal(unit) for event in kinds]
        self.gaussian = np.array([signal is not None for signal in signals], bool)
        self.signal = np.minimum([signal or 0.0 for signal in signals], _LARGE)[:, None]
        self.curves = np.minimum([event.curve(unit) for event in kinds], _LARGE)

    def of(self, counts: Sequence[int]) -> float:
        """ε of one column."""
        return self.highest(np.array(counts, np.int64)[:, None], 0.0)

    def highest(self, columns: "Counts", floor: float) -> float:
        """The largest ε of these columns, or ``floor`` if that is larger."""
        columns = _distinct(columns)
        exact = ~columns[~self.gaussian].any(axis=0)
        # squared μ are added kind by kind, always in this order
        joint = float((columns[:, exact] * self.signal).sum(axis=0).max(initial=0.0)) * ROUNDED_UP
        by_curves = float(self.by_curves(columns[:, ~exact]).max(initial=0.0))
        return max(floor, _gaussian(joint, self.delta), by_curves)

    def by_curves(self, columns: "Counts") -> "Floats":
        """ε of each column by the curves of its events."""
        figures = []
        for part in np.array_split(columns, 1 + columns.shape[1] // _AT_ONCE, axis=1):
            together = np.zeros((part.shape[1], len(ORDERS)))
            for counts, curve in zip(part, self.curves, strict=True):
                together += counts[:, None] * curve
            together = np.where(together < _LARGE, together * ROUNDED_UP, inf)
            figures.append(converted(together, ORDERS, self.delta).min(axis=1))
        return np.concatenate(figures)

    def highest_by_losses(self, columns: "Counts") -> float:
        """The largest, over the columns, of the smaller figure of both accounts; of some columns, the Rényi figure."""
        columns = _distinct(columns)
        limits = self.by_curves(columns)
        floor = 0.0
        for tried, i in enumerate(np.argsort(-limits)):
            limit = float(limits[i])
            if limit <= floor or tried == _COLUMNS:
                return max(floor, limit)
            floor = max(floor, min(limit, self.by_losses(columns[:, i].tolist())))
        return floor

    def by_losses(self, counts: Sequence[int]) -> float:
        """ε of one column by privacy loss distributions; infinite if they do not apply."""
        return loss_epsilon([([event], n) for event, n in zip(self.kinds, counts, strict=True)], self.delta, self.unit)


_prices = lru_cache(maxsize=64)(_Prices)


@lru_cache(maxsize=1024)
def _gaussian(joint: float, delta: float) -> float:
    """ε of Gaussian noise with this squared μ."""
    return gaussian_epsilon(1.0, nextafter(sqrt(joint), inf) if joint else 0.0, delta)


def _distinct(columns: "Counts") -> "Counts":
    """Every different column once."""
    if not columns.size:
        return columns
    try:
        numbers = np.ravel_multi_index(tuple(columns), tuple(columns.max(axis=1) + 1))
    except ValueError:  # there could be more different columns than an integer counts
        return np.unique(columns, axis=1)
    return columns[:, np.unique(numbers, return_index=True)[1]]
