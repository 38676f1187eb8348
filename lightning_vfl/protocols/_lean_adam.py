"""The default optimiser: torch's fused Adam, without looking its state up anew at every step.

The name of this module begins with an underscore, because command lines made with jsonargparse offer all public
subclasses of torch's optimisers by their short names: a second ``Adam`` would make ``--optimizer Adam`` ambiguous.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

_STEP = inspect.unwrap(torch.optim.Adam.step)  # without the hooks, which the step below has already run
_OTHERWISE = "amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay"


@dataclass(frozen=True, eq=False)
class _Group:
    """The parameters of a group that had a gradient, and their state; ``steps`` are the elements of ``counts``."""

    parameters: list[Tensor]
    others: list[Tensor]
    states: list[dict[str, Tensor]]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]
    counts: Tensor

    def is_in(self, state: dict[Any, Any]) -> bool:
        """Whether nobody has put other tensors in their place: ``load_state_dict`` and a move to a device do."""
        own = zip(self.parameters, self.states, self.means, strict=True)
        return all(state.get(p) is kept and kept["exp_avg"] is mean for p, kept, mean in own)


class Adam(torch.optim.Adam):
    """``torch.optim.Adam(parameters, lr, fused=True)`` with the same bits in less time.

    A step of torch's class collects parameters, gradients and state anew and counts the steps of every parameter by
    itself, which for a hundred small parameters takes as long as the arithmetic. Here the lists are kept from step to
    step, and all counts are elements of one tensor. Used on the CPU where the same parameters have a gradient as in the
    step before; in every other step torch's own runs, on the same state.

    Guarantee: parameters and ``state_dict()`` have the bits of torch's class after any steps, also where parameters
        have no gradient in some of them, and also after ``load_state_dict``.
    Not guaranteed: that a state tensor is noticed which somebody replaces by hand in ``state[parameter]``, other than
        ``exp_avg``.

    Args:
        parameters: as of torch's class.
        lr: the learning rate.
    """

    def __init__(self, parameters: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(parameters, lr=lr, fused=True)
        self._kept: list[_Group | None] = []

    @classmethod
    def of(cls, optimizer: Optimizer) -> Optimizer:
        """This class in place of torch's own, new and with ``fused=True``; any other optimiser as it is."""
        new = type(optimizer) is torch.optim.Adam and not optimizer.state
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        if not new or hooks or not all(group["fused"] for group in optimizer.param_groups):
            return optimizer
        return cls(optimizer.param_groups)  # with all their settings

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._kept = []

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step, after that of the ``closure``, whose loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        known = [self._known(number) for number in range(len(self.param_groups))]
        if not all(known):
            _STEP(self)
            self._keep()
            return loss
        for group, (kept, gradients) in zip(self.param_groups, filter(None, known), strict=True):
            beta1, beta2 = group["betas"]
            kept.counts.add_(1)
            torch._fused_adam_(
                kept.parameters, gradients, kept.means, kept.squares, [], kept.steps,
                amsgrad=False, lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
                eps=group["eps"], maximize=False,
            )  # fmt: skip
        return loss

    def _known(self, number: int) -> tuple[_Group, list[Tensor]] | None:
        """The lists of a group with all gradients; None where torch's own step has to run."""
        group, kept = self.param_groups[number], self._kept[number] if number < len(self._kept) else None
        if kept is None or len(kept.parameters) + len(kept.others) != len(group["params"]):
            return None
        if not kept.is_in(self.state) or any(p.grad is not None for p in kept.others):
            return None
        if isinstance(group["lr"], Tensor) or not group["fused"] or any(group[name] for name in _OTHERWISE):
            return None
        if getattr(self, "grad_scale", None) is not None:  # of a gradient scaler
            return None
        gradients = [p.grad for p in kept.parameters if p.grad is not None]
        return (kept, gradients) if len(gradients) == len(kept.parameters) else None

    def _keep(self) -> None:
        """Keep the lists of the parameters that have just been updated; the next step is likely to update the same."""
        self._kept = [self._listed(group["params"]) for group in self.param_groups]

    def _listed(self, group: list[Tensor]) -> _Group | None:
        parameters, others = ([p for p in group if (p.grad is None) == without] for without in (False, True))
        dense = all(p.device.type == "cpu" and p.grad.layout == torch.strided for p in parameters)  # type: ignore[union-attr]  # has one
        if not parameters or not dense or len({p.dtype for p in parameters}) > 1:
            return None
        states: list[dict[str, Tensor]] = [self.state[p] for p in parameters]
        counts = torch.stack([own["step"] for own in states])
        steps = list(counts.unbind())
        for own, step in zip(states, steps, strict=True):
            own["step"] = step
        means, squares = ([own[name] for own in states] for name in ("exp_avg", "exp_avg_sq"))
        return _Group(parameters, others, states, means, squares, steps, counts)
