"""Checks after the first rounds of a fit: what was given has been used, and the weights of those who learn have moved.

An own protocol may leave out any of this without an error of Python's, and then trains with the same loss.
"""

import pickle
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from math import isfinite
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torchmetrics import Metric

from lightning_vfl.downlinks import Downlink
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.protocols.step import Step

_LIBRARIES = ("lightning_vfl", "lightning", "torch", "torchmetrics")
_NOT_OWN = {*vars(LightningModule()), "used"}  # attributes of every network and every protocol
_MOST = 2**24  # bytes of a tensor that may be state; a larger one is data
FEW = 5  # steps of an optimiser, after which everybody who was to learn must have learnt


def refuse_unasked_faults(module: SplitModel) -> None:
    """Refuse fault models whose outcome the first round has not asked for.

    Raises:
        ConfigurationError: naming the models and the ways out.
    """
    if module.faults.models and module.meets_faults and not module.faults.asked:
        models = ", ".join(sorted({type(model).__name__ for model in module.faults.models}))
        raise ConfigurationError(
            f"the step of {type(module).__name__} has not asked for the faults of its first round, so {models} would "
            "have no effect; use round(batch, names), the plan that enter_round(batch, names) returns, or "
            "faults.at(request, roster), or train without faults"
        )


def refuse_unused_parts(module: SplitModel) -> None:
    """Refuse parts that were given and that the first round with a loss has not used.

    Raises:
        ConfigurationError: naming the parts and the ways out.
    """
    if unused := [words for part, words in module.promised().items() if part not in module.used]:
        raise ConfigurationError(
            f"{' and '.join(unused)} of {type(module).__name__} had no part in its first round, so the training would "
            f"go on without; use what applies it ({_APPLIED}), or leave it out"
        )


_APPLIED = "round for the aggregator, waiting and missing, super() in guard and with_targets"


class Movement:
    """Which networks have changed since the beginning of a fit, without a copy of them.

    A parameter has changed if torch has counted a change in place, or if the sum of its numbers is another one (some
    optimisers write past torch's count). A parameter need not change if an optimiser steps on a gradient that moves it
    by nothing: the gradient is zero or not finite, or the learning rate is zero or as small as rounding.
    """

    def __init__(self, module: SplitModel) -> None:
        bank = module.bottoms
        bottoms = {id(p) for p in module.bottoms.parameters()}
        first = {m: group[0] for group in bank.shared for m in group}  # the optimiser has its copy alone
        self._parties = [_trained(bank.parties[first.get(m, m)].parameters()) for m in range(len(bank))]
        self._others = _trained(p for p in module.parameters() if id(p) not in bottoms)
        self._before = {id(p): _state(p) for own in (*self._parties, self._others) for p in own}
        self._learners: set[int] = set()
        self._server = False
        self._excused: set[int] = set()
        self._sent = module.books.meter.total("up").clone()
        self._steps = {id(optimizer): 0 for optimizer in module.trainer.optimizers}
        self.given_up_before = module.books.given_up
        self.states_before: dict[tuple[int, str], bytes] = {}
        self.rounds = 0

    @property
    def steps(self) -> int:
        """The steps of the optimiser; of several optimisers, of the one with the fewest steps."""
        return min(self._steps.values(), default=0)

    @property
    def is_over(self) -> bool:
        """Whether there were ``FEW`` updates, in rounds with a loss and in steps of every optimiser."""
        return min(self.rounds, self.steps) >= FEW

    def note(self, module: SplitModel, step: Step) -> None:
        """Note who is to learn from a step; refuse faults and parts that the first round has not used."""
        refuse_unasked_faults(module)
        sent = module.books.meter.total("up").clone()
        senders, self._sent = sent > self._sent, sent  # since the round before, also if that had no loss
        if step.loss is None:
            return
        if self.rounds == 0:
            refuse_unused_parts(module)
        self.rounds += 1
        if self.rounds == 2:  # what a part computes once, for example from the shapes, is there
            self.states_before = own_states(module)
        everybody = set(range(len(self._parties)))
        withheld = {id(network) for network in step.withheld}
        for party in everybody if step.learners is None else everybody.intersection(step.learners):
            called = not bool(senders.any()) or bool(senders[party])
            if called and id(module.bottoms.parties[party]) not in withheld:
                self._learners.add(party)
        self._server = self._server or id(module.top) not in withheld

    def note_gradients(self, optimizer: Optimizer) -> None:
        """Note a step of an optimiser, and the parameters that need not change in it."""
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if _moves_nothing(parameter, float(group.get("lr", 1.0))):
                    self._excused.add(id(parameter))

    def still(self) -> tuple[list[str], bool]:
        """Those who were to learn and whose weights have not changed, and whether nobody's have."""
        watched = [p for own in (*self._parties, self._others) for p in own if p.requires_grad]
        fine = {id(p) for p in watched if id(p) in self._excused or self._moved(p)}
        named = [(f"party {m}", self._parties[m]) for m in sorted(self._learners)]
        named += [("the server", self._others)] if self._server else []
        learning = [(name, [p for p in own if p.requires_grad]) for name, own in named]
        return [name for name, own in learning if own and fine.isdisjoint(map(id, own))], not fine

    def _moved(self, parameter: nn.Parameter) -> bool:
        version, total = self._before[id(parameter)]
        return parameter._version != version or _state(parameter)[1] != total


def check_movement(module: SplitModel, movement: Movement) -> None:
    """Say whose weights have not changed in the first rounds, and what they have not counted.

    Raises:
        ConfigurationError: if nobody's have.
    """
    if not movement.rounds:
        _warn_no_loss(module, movement)
        return
    _check_weights(module, movement)
    _warn_of_states(module, movement)
    _warn_uncounted(module, movement.rounds)


def _check_weights(module: SplitModel, movement: Movement) -> None:
    names, nobody = movement.still()
    if not names or not (module.says_who_learns or (nobody and not module.faults.models)):
        return
    rounds = _several(movement.rounds)
    if nobody:
        why = (
            "automatic_optimization is False, and no step of an optimiser was made by hand"
            if not (module.automatic_optimization or movement.steps)
            else "the optimiser has made no step that changes them"
        )
        raise ConfigurationError(
            f"no weight of {type(module).__name__} has changed in the first {rounds}: {why}; leave "
            "automatic_optimization at True, give configure_optimizers an optimiser of all parameters whose step calls "
            "its closure, or set "
            "requires_grad to False where nothing is to be learnt"
        )
    rank_zero_warn(
        f"the weights of {' and '.join(names)} have not changed in the first {rounds} of {type(module).__name__}: the "
        "loss does not depend on them (detach, no_grad), or the optimiser does not have them; set requires_grad to "
        "False on networks that are not to learn"
    )


def _warn_no_loss(module: SplitModel, movement: Movement) -> None:
    """Warn of a fit of which no round had a loss, if nobody has learnt by steps of an author's own."""
    own_step = not getattr(getattr(type(module), "step", None), "__final__", False)
    rounds = module.books.given_up - movement.given_up_before
    if rounds < (1 if own_step else FEW) or not movement.still()[1]:  # faults may give a few rounds in a row up
        return
    remedy = "return Step(loss) from step" if own_step else "use a policy that goes on without missing parties"
    rank_zero_warn(
        f"no weight of {type(module).__name__} has changed in this fit, because no round had a loss "
        f"({_several(rounds)} given up); {remedy}"
    )


def own_states(module: SplitModel) -> dict[tuple[int, str], bytes]:
    """Hashes of what an author's objects keep and no checkpoint has, by object and a name like ``MyBottom.count``.

    These are plain attributes and non-persistent buffers. What is of a class of the toolkit has its own place in a
    checkpoint, if it has a state, and so has a downlink that implements ``state``. Lists are left out: they are usually
    records of a training, which no round reads.
    """
    saved = [own for own in (module.books.own, module.memory) if own is not None]
    states: dict[tuple[int, str], bytes] = {}
    for part in (*module.modules(), *_parts(module)):
        if _package(type(part)) in _LIBRARIES or isinstance(part, Metric):  # metrics begin each epoch
            continue
        for name, value in _unsaved(part).items():
            is_saved = _package(type(value)) == "lightning_vfl" or any(value is own for own in saved)
            if is_saved or isinstance(value, list):
                continue
            content = _Content()
            with suppress(Exception):  # a function of an author's own, for example, has no pickled form
                content.dump(value)
                states[id(part), f"{type(part).__name__}.{name}"] = content.digest()
    return states


class _Content(pickle.Pickler):
    """Hashes a value without a copy of it; refuses one as large as data.

    Networks and their parameters are in checkpoints, and what was computed with a graph is computed again: they are
    left out.
    """

    def __init__(self) -> None:
        self._found = sha256()
        super().__init__(self)

    def write(self, data: bytes) -> None:
        self._found.update(data)

    def digest(self) -> bytes:
        return self._found.digest()

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, nn.Module | nn.Parameter) or (isinstance(value, Tensor) and value.requires_grad):
            return "computed or saved"
        if isinstance(value, Tensor | np.ndarray) and value.nbytes > _MOST:
            raise MemoryError
        return None


def _package(defined: Any) -> str:
    return str(defined.__module__).partition(".")[0]


def _parts(module: SplitModel) -> tuple[object, ...]:
    """The parts of a protocol that are no networks, each of which may be None."""
    downlink = getattr(module, "downlink", None)
    return (
        module.aggregator,
        module.local_update,
        module.compressor,
        module.gradient_compressor,
        module.waiting,
        module.missing,
        module.missing.stand_in,
        getattr(module, "subsets", None),
        downlink if getattr(type(downlink), "state", None) is Downlink.state else None,
        *module.faults.models,
    )


def _unsaved(part: object) -> dict[str, Any]:
    """The attributes of an object that are in no checkpoint."""
    attributes = {name: value for name, value in getattr(part, "__dict__", {}).items() if name not in _NOT_OWN}
    hooks = [getattr(type(part), name, None) for name in ("get_extra_state", "on_save_checkpoint")]
    if any(hook is not None and _package(hook) not in _LIBRARIES for hook in hooks):
        return {}  # it saves what it keeps
    if isinstance(part, SplitModel):
        base = next(base for base in type(part).__mro__ if _package(base) == "lightning_vfl")
        return {name: value for name, value in attributes.items() if name[0] != "_" and not hasattr(base, name)}
    if isinstance(part, nn.Module):
        attributes |= {name: part._buffers[name] for name in part._non_persistent_buffers_set}
    return attributes


def _warn_of_states(module: SplitModel, movement: Movement) -> None:
    """Warn of what an author's object keeps between rounds: a resumed fit would go on without it."""
    states = own_states(module)
    if changed := {key[1]: None for key, state in movement.states_before.items() if states.get(key, state) != state}:
        rank_zero_warn(
            f"{' and '.join(changed)} changes from round to round, and no checkpoint has it: if a round reads it, a "
            "resumed fit has other bits; keep it in a buffer of a network (register_buffer) or in own_books of a "
            "protocol, or compute it from the round alone"
        )


def _warn_uncounted(module: SplitModel, rounds: int) -> None:
    """Warn of a protocol of which neither bytes nor seconds are counted; one that sends nothing counts its seconds."""
    meter = module.books.meter
    if module.clock.seconds or meter.total("up").any() or meter.total("down").any():
        return
    rank_zero_warn(
        f"{type(module).__name__} has counted no bytes and no virtual seconds in its first {_several(rounds)}, so its "
        "records stay at 0; call round(batch, names) or enter_round(batch, names) in its step, or "
        "clock.advance(seconds) if it sends nothing"
    )


def refuse_diverged(module: SplitModel) -> None:
    """Refuse to go on if the processes of a training do not have the same weights.

    Raises:
        ConfigurationError: in every process, naming whose weights differ.
    """
    bottoms = [list(bottom.parameters()) for bottom in module.bottoms.parties]
    theirs = {id(parameter) for own in bottoms for parameter in own}
    owners = {f"party {m}": own for m, own in enumerate(bottoms)}
    owners["the server"] = [parameter for parameter in module.parameters() if id(parameter) not in theirs]
    here = torch.tensor([_digest(own) for own in owners.values()], device=module.device)
    everywhere = module.trainer.strategy.all_gather(here)
    equal = (everywhere == everywhere[0]).all(0).tolist()
    if all(equal):
        return
    names = [name for name, same in zip(owners, equal, strict=True) if not same]
    raise ConfigurationError(
        f"after the first epoch the weights of {' and '.join(names)} differ between the {len(everywhere)} processes of "
        f"this training: {type(module).__name__} changes weights outside of the step of the optimiser, for which the "
        "processes average gradients; change them by the loss of a Step, or use devices: 1"
    )


def _several(rounds: int) -> str:
    return f"{rounds} round{'s' if rounds > 1 else ''}"


def _digest(parameters: Iterable[nn.Parameter]) -> int:
    """63 bits of a hash of these weights."""
    found = sha256()
    for parameter in parameters:
        numbers = parameter.detach().cpu().contiguous().reshape(-1)
        found.update(numbers.view(torch.uint8).numpy().tobytes())
    return int.from_bytes(found.digest()[:8], "big") >> 1


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad and not is_lazy(p)]


@torch.no_grad()
def _state(parameter: nn.Parameter) -> tuple[int, float]:
    numbers = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    return parameter._version, float(numbers.sum(dtype=torch.float64))


@torch.no_grad()
def _moves_nothing(parameter: Tensor, rate: float) -> bool:
    """Whether a step at this rate leaves the parameter as it is, by its gradient and by rounding."""
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.strided or not gradient.numel():
        return False
    largest = float(gradient.abs().max())
    move = rate * min(largest, 1.0)  # of an optimiser that scales gradients, a large one moves no more than the rate
    return not isfinite(largest) or move <= torch.finfo(parameter.dtype).eps * float(parameter.abs().max())
