"""Parameters of equal networks side by side in memory, so that running the networks in one call needs no copies."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.networks.batched import STACKED


class Tied:
    """n networks of one architecture; the parameters of one name are rows of one tensor.

    Every network keeps its own ``nn.Parameter`` objects, so optimisers and checkpoints see n networks. The parameters
    share memory with the stacked tensors of ``batched``, so neither the forward pass nor the optimiser copies a
    parameter. Operations that move parameters in memory (``deepcopy``, ``.to()``, ``load_state_dict`` with ``assign``)
    are detected at the next use, and the parameters are then stored side by side again.

    Guarantee: the same numbers as ``torch.stack`` of the parameters, and the same gradients after ``backward``.
    Not guaranteed: ``torch.autograd.grad`` for a single parameter: the leaves of the graph are the stacked tensors, and
        a parameter is given its rows of their gradients, without a node of the graph for each parameter. Where a
        parameter has hooks of its own, the graph has all parameters.

    Args:
        networks: networks of one architecture, each with a batched rule.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        places = [list(_places(network)) for network in networks]
        self.places = list(zip(*places, strict=True))  # by name: (layer, parameter's name) of every network
        self._flat: dict[int, Tensor] = {}

    @contextmanager
    def stacked(self) -> Iterator[None]:
        """Store the stacked parameters, differentiable, at the first network's layers, where ``batched`` reads them."""
        parameters = [[layer._parameters[name] for layer, name in place] for place in self.places]
        flats = tuple(self._side_by_side(number, own) for number, own in enumerate(parameters))
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for own in parameters for p in own):
            together = _SideBySide.apply(flats, *(p for own in parameters for p in own))  # type: ignore[no-untyped-call]
        else:
            together = map(_leaf, flats, parameters)
        firsts = [place[0] for place in self.places]
        try:
            for (layer, name), tensor in zip(firsts, together, strict=True):
                layer.__dict__.setdefault(STACKED, {})[name] = tensor
            yield
        finally:
            for layer, _ in firsts:
                layer.__dict__.pop(STACKED, None)

    def _side_by_side(self, number: int, parameters: list[Any]) -> Tensor:
        """The tensor with these parameters as rows, (n, *shape)."""
        flat = self._flat.get(number)
        if flat is not None and flat.dtype == parameters[0].dtype:
            begin, step = flat.data_ptr(), flat.stride(0) * flat.element_size()
            if all(p.data_ptr() == begin + i * step for i, p in enumerate(parameters)):
                return flat
        with torch.inference_mode(False), torch.no_grad():  # parameters made in inference mode cannot be trained
            flat = self._flat[number] = torch.stack([p.detach() for p in parameters])
            for p, row in zip(parameters, flat, strict=True):
                p.data = row
        return flat


def _leaf(flat: Tensor, parameters: list[Any]) -> Tensor:
    """The tensor with these parameters as rows, as a leaf of a graph that gives each parameter its gradient."""
    leaf = flat.detach()
    if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
        leaf.requires_grad_()
        leaf.register_post_accumulate_grad_hook(partial(_hand_out, parameters))  # type: ignore[no-untyped-call]  # torch's
    return leaf


def _hand_out(parameters: list[Any], leaf: Tensor) -> None:
    """Add the rows of the gradient to those of the parameters."""
    gradient, leaf.grad = leaf.grad, None
    if gradient is None:
        return
    for p, row in zip(parameters, gradient.unbind(0), strict=True):
        if p.requires_grad:
            p.grad = row if p.grad is None else p.grad + row


class _SideBySide(torch.autograd.Function):
    """Connects parameters with the tensors that contain them as rows; the gradient of a row goes to its parameter."""

    @staticmethod
    def forward(ctx: Any, flats: tuple[Tensor, ...], *parameters: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat.detach() for flat in flats)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *(row for gradient in gradients for row in gradient.contiguous().unbind(0)))


def own_memory(network: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Hook of ``state_dict``: copy the parameters, so that a file of one network does not have those of others."""
    for name, _parameter in network.named_parameters():
        tensor = state.get(prefix + name)
        if tensor is not None and not tensor.requires_grad:
            state[prefix + name] = tensor.clone()


def _places(network: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Every parameter as (layer, name in the layer)."""
    for layer in network.modules():
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                yield layer, name
