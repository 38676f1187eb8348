"""The laws of waiting rules (``lightning_vfl.waiting.WaitingRule``), for a rule of your own."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, isfinite, nan

import torch
from torch import Tensor

from lightning_vfl.testing.law import Law, checked, laws_of, require
from lightning_vfl.types import numbers_in
from lightning_vfl.waiting import WaitingRule

MOMENTS = (0.0, 0.5, 3.0, inf, nan)  # seconds; never, not called


@dataclass(frozen=True)
class Subject:
    """A rule under test, and the number of parties."""

    rule: WaitingRule
    parties: int

    def crowds(self, moments: tuple[float, ...] = MOMENTS) -> Iterator[tuple[Tensor, int]]:
        """Arrivals of all parties in all combinations, and how many answers the aggregator needs."""
        for arrivals in product(moments, repeat=self.parties):
            for needed in (1, self.parties):
                yield torch.tensor(arrivals, dtype=torch.float64), needed

    def close(self, arrivals: Tensor, needed: int) -> tuple[Tensor, float]:
        """What the rule says, in the form that it has to have."""
        closed = self.rule.close(arrivals.clone(), needed)
        who, when = closed if isinstance(closed, tuple) and len(closed) == 2 else (None, None)
        form = isinstance(who, Tensor) and (who.shape, who.dtype) == (arrivals.shape, torch.bool)
        require(
            form and isinstance(when, int | float),
            f"close of arrivals {arrivals.tolist()} returns {closed!r} instead of ({self.parties},) bool and seconds",
        )
        return closed


def waiting_laws(rule: WaitingRule, parties: int = 3) -> tuple[Law, ...]:
    """The laws that ``check_waiting_rule`` checks, one object each, on all combinations of a few arrival times.

    Args:
        rule: an object of your class.
        parties: M; the number of combinations grows fast.

    Examples:
        >>> from lightning_vfl.waiting import Deadline
        >>> for law in waiting_laws(Deadline(1.0)):
        ...     law()
    """
    return laws_of(rule, Subject(rule, parties), LAWS)


check_waiting_rule = checked(waiting_laws)
"""Check all laws of a waiting rule; the arguments are those of ``waiting_laws``."""


# ---- the laws


def included_parties_have_arrived(subject: Subject) -> None:
    """An included party has been called and has arrived by the closing time; the same arrivals give the same result."""
    for arrivals, needed in subject.crowds():
        who, when = subject.close(arrivals, needed)
        fine = bool((arrivals[who] <= when).all()) and bool(arrivals[who].isfinite().all())
        result = f"arrivals {arrivals.tolist()} and needed = {needed} give {who.tolist()} after {when:g} s"
        require(fine, f"{result}; include parties that have arrived by then")
        again, at = subject.close(arrivals, needed)
        same = torch.equal(who, again) and when == at
        require(same, f"{result}, and {again.tolist()} after {at:g} s the second time")


def a_delay_of_one_party_excludes_no_other(subject: Subject) -> None:
    """If one party arrives later, every other party that was included is included."""
    for arrivals, needed in subject.crowds():
        before, _ = subject.close(arrivals, needed)
        for late in numbers_in(arrivals.isfinite()):
            delayed = arrivals.clone()
            delayed[late] += 1.0
            after, _ = subject.close(delayed, needed)
            out = [m for m in numbers_in(before & ~after) if m != late]
            require(
                not out,
                f"parties {out} are included if the arrivals are {arrivals.tolist()}, and left out if party {late} "
                "arrives a second later",
            )


def of_equal_arrivals_the_lower_number_counts_first(subject: Subject) -> None:
    """If not all of several parties that arrive together are included, those with the lower numbers are."""
    for arrivals, needed in subject.crowds():
        who, _ = subject.close(arrivals, needed)
        for moment in set(arrivals[arrivals.isfinite()].tolist()):
            equal = who[arrivals == moment]
            first = bool((equal[:-1] | ~equal[1:]).all())
            require(first, f"arrivals {arrivals.tolist()} include {who.tolist()}; of equal ones the first count")


def fewest_parties_are_included_if_all_arrive_at_once(subject: Subject) -> None:
    """``fewest`` is what ``close`` includes when nobody is late."""
    for needed in range(1, subject.parties + 1):
        who, _ = subject.close(torch.zeros(subject.parties, dtype=torch.float64), needed)
        count = int(who.sum())
        fewest = subject.rule.fewest(subject.parties, needed)
        require(count == fewest, f"{count} parties are included, fewest says {fewest} (needed = {needed})")


def a_rule_that_waits_on_closes_at_its_patience(subject: Subject) -> None:
    """Where ``waits_on`` says that arrivals so far do not end the wait, the rule closes at ``patience``, or never."""
    rule = subject.rule
    for arrivals, needed in subject.crowds((0.0, inf, nan)):
        arrived = int(arrivals.isfinite().sum())
        if not arrivals.isinf().any() or not rule.waits_on(arrived, needed):
            continue
        _, when = subject.close(arrivals, needed)
        wanted = inf if rule.patience is None else rule.patience
        end = f"{wanted:g} s" if isfinite(wanted) else "never"
        require(when == wanted, f"arrivals {arrivals.tolist()} close after {when:g} s; waits_on and patience say {end}")


LAWS = (
    included_parties_have_arrived,
    a_delay_of_one_party_excludes_no_other,
    of_equal_arrivals_the_lower_number_counts_first,
    fewest_parties_are_included_if_all_arrive_at_once,
    a_rule_that_waits_on_closes_at_its_patience,
)
