"""Faults as data: the outcome of a request, and models that compute the outcome from a seed.

A request is one call to a party, a host or a link. Each party, host and link counts its own requests. Round t of
``SplitVFL`` makes requests 2t (forward) and 2t + 1 (backward) of every party. The k-th event of party m in ``AsyncVFL``
makes requests 2k and 2k + 1 of party m alone. A fault model is a pure function of (request, roster, seed). So two
protocols with the same seed meet the same faults, all processes of a run compute the same faults, and a checkpoint
does not need to store any.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import ClassVar

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.rebuildable import printed
from lightning_vfl.streams import seed_of
from lightning_vfl.types import Roster

_REMEMBERED = 4096  # cached outcomes: asynchronous parties ask for the same request at different times


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class RoundOutcome:
    """The outcome of one request for all parties, hosts and links; ``together`` joins those of several models.

    Shapes: (M,) for parties, (H,) for hosts, (M, H) for links; on the CPU.
    Units: ``delay`` and ``peer_delay`` float64 seconds, 0 or more; ``slowdown`` float64, 1 or more; the others bool.

    Args:
        delay: seconds that pass before a party sends to the server.
        peer_delay: seconds that pass before a party sends to its peers; a leg says which part of it applies.
        slowdown: factor on a party's computing time.
        announced: False for a party that is known to be absent before the round. The server does not call it.
        sends: False for a party that is called and sends nothing.
        receives: False for a party that the server's answer does not reach.
        hosts: False for a host (the server of a protocol that has one) that is down.
        links: False for a connection between a party and a host that is down.
    """

    delay: Tensor
    peer_delay: Tensor
    slowdown: Tensor
    announced: Tensor
    sends: Tensor
    receives: Tensor
    hosts: Tensor
    links: Tensor

    @classmethod
    @cache
    def nothing(cls, roster: Roster) -> "RoundOutcome":
        """The outcome of a request without faults."""
        m, h = roster.parties, roster.hosts
        with torch.inference_mode(False):  # so that the tensors count their changes, see _refuse_changed
            zero, one = torch.zeros(m, dtype=torch.float64), torch.ones(m, dtype=torch.float64)
            yes = torch.ones(m, dtype=torch.bool)
            hosts = torch.ones(h, dtype=torch.bool)
            links = torch.ones(m, h, dtype=torch.bool)
        return cls(zero, zero, one, yes, yes, yes, hosts, links)


_JOIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "delay": torch.add,
    "peer_delay": torch.add,
    "slowdown": torch.mul,
    **dict.fromkeys(("announced", "sends", "receives", "hosts", "links"), torch.logical_and),
}
LEAST = {"delay": 0, "peer_delay": 0, "slowdown": 1}


def together(nothing: RoundOutcome, outcomes: Sequence[RoundOutcome]) -> RoundOutcome:
    """The outcome if the faults of several models happen: seconds add up, slowdowns multiply, flags hold together.

    A field that is the same tensor object as in ``nothing`` was not changed by a model, and is skipped.
    """
    joined = {}
    for name, join in _JOIN.items():
        neutral = getattr(nothing, name)
        said = [value for outcome in outcomes if (value := getattr(outcome, name)) is not neutral]
        joined[name] = reduce(join, said) if said else neutral
    return RoundOutcome(**joined)


def differing(one: RoundOutcome, other: RoundOutcome) -> str | None:
    """The first field in which two outcomes differ; None: they are the same, bit for bit."""
    return next((name for name in _JOIN if not torch.equal(getattr(one, name), getattr(other, name))), None)


class FaultModel(ABC):
    """A model of one kind of fault; subclass it for your own kind.

    Class data:
        stream_name: the random streams of the model begin with this name; default: the name of the class. A class that
            is renamed keeps the old name here, so that seeds give the same faults.

    The laws of a fault model; ``lightning_vfl.testing.check_fault_model`` checks 1, 2 and 4 for a class of your own:

    1. ``sample`` is pure: the same (request, roster, seed) gives the same bits, in any order of calls. A model keeps
       no counter, and draws from streams that these name.
    2. outcomes have the shapes, units and ranges of ``RoundOutcome``.
    3. the seed matters, unless the model draws nothing.
    4. ``silent`` is True if ``sends``, ``links`` or ``receives`` may be False; ``tells_hosts_apart`` is True if
       ``hosts`` or ``links`` may be False; ``announces`` is True if ``announced`` may be False.
    """

    stream_name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "stream_name" not in vars(cls):
            cls.stream_name = cls.__name__

    @abstractmethod
    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        """The outcome of this request for all parties, hosts and links."""

    def hosts(self, request: int, roster: Roster, seed: int) -> Tensor:
        """(H,) bool, the hosts' part of ``sample``, for protocols in which hosts have their own requests."""
        if not self.tells_hosts_apart:
            return RoundOutcome.nothing(roster).hosts
        return self.sample(request, roster, seed).hosts

    @property
    def silent(self) -> bool:
        """Whether messages may be lost without notice; a server that waits for such messages needs a timeout."""
        return False

    @property
    def tells_hosts_apart(self) -> bool:
        """Whether some hosts, or some links to hosts, may be down while others are up; default: yes."""
        return True

    @property
    def announces(self) -> bool:
        """Whether parties may be announced as absent; default: yes."""
        return True

    def stragglers(self, roster: Roster, seed: int) -> Tensor:
        """(M,) bool, the parties known to be slow for the whole run, which ``Ignore`` never calls; default: none."""
        return torch.zeros(roster.parties, dtype=torch.bool)

    __repr__ = printed


class Faults:
    """All fault models of a run and their joint outcome.

    Args:
        seed: the seed of the run. Each model has its own random streams, named by its ``stream_name`` and its number
            among the models with this name.

    Examples:
        >>> faults = Faults(seed=0)
        >>> faults.at(0, Roster.singles(2)).sends.tolist()
        [True, True]
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.models: tuple[FaultModel, ...] = ()
        self.asked = False  # whether a training has asked for an outcome
        self._seeded: tuple[tuple[FaultModel, int], ...] = ()
        self._recent: dict[tuple[int, Roster], RoundOutcome] = {}
        self._slow: dict[Roster, Tensor] = {}

    def add(self, model: FaultModel) -> None:
        """Add a model; a model that was added before is not added again."""
        if not any(model is known for known in self.models):
            self._hold((*self.models, model))

    def remove(self, model: FaultModel) -> None:
        """Remove a model."""
        self._hold(tuple(known for known in self.models if known is not model))

    def reseed(self, seed: int) -> None:
        """Use the seed of another run: a resumed run has the faults of the run that it continues."""
        self.seed = seed
        self._hold(self.models)

    def check(self, roster: Roster) -> None:
        """Accept models whose outcome of the first request has the shapes and kinds of ``RoundOutcome``, twice.

        Raises:
            ConfigurationError: naming the model, the field and both shapes, or the field that differs.
        """
        needed = RoundOutcome.nothing(roster)
        for model, seed in self._seeded:
            outcome = _sampled(model, 0, roster, seed)
            again = _sampled(model, 0, roster, seed)
            for name in _JOIN:
                _refuse_other_form(f"{name} that {type(model).__name__} samples", outcome, name, needed)
            _refuse_wrong_values(model, outcome, needed)
            if other := differing(outcome, again):
                raise ConfigurationError(
                    f"{type(model).__name__} samples another {other} when it is asked for request 0 again, so a "
                    "resumed run would have other faults; make sample a function of request, roster and seed alone"
                )

    def at(self, request: int, roster: Roster) -> RoundOutcome:
        """The joint outcome of this request."""
        self.asked = True
        key = (request, roster)
        outcome = self._recent.get(key)
        if outcome is None:
            if len(self._recent) >= _REMEMBERED:
                self._recent.clear()
            nothing = RoundOutcome.nothing(roster)
            sampled = []
            for model, seed in self._seeded:
                sampled.append(_sampled(model, request, roster, seed))
                _refuse_wrong_values(model, sampled[-1], nothing)
            outcome = sampled[0] if len(sampled) == 1 else together(nothing, sampled)
            self._recent[key] = outcome
        return outcome

    def hosts_at(self, request: int, roster: Roster) -> Tensor:
        """(H,) bool, the hosts that are up at this request to hosts."""
        self.asked = True
        up = RoundOutcome.nothing(roster).hosts
        for model, seed in self._seeded:
            up = up & model.hosts(request, roster, seed)
        return up

    def stragglers(self, roster: Roster) -> Tensor:
        """(M,) bool, the known stragglers of the whole run."""
        if roster not in self._slow:
            slow = torch.zeros(roster.parties, dtype=torch.bool)
            for model, seed in self._seeded:
                slow = slow | model.stragglers(roster, seed)
            self._slow[roster] = slow
        return self._slow[roster]

    @property
    def silent(self) -> bool:
        """Whether messages may be lost without notice."""
        return any(model.silent for model in self.models)

    @property
    def announce(self) -> bool:
        """Whether parties may be announced as absent."""
        return any(model.announces for model in self.models)

    @property
    def tell_hosts_apart(self) -> bool:
        """Whether a message may reach one host and not another."""
        return any(model.tells_hosts_apart for model in self.models)

    def _hold(self, models: tuple[FaultModel, ...]) -> None:
        met: Counter[str] = Counter()
        seeds = []
        for model in models:
            name = model.stream_name
            seeds.append(seed_of(self.seed, "faults", name, met[name]))
            met[name] += 1
        self.models = models
        self._seeded = tuple(zip(models, seeds, strict=True))
        self._recent.clear()
        self._slow.clear()


def _sampled(model: FaultModel, request: int, roster: Roster, seed: int) -> RoundOutcome:
    """The outcome of a request by one model; an error of its class is told in one line."""
    try:
        return model.sample(request, roster, seed)
    except ConfigurationError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ConfigurationError(
            f"{model!r} has no outcome of request {request} for {roster.parties} parties and {roster.hosts} hosts: "
            f"{reason(error)}; correct its settings or its method sample"
        ) from error


def _refuse_other_form(who: str, outcome: RoundOutcome, name: str, needed: RoundOutcome) -> None:
    wanted, given = getattr(needed, name), getattr(outcome, name, None)
    truth = wanted.dtype == torch.bool
    if isinstance(given, Tensor) and given.shape == wanted.shape and (given.dtype == torch.bool) == truth:
        return
    found = f"{tuple(given.shape)} {given.dtype}" if isinstance(given, Tensor) else repr(given)
    raise ConfigurationError(f"{who} must be {tuple(wanted.shape)} {wanted.dtype}; got {found}")


def _refuse_wrong_values(model: FaultModel, outcome: RoundOutcome, nothing: RoundOutcome) -> None:
    """Refuse times below their least value, NaN, and a model that has written into the tensors of all requests."""
    if any(getattr(nothing, name)._version for name in _JOIN):
        RoundOutcome.nothing.cache_clear()
        raise ConfigurationError(
            f"{type(model).__name__} writes into a tensor of RoundOutcome.nothing, which all requests share; return "
            "replace(outcome, FIELD=tensor) with a tensor of its own"
        )
    for name, least in LEAST.items():
        value = getattr(outcome, name)
        if value is not getattr(nothing, name) and not float(value.min()) >= least:
            raise ConfigurationError(
                f"{name} that {type(model).__name__} samples must be {least} or more; got {value.tolist()}"
            )
