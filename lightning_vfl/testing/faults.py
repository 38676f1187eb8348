"""The laws of fault models (``lightning_vfl.simulation.FaultModel``), for a model of your own."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cached_property

import torch

from lightning_vfl.simulation.faults import LEAST, FaultModel, RoundOutcome, differing
from lightning_vfl.testing.law import Law, checked, laws_of, require
from lightning_vfl.types import Roster


@dataclass(frozen=True)
class Subject:
    """A fault model under test.

    Args:
        model: an object of the class; copies of it are asked.
        roster: the parties and hosts.
        requests: the number of requests that are sampled.
        seed: of the model.
    """

    model: FaultModel
    roster: Roster
    requests: int
    seed: int

    @cached_property
    def sampled(self) -> tuple[list[RoundOutcome], list[str]]:
        """The outcomes of all requests, in order, and the fields of the shared outcome that were written into."""
        model = deepcopy(self.model)
        with _shared_outcome_of_its_own():
            outcomes = [model.sample(request, self.roster, self.seed) for request in range(self.requests)]
            nothing = RoundOutcome.nothing(self.roster)
        return outcomes, [field.name for field in fields(RoundOutcome) if getattr(nothing, field.name)._version]

    @property
    def outcomes(self) -> list[RoundOutcome]:
        """The outcomes of all requests, in order."""
        return self.sampled[0]


@contextmanager
def _shared_outcome_of_its_own() -> Iterator[None]:
    """A model that writes into ``RoundOutcome.nothing`` then changes no tensor that others hold."""
    RoundOutcome.nothing.cache_clear()
    try:
        yield
    finally:
        RoundOutcome.nothing.cache_clear()


def fault_laws(model: FaultModel, roster: Roster | None = None, requests: int = 64, seed: int = 0) -> tuple[Law, ...]:
    """The laws that ``check_fault_model`` checks, one object each.

    Args:
        model: an object of your class.
        roster: the parties and hosts; None: four parties and one host.
        requests: the number of requests that are sampled; give more if a fault is rare.
        seed: of the model.

    Examples:
        >>> from lightning_vfl.simulation import PartyDropout
        >>> for law in fault_laws(PartyDropout(0.3, 0.5)):
        ...     law()
    """
    return laws_of(model, Subject(model, roster or Roster.singles(4), requests, seed), LAWS)


check_fault_model = checked(fault_laws)
"""Check all laws of a fault model; the arguments are those of ``fault_laws``."""


# ---- the laws


def the_shared_outcome_is_not_changed(subject: Subject) -> None:
    """``RoundOutcome.nothing``, whose tensors all requests share, is what it was."""
    outcomes, written = subject.sampled
    what = f"one of {len(outcomes)} requests writes into {', '.join(written)} of RoundOutcome.nothing"
    require(not written, f"{what}; return replace(outcome, FIELD=tensor) with a tensor of its own")


def outcomes_have_their_shapes_units_and_ranges(subject: Subject) -> None:
    """Every field has the shape and dtype of ``RoundOutcome``, on the CPU; numbers are finite and not too small."""
    needed = RoundOutcome.nothing(subject.roster)
    for request, outcome in enumerate(subject.outcomes):
        for name in (field.name for field in fields(RoundOutcome)):
            value = getattr(outcome, name)
            like = getattr(needed, name)
            form, wanted = ((tuple(x.shape), x.dtype, x.device.type) for x in (value, like))
            require(form == wanted, f"{name} at request {request} is {form} instead of {wanted}")
            if name in LEAST:
                fine = bool(value.isfinite().all()) and float(value.min()) >= LEAST[name]
                require(fine, f"{name} at request {request} is {value.tolist()}; use finite numbers >= {LEAST[name]}")


def sampling_is_pure(subject: Subject) -> None:
    """A copy that is asked in reverse order, and under another seed in between, has the same outcomes."""
    other = deepcopy(subject.model)
    for request, outcome in reversed(list(enumerate(subject.outcomes))):
        with _shared_outcome_of_its_own():
            other.sample(request, subject.roster, subject.seed + 1)
            name = differing(outcome, other.sample(request, subject.roster, subject.seed))
        require(
            name is None,
            f"{name} at request {request} depends on earlier calls, or on torch's or NumPy's own generator; make "
            "sample a function of request, roster and seed alone",
        )
    slow = [model.stragglers(subject.roster, subject.seed) for model in (other, deepcopy(subject.model))]
    require(slow[0].shape == (subject.roster.parties,) and slow[0].dtype == torch.bool, f"stragglers are {slow[0]}")
    require(torch.equal(*slow), f"stragglers are {slow[1].tolist()}, and {slow[0].tolist()} after samples")


def hosts_are_those_of_a_sample(subject: Subject) -> None:
    """``hosts`` is the hosts' part of ``sample``."""
    model = deepcopy(subject.model)
    for request, outcome in enumerate(subject.outcomes):
        hosts = model.hosts(request, subject.roster, subject.seed)
        same = torch.equal(hosts, outcome.hosts)
        require(same, f"hosts at request {request} is {hosts.tolist()}, sample says {outcome.hosts.tolist()}")


def silent_is_what_the_outcomes_do(subject: Subject) -> None:
    """A model that loses messages is ``silent``; one that some hosts or links feel ``tells_hosts_apart``.

    One that announces absences ``announces``.
    """
    flags = {
        "announces": ("announced",),
        "silent": ("sends", "receives", "links"),
        "tells_hosts_apart": ("hosts", "links"),
    }
    for request, outcome in enumerate(subject.outcomes):
        for flag, fields_of_flag in flags.items():
            down = [name for name in fields_of_flag if not getattr(outcome, name).all()]
            what = f"{', '.join(down)} of request {request} may be False, but {flag}"
            require(not down or getattr(subject.model, flag), f"{what} is False; return True from {flag}")


LAWS = (
    the_shared_outcome_is_not_changed,
    outcomes_have_their_shapes_units_and_ranges,
    sampling_is_pure,
    hosts_are_those_of_a_sample,
    silent_is_what_the_outcomes_do,
)
