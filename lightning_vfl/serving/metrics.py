"""Counters and histograms in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from lightning_vfl.federation.watch import family, known
from lightning_vfl.serving.drift import Drift

RECENT = 1000  # decisions that are kept for the dashboard
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Histogram:
    """How many durations are at most so long.

    Units: seconds.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self._counts)

    def milliseconds(self, share: float) -> float | None:
        """A bound of which this share of the durations is at most as long; None: there are none, or it is longer."""
        reached = 0
        for bound, count in zip(_BOUNDS, self._counts, strict=False):
            reached += count
            if reached and reached >= share * self.count:
                return 1000 * bound
        return None

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The lines of the text format; ``labels``: ``party="bank"``, or empty."""
        comma = "," if labels else ""
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        around = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{around} {self._sum:.6f}"
        yield f"{name}_count{around} {total}"


class Metrics:
    """What a gateway counts.

    Args:
        parties: the names of the parties.
    """

    def __init__(self, parties: Iterable[str]) -> None:
        self.parties = {name: Histogram() for name in parties}
        self.requests = Histogram()
        self.absences: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()
        self.records = 0
        self.recent: deque[str | float] = deque(maxlen=RECENT)

    def note(self, entries: "Iterable[Mapping[str, Any]]") -> None:
        """Count the decisions of entries, as ``ServedServer.rows`` gives them; of several labels, those that hold."""
        for entry in entries:
            decided = entry["decision"] if "decision" in entry else entry["value"]
            if isinstance(decided, Mapping):
                for name, one in decided.items():
                    if one is not None and one != 0:
                        self.recent.append(name)
            elif isinstance(decided, float):
                self.recent.append(decided)
            elif decided is not None:
                self.recent.append(str(decided))

    def decisions(self) -> list[dict[str, str | int]]:
        """The latest decisions and how often each was made; of values, ten ranges."""
        values = [one for one in self.recent if isinstance(one, float)]
        if values:
            counts, edges = np.histogram(values, 10)
            names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges.tolist())]
            return [{"name": name, "count": count} for name, count in zip(names, counts.tolist(), strict=True)]
        counted = Counter(map(str, self.recent))
        return [{"name": name, "count": counted[name]} for name in sorted(counted)]

    def text(self, states: Mapping[str, str], waiting: int, budgets: Mapping[str, float], drift: Drift | None) -> str:
        """All metrics.

        Args:
            states: of the parties, as ``Gateway.states``.
            waiting: records that wait to be asked for.
            budgets: as ``Gateway.budgets``.
            drift: of predictions; None: it is not measured.
        """
        prefix = "lightning_vfl"
        connected = {name: int(state != "absent") for name, state in states.items()}
        answers = {str(status): count for status, count in sorted(self.answers.items())}
        absences = {name: self.absences[name] for name in self.parties}
        lines = [f"# TYPE {prefix}_request_seconds histogram", *self.requests.lines(f"{prefix}_request_seconds", "")]
        lines.append(f"# TYPE {prefix}_party_seconds histogram")
        for name, histogram in self.parties.items():
            lines += histogram.lines(f"{prefix}_party_seconds", f'party="{name}"')
        lines += family(f"{prefix}_party_absences_total", "counter", "party", absences)
        lines += family(f"{prefix}_party_connected", "gauge", "party", connected)
        lines += family(f"{prefix}_responses_total", "counter", "status", answers)
        lines += family(f"{prefix}_records_total", "counter", "", {"": self.records})
        lines += family(f"{prefix}_records_waiting", "gauge", "", {"": waiting})
        if budgets:
            lines += family(f"{prefix}_party_budget_left", "gauge", "party", budgets)
        lines += known(f"{prefix}_prediction_drift", None if drift is None else drift.distance)
        return "\n".join(lines) + "\n"
