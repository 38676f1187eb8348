"""Every parameter that is trained belongs to one owner, which alone trains it."""

from collections.abc import Iterable

from torch import nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.errors import ConfigurationError


def refuse_shared(owners: Iterable[nn.Module], parties: int) -> None:
    """Refuse a trained parameter in the networks of two owners: parties are apart, and each has its own numbers.

    A parameter that is not trained may be shared, and so may layers within the networks of one owner.

    Args:
        owners: the networks of the parties, then of further hosts, then the server's.
        parties: how many parties there are.

    Raises:
        ConfigurationError: naming both owners and the parameter.
    """
    networks = list(owners)
    hosts = len(networks) - parties - 1
    everyone = [*(f"party {m}" for m in range(parties)), *(f"host {n}" for n in range(hosts)), "the server"]
    owner: dict[int, str] = {}
    for who, network in zip(everyone, networks, strict=False):  # heads of parties have no server beside them
        for name, parameter in network.named_parameters():
            first = owner.setdefault(id(parameter), who)
            if first != who and parameter.requires_grad:
                raise ConfigurationError(
                    f"{first} and {who} have one parameter together, {name} {tuple(parameter.shape)}, and would train "
                    "it as one party; make new layers in every call of the factory, or freeze the layer that is shared"
                )


def refuse_parameters_of(aggregator: Aggregator) -> None:
    """Refuse an aggregator that holds parameters: no optimiser has them, and no checkpoint.

    Raises:
        ConfigurationError: naming the attribute.
    """
    attributes = dict(vars(aggregator))
    if isinstance(aggregator, nn.Module):  # its parameters are in no attribute of their own
        attributes |= dict(aggregator.named_parameters())
    for name, value in attributes.items():
        parameters = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(parameter, nn.Parameter) and parameter.requires_grad for parameter in parameters):
            raise ConfigurationError(
                f"{type(aggregator).__name__} holds parameters ({name}), which nobody would train, because an "
                "aggregator only joins embeddings; put them into the top"
            )


def refuse_unregistered(module: nn.Module) -> None:
    """Refuse parameters in a list, tuple or dictionary, which torch neither trains nor saves.

    Raises:
        ConfigurationError: naming the attribute and the class to use.
    """
    known = {id(parameter) for parameter in module.parameters()}
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, list | tuple | dict):
            continue
        for part in value.values() if isinstance(value, dict) else value:
            parameters = part.parameters() if isinstance(part, nn.Module) else [part]
            trained = (one for one in parameters if isinstance(one, nn.Parameter) and one.requires_grad)
            if any(id(one) not in known for one in trained):
                container = "nn.ModuleDict" if isinstance(value, dict) else "nn.ModuleList or nn.ParameterList"
                raise ConfigurationError(
                    f"{name} of {type(module).__name__} is a {type(value).__name__} with parameters, which are neither "
                    f"trained nor saved; use {container}"
                )
