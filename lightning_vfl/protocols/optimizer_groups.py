"""Settings of the one optimiser that single owners of networks have for themselves."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.build import made
from lightning_vfl.types import Roster

SERVER = "server"
Settings = Mapping[int | str, dict[str, Any]]  # by party number or ``SERVER``


def settings_by_owner(optimizer_of: object) -> Settings:
    """The settings as they were given; None stands for none.

    Raises:
        ConfigurationError: for anything but a dictionary of dictionaries.
    """
    named = {} if optimizer_of is None else optimizer_of
    if isinstance(named, Mapping) and all(isinstance(settings, dict) for settings in named.values()):
        return named
    raise ConfigurationError(
        f"optimizer_of must be a dictionary from parties to settings, such as {{0: {{'lr': 0.1}}}}; got {named!r}"
    )


def check_settings(named: Settings, roster: Roster, owners: Sequence[nn.Module]) -> None:
    """Accept settings of parties that have a bottom of their own, and of the server.

    Raises:
        ConfigurationError: for another party, a party of a group, and a server that there is not.
    """
    parties = [party for party in named if party != SERVER]
    for party in parties:
        within("a party of optimizer_of", int(party), 0, roster.parties - 1, whole=True)
    if shared := [group for group in roster.shared if set(group).intersection(parties)]:
        raise ConfigurationError(
            f"optimizer_of names a party of group {list(shared[0])}, which shares one bottom; leave it out"
        )
    if SERVER in named and len(owners) == roster.parties:
        raise ConfigurationError("optimizer_of names the server, but this protocol has none; name parties")


def make_optimizer(
    factory: Callable[[Iterable[Any]], Optimizer],
    parameters: list[nn.Parameter],
    named: Settings,
    owners: Sequence[nn.Module],
) -> Optimizer:
    """The optimiser of all parameters, in which the owners that are named have a group of their own.

    Args:
        factory: makes it from parameters or groups.
        parameters: all of them.
        named: the settings.
        owners: the networks of each party, and last the server's.

    Raises:
        ConfigurationError: for a setting that the optimiser does not take.
    """
    if not named:
        return made("optimizer", factory, parameters, Optimizer)
    rest = dict.fromkeys(parameters)
    groups: list[dict[str, Any]] = []
    for owner, settings in named.items():
        network = owners[-1] if owner == SERVER else owners[int(owner)]
        members = [parameter for parameter in network.parameters() if parameter in rest]
        if members:  # in a federation, only one owner has parameters in a process
            title = SERVER if owner == SERVER else f"party {owner}"
            groups.append({"params": members, "name": title, **settings})
        for parameter in members:
            del rest[parameter]
    if rest:
        groups.append({"params": list(rest), "name": "others"})
    optimizer = made("optimizer", factory, groups, Optimizer)
    for owner, settings in named.items():
        _refuse_other_settings(optimizer, owner, settings)
    return optimizer


def _refuse_other_settings(optimizer: Optimizer, owner: int | str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that the optimiser's constructor refuses: of a group, torch takes any."""
    kind = type(optimizer)
    taken = inspect.signature(kind).parameters
    usual = {name: value for name, value in optimizer.defaults.items() if name in taken}
    alone = partial(kind, **{**usual, **settings})
    made(f"optimizer_of[{owner}]", alone, [nn.Parameter(torch.zeros(1))])


def make_schedule(factory: Callable[[Optimizer], LRScheduler], optimizer: Optimizer, named: Settings) -> LRScheduler:
    """The schedule of an optimiser.

    Raises:
        ConfigurationError: for a schedule that would replace the rates of single owners.
    """
    rates = [group.get("lr") for group in optimizer.param_groups]
    schedule = made("lr_scheduler", factory, optimizer)
    first = [group.get("initial_lr", group.get("lr")) for group in optimizer.param_groups]
    if named and first != rates:
        raise ConfigurationError(
            f"lr_scheduler {type(schedule).__name__} would replace the rates of optimizer_of; use one that multiplies "
            "rates, such as StepLR"
        )
    return schedule
