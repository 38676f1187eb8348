"""The place of a downlink: behind the aggregate, in the server's graph."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.downlinks.base import Downlink, LabelDownlink
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import PLAIN, NotPlain

FEW = 10


def guarded(value: Tensor, protect: Callable[[Tensor], Tensor], records: float = 1) -> Tensor:
    """The value (B, D), with ``protect`` applied to the gradient that goes back through it.

    ``records``: of the mean loss whose gradient it is; ``protect`` has the gradient of each record's own loss.
    """
    inside: Tensor = _Guarded.apply(value, protect, records)  # type: ignore[no-untyped-call]  # torch's
    return inside


def refuse_mixed_gradients(downlink: Downlink, norm: nn.Module | None, top: nn.Module) -> None:
    """Refuse networks of the server in which the gradient of one record depends on labels of other records.

    Raises:
        ConfigurationError: naming the layer.
    """
    networks = [network for network in (norm, top) if network is not None]
    mixing = [layer for network in networks for layer in network.modules() if isinstance(layer, _MIXING)]
    if downlink.event is not None and mixing:
        raise ConfigurationError(
            f"{type(downlink).__name__} protects the gradient of each record alone, and {type(mixing[0]).__name__} in "
            "the server's network mixes the records of a batch; use LayerNorm, or RandomizedResponse"
        )


def refuse_other_labels(downlink: Downlink, records: Any, seed: int, classes: int | None) -> None:
    """Refuse a downlink whose ``targets`` no loss can use; it is asked for those of the first records.

    Args:
        downlink: of the training.
        records: the training records.
        seed: of the training.
        classes: the number of classes; None: labels are real values.

    Raises:
        ConfigurationError: for what is no tensor, for another number of rows, and for a class that does not exist.
    """
    first = torch.arange(min(len(records), FEW))
    if (labels := records.labels_at(first)) is None:
        return
    name = type(downlink).__name__
    found = downlink.targets(labels, first, seed)
    if not isinstance(found, Tensor) or found.shape[:1] != labels.shape[:1]:
        what = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise ConfigurationError(f"targets of {name} returned {what} for {len(labels)} labels; return one for each")
    if classes is None or found.is_floating_point():
        return
    returned = sorted(set(found.flatten().tolist()))
    if returned and not 0 <= returned[0] <= returned[-1] < classes:
        raise ConfigurationError(
            f"targets of {name} returned the classes {returned}; return classes from 0 to {classes - 1}"
        )


def protects_labels(downlink: Downlink) -> bool:
    """Whether something is claimed of the labels of single records."""
    return downlink.event is not None or isinstance(downlink, LabelDownlink)


def refuse_unprotected_loss(downlink: Downlink, needs_labels: str | None, criterion: object) -> None:
    """Refuse losses in which labels count that the downlink does not protect.

    Args:
        downlink: of the training.
        needs_labels: the part of the objective that is made of the labels of all training records, if there is one.
        criterion: the loss function of the objective, if it has one.

    Raises:
        ConfigurationError: for class weights, and for a mean and deviation, that are made of the true labels, and for a
            loss that divides by the sum of the weights of a batch.
    """
    name = type(downlink).__name__
    if needs_labels is not None and protects_labels(downlink):
        raise ConfigurationError(
            f"{needs_labels} is made of the true labels of all training records, which {name} does not protect; leave "
            "it out, or give class_weights as numbers"
        )
    if downlink.event is not None and isinstance(criterion, nn.CrossEntropyLoss) and criterion.weight is not None:
        raise ConfigurationError(
            f"{name} protects the gradient of each record alone, and CrossEntropyLoss with weights divides by those of "
            "the whole batch; give class_weights, a number for each class"
        )


def title(downlink: Downlink) -> str:
    """What a resumed fit must keep: the class, and for labels that are drawn once also what is claimed of them."""
    name = type(downlink).__name__
    return f"{name} ({downlink.claim()})" if isinstance(downlink, LabelDownlink) else name


def refuse_other_downlink(downlink: Downlink, kept: Mapping[str, Any] | None) -> None:
    """Refuse to resume rounds that another downlink has protected, or none: what is claimed would not hold for them.

    Args:
        downlink: of the resumed fit.
        kept: what the checkpoint has of its downlink; None: there was none.

    Raises:
        ConfigurationError: naming both.
    """
    before = None if kept is None else kept["title"]
    if protects_labels(downlink) and before != title(downlink):
        raise ConfigurationError(
            f"the checkpoint was trained with {before or 'no downlink'}, and this fit has {title(downlink)}, which "
            "claims something about all rounds; resume with the same downlink, or begin a new fit"
        )
    if kept is None or before != title(downlink) or downlink.event is not None:  # an account charges rounds as they are
        return
    settings = settings_of(downlink)
    if other := [name for name in settings if kept["settings"].get(name) != settings[name]]:
        name = other[0]
        raise ConfigurationError(
            f"the checkpoint was trained with {name} {kept['settings'].get(name)} of {type(downlink).__name__}, and "
            f"this fit has {settings[name]}; resume with the same settings, or begin a new fit"
        )


def settings_of(downlink: Downlink) -> dict[str, str]:
    """The plain settings of a downlink as texts, with defaults; empty if its constructor does not name them."""
    try:
        given = downlink.init_args
    except NotPlain:
        return {}
    parameters = [*inspect.signature(type(downlink).__init__).parameters.values()][1:]
    named = {one.name: one.default for one in parameters if one.default is not one.empty}
    return {name: repr(value) for name, value in (named | given).items() if isinstance(value, PLAIN)}


_MIXING = nn.modules.batchnorm._BatchNorm


class _Guarded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, protect: Callable[[Tensor], Tensor], records: float) -> Tensor:
        ctx.protect = protect
        ctx.records = records
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            sent = ctx.protect(grads[0] * ctx.records)
        if not isinstance(sent, Tensor) or sent.shape != grads[0].shape:
            found = tuple(sent.shape) if isinstance(sent, Tensor) else type(sent).__name__
            raise ConfigurationError(
                f"protect of the downlink returned {found} for gradients {tuple(grads[0].shape)}; return a tensor with "
                "a row for each record, of the same width"
            )
        return sent / ctx.records, None, None
