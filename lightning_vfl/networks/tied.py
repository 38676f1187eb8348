"""Parameters of equal networks side by side in memory, so that running the networks in one call needs no copies."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

    Guarantee: the same numbers as ``torch.stack`` of the parameters, and the same gradients.

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
        together = _SideBySide.apply(flats, *(p for own in parameters for p in own))  # type: ignore[no-untyped-call]
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
