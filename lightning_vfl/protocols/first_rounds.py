"""Checks after the first rounds of a fit: what was given has been used, and the weights of those who learn have moved.

An own protocol may leave out any of this without an error of Python's, and then trains with the same loss.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.step import Step

if TYPE_CHECKING:
    from lightning_vfl.protocols.training import TrainedModule

FEW = 5  # rounds with a loss, after which everybody who was to learn must have learnt


def refuse_unasked_faults(module: "TrainedModule") -> None:
    """Refuse fault models whose outcome the first round has not asked for.

    Raises:
        ConfigurationError: naming the models and the ways out.
    """
    if module.faults.models and module.meets_faults and not module.faults.asked:
        models = ", ".join(sorted({type(model).__name__ for model in module.faults.models}))
        raise ConfigurationError(
            f"the step of {type(module).__name__} has not asked for the faults of its first round, so {models} would "
            "have no effect; use the plan that enter_round(batch) returns, or faults.at(request, roster), or train "
            "without faults"
        )


def refuse_unused_parts(module: "TrainedModule") -> None:
    """Refuse parts that were given and that the first round with a loss has not used.

    Raises:
        ConfigurationError: naming the parts and the ways out.
    """
    if unused := [words for part, words in module.promised().items() if part not in module.used]:
        raise ConfigurationError(
            f"{' and '.join(unused)} of {type(module).__name__} had no part in its first round, so the training would "
            f"go on without; use what applies it ({_APPLIED}), or leave it out"
        )


_APPLIED = "run_round for the aggregator, plan for waiting and missing, super() in guard and with_targets"


class Movement:
    """Which networks have changed since the beginning of a fit, without a copy of them.

    A parameter has changed if torch has counted a change in place, or if the sum of its numbers is another one (some
    optimisers write past torch's count).
    """

    def __init__(self, module: "TrainedModule") -> None:
        bottoms = {id(p) for p in module.bottoms.parameters()}
        self._parties = [_trained(bottom.parameters()) for bottom in module.bottoms.parties]
        self._others = _trained(p for p in module.parameters() if id(p) not in bottoms)
        self._before = {id(p): _state(p) for own in (*self._parties, self._others) for p in own}
        self._learners: set[int] = set()
        self._server = False
        self._sent = module.books.meter.total("up").clone()
        self.rounds = 0

    def note(self, module: "TrainedModule", step: Step) -> None:
        """Note who is to learn from a step with a loss."""
        self.rounds += 1
        sent = module.books.meter.total("up").clone()
        senders, self._sent = sent > self._sent, sent
        everybody = set(range(len(self._parties)))
        withheld = {id(network) for network in step.withheld}
        for party in everybody if step.learners is None else everybody.intersection(step.learners):
            called = not bool(senders.any()) or bool(senders[party])
            if called and id(module.bottoms.parties[party]) not in withheld:
                self._learners.add(party)
        self._server = self._server or id(module.top) not in withheld

    def still(self) -> tuple[list[str], bool]:
        """Those who were to learn and whose weights have not changed, and whether nobody's have."""
        moved = {id(p) for own in (*self._parties, self._others) for p in own if self._moved(p)}
        named = [(f"party {m}", self._parties[m]) for m in sorted(self._learners)]
        named += [("the server", self._others)] if self._server else []
        names = [name for name, own in named if own and not any(id(p) in moved for p in own)]
        return names, not moved

    def _moved(self, parameter: nn.Parameter) -> bool:
        version, total = self._before[id(parameter)]
        return parameter._version != version or _state(parameter)[1] != total


def check_movement(module: "TrainedModule", movement: Movement) -> None:
    """Say whose weights have not changed in the first rounds.

    Raises:
        ConfigurationError: if nobody's have.
    """
    names, nobody = movement.still()
    if not names or not (module.says_who_learns or (nobody and not module.faults.models)):
        return
    rounds = f"{movement.rounds} round{'s' if movement.rounds > 1 else ''}"
    if nobody:
        why = (
            "automatic_optimization is False, and no step of an optimiser was made by hand"
            if not module.automatic_optimization
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


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]


@torch.no_grad()
def _state(parameter: nn.Parameter) -> tuple[int, float]:
    return parameter._version, float(parameter.detach().double().sum())
