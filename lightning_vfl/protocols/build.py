"""Bottoms and tops from factories, tried on two rows before training, so that a wrong width ends in one clear line."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.types import LinearForms, Roster

BottomFactory = Callable[[tuple[int, ...], int], nn.Module]
TopFactory = Callable[[int], nn.Module]
Shape = tuple[int, ...]


def build_bottoms(
    bottom: BottomFactory,
    bottom_of: Mapping[int, BottomFactory],
    aggregator: Aggregator,
    shapes: Sequence[Shape],
    width: int,
) -> PartyBank:
    """One bottom a party, each checked to give the embedding width that the aggregator asks for."""
    strangers = [party for party in bottom_of if not 0 <= party < len(shapes)]
    if strangers:
        raise ConfigurationError(
            f"bottom_of names party {strangers[0]}, but the parties are 0 to {len(shapes) - 1}; correct its number"
        )
    bottoms = []
    for party, (shape, wide) in enumerate(
        zip(shapes, aggregator.widths(width, Roster.singles(len(shapes))), strict=True)
    ):
        network = _make(bottom_of.get(party, bottom), f"the bottom of party {party}", shape, wide)
        _try(network, (2, *shape), wide, f"the bottom {type(network).__name__} of party {party}")
        if aggregator.form is LinearForms and not (hasattr(network, "expand") and hasattr(network, "weight")):
            raise ConfigurationError(
                f"{type(aggregator).__name__} needs bottoms that are linear in one weight matrix, but party {party} "
                f"has {type(network).__name__}; use PolynomialNetwork"
            )
        bottoms.append(network)
    return PartyBank(bottoms)


def build_top(top: TopFactory, width: int, outputs: int) -> nn.Module:
    """The top for an aggregate of this width.

    A factory that declares a parameter ``outputs`` and leaves it open is given what the task needs; any other factory
    is called with the width alone and has to know.
    """
    wanted = {"outputs": outputs} if _leaves_open(top, "outputs") else {}
    network = _make(top, "the top", width, **wanted)
    _try(network, (2, width), outputs, f"the top {type(network).__name__}")
    return network


def refuse_partly_held(aggregator: Aggregator, present: Tensor | None) -> None:
    """Refuse records that not every party holds, for an aggregator that cannot join those."""
    if present is not None and not aggregator.partly_held:
        raise ConfigurationError(
            f"{type(aggregator).__name__} needs every party to hold every record; use overlap: inner, or an aggregator "
            "that joins partly held records (Concat, Sum, Mean, Max)"
        )


def _leaves_open(factory: Callable[..., Any], name: str) -> bool:
    if isinstance(factory, partial) and name in factory.keywords:
        return factory.keywords[name] is None  # what a recipe leaves out arrives as the default, None
    parameter = inspect.signature(factory).parameters.get(name)
    return parameter is not None and parameter.default in (None, inspect.Parameter.empty)


def _make(factory: Callable[..., nn.Module], who: str, *arguments: Any, **more: Any) -> nn.Module:
    try:
        return factory(*arguments, **more)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{who} cannot be built: {error}") from error


def _try(network: nn.Module, shape: Shape, outputs: int, who: str) -> None:
    training = network.training
    network.eval()  # two rows must not enter running statistics
    try:
        with torch.no_grad():
            given = tuple(network(torch.zeros(shape)).shape)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"{who} cannot take input of per-record shape {shape[1:]}: {reason}") from error
    network.train(training)
    if given != (shape[0], outputs):
        raise ConfigurationError(
            f"{who} gives {given[1:]} numbers a record where {outputs} are needed; set its output width to {outputs}"
        )
