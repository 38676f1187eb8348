"""Functions that make networks and optimisers: the networks exist when the data are known, and not before."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_vfl.errors import ConfigurationError, reason

T = TypeVar("T")

_MAKES = {
    "bottom": "a network from a party's shape and the width, such as MLP, or "
    "lambda shape, width: nn.Linear(shape[0], width)",
    "host": "a network from the widths of its input and output, such as MLP",
    "top": "a network from the width of its input, and from outputs if it takes them, such as Linear",
    "optimizer": "an optimiser from parameters, such as partial(torch.optim.SGD, lr=0.1)",
    "lr_scheduler": "a schedule from the optimiser, such as partial(CosineAnnealingLR, T_max=10)",
}


def refuse_made(**given: Any) -> None:
    """Accept functions and classes; None stands for a default.

    Args:
        given: by setting; of ``bottom_of``, and of a ``top`` in halves, the values are checked.

    Raises:
        ConfigurationError: for a network, an optimiser or a schedule that is made already, and for what makes nothing.
    """
    parties = given.get("bottom_of")
    if parties is not None and not (isinstance(parties, Mapping) and all(isinstance(m, int | str) for m in parties)):
        raise ConfigurationError(
            "bottom_of must be a dictionary from numbers or names of parties to factories, such as {1: MLP}; got "
            f"{parties!r}"
        )
    top = given.get("top")
    if isinstance(top, Mapping) and set(top) != {"server", "active"}:
        raise ConfigurationError(f"a top in halves must have the keys server and active; got {sorted(map(str, top))}")
    for setting, value in given.items():
        if isinstance(value, Mapping):
            for name, own in value.items():
                _check(f"{setting}[{name}]", "top" if setting == "top" else "bottom", own)
        elif value is not None:
            _check(setting, setting, value)


def made(setting: str, factory: Callable[..., T], given: object, kind: type = object) -> T:
    """What a factory makes of the parameters or the optimiser.

    Raises:
        ConfigurationError: if it fails, or makes something else.
    """
    try:
        thing = factory(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{setting} cannot be made: {reason(error)}") from error
    if not isinstance(thing, kind):
        raise ConfigurationError(f"{setting} must make {_MAKES[setting]}; it makes {thing!r}")
    return thing


def _check(setting: str, kind: str, value: object) -> None:
    if callable(value) and not isinstance(value, nn.Module | Optimizer | LRScheduler):
        return
    what = repr(value) if isinstance(value, str | int | float) else f"the {type(value).__name__} itself"
    raise ConfigurationError(f"{setting} must make {_MAKES[kind]}; got {what}")
