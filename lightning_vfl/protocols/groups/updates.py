"""Between the backward pass and the optimiser's step: groups send model updates, and parties learn by local updates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.aggregators.clear import shared_bottoms_of
from lightning_vfl.local_updates import LocalUpdate
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.rounds.exchange import Exchange, from_senders
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import NO_RECORDS, Parties, Tensors
from lightning_vfl.wire import Message

Gradients = dict[int, Tensor]  # by party: (W,), of the bottom that its group shares
SUMS = "summed updates"  # kind of what the server computes, for an audit


def send_updates(module: SplitModel, groups: Sequence[Parties], exchange: Exchange, optimizer: Optimizer) -> None:
    """Send the gradients of these groups' parties; their sum becomes the gradient of the group's bottom.

    Args:
        module: the protocol, after the backward pass.
        groups: the groups that learn from the round.
        exchange: the messages of the round.
        optimizer: the optimiser, before its step.
    """
    for group in groups:
        _join(module, group, _taken(module, group), optimizer, exchange)


def _taken(module: SplitModel, group: Parties) -> Gradients:
    """The gradients of a group's parties, which are taken away from their bottoms."""
    gradients = {}
    for party in group:
        flat = []
        for parameter in module.bottoms.parties[party].parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            flat.append(gradient.flatten())
            parameter.grad = None
        gradients[party] = torch.cat(flat) if flat else torch.empty(0)
    return gradients


def _join(module: SplitModel, group: Parties, gradients: Gradients, optimizer: Optimizer, exchange: Exchange) -> None:
    """Set the sum of the parties' updates as the gradient of the group's shared bottom.

    With plain SGD a party sends its step, -η · gradient (vFedSec, section 3.2.2). Any other optimiser runs at the
    server, with the sum of the gradients.
    """
    first = group[0]
    leading = list(module.bottoms.parties[first].parameters())
    if not leading:
        return
    rate = _plain_sgd_rate(optimizer, leading[0])
    scale = 1.0 if rate is None else -rate
    updates = {party: scale * gradient for party, gradient in gradients.items()}
    server = exchange.server
    shared = shared_bottoms_of(module.aggregator)
    message = shared.tell(updates, exchange.parties)
    tell = module.listener(server.rows.ids)
    if tell is not None:
        tell(from_senders(message, server.roll.included))
    joined = shared.join(message, server)
    if module.tap is not None:
        module.tap.joined(joined, server.names, server.rows.ids, kind=f"{SUMS} of party {first}")

    total = joined.to(updates[first]) / scale
    sizes = [parameter.numel() for parameter in leading]
    for parameter, part in zip(leading, torch.split(total, sizes), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)


def tell_of_bottoms(module: SplitModel, groups: Sequence[Parties], exchange: Exchange) -> Callable[[], None]:
    """A function for after the optimiser's step: it tells an audit the new bottoms that the server sends to groups."""

    def tell() -> None:
        hear = module.listener(NO_RECORDS)
        if hear is None:
            return
        for group in groups:
            flat = [parameter.detach().flatten() for parameter in module.bottoms.parties[group[0]].parameters()]
            new = torch.cat(flat) if flat else torch.empty(0)
            members = tuple(party for party in group if exchange.server.roll.included[party])
            pieces = (new,) * len(members)
            hear(Message("shared bottoms", "parties", (), pieces, receivers=members, round=exchange.parties.names))

    return tell


def _plain_sgd_rate(optimizer: Any, parameter: Tensor) -> float | None:
    """The learning rate η of this parameter, if the optimiser's step is exactly -η · gradient; None otherwise."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning's wrapper
    if type(optimizer) is not torch.optim.SGD:
        return None
    group = next(group for group in optimizer.param_groups if any(other is parameter for other in group["params"]))
    if group["momentum"] or group["weight_decay"] or group["maximize"] or not float(group["lr"]):
        return None
    return float(group["lr"])


# ---- local updates: each party has the one optimiser for itself while it learns


class OneParty:
    """The optimiser for one party, as ``PartyOptimizer`` says; nobody else has gradients meanwhile.

    Args:
        module: whose clipping is used.
        optimizer: of all networks.
        parameters: of the party.
    """

    def __init__(self, module: SplitModel, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self._module = module
        self._optimizer = optimizer
        self._parameters = parameters

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:
        return self._optimizer.state

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        trainer = self._module.trainer
        self._module.configure_gradient_clipping(
            self._optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        )
        self._optimizer.step()


def learn_locally(
    module: SplitModel,
    update: LocalUpdate,
    features: Tensors,
    gradients: Mapping[int, Tensor],
    optimizer: Optimizer,
) -> None:
    """Let the parties that have gradients learn, one after the other; the others' gradients are as before.

    It is called between the backward pass and the optimiser's step, which then changes the other networks alone.
    """
    owners = list(module.owners())
    waiting = {parameter: parameter.grad for parameter in module.parameters() if parameter.grad is not None}
    settings = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    for parameter in waiting:
        parameter.grad = None
    for party, gradient in sorted(gradients.items()):
        parameters = list(owners[party].parameters())
        for parameter in parameters:
            parameter.grad = waiting.pop(parameter, None)
        view = OneParty(module, optimizer, parameters)
        seed, names = module.bottoms.stream or (module.seed, ())
        seed_torch(gradient.device, module.keys.get(party, seed), *names, "party", party, "local update")
        module.learns_locally = True
        try:
            with module.trainer.precision_plugin.forward_context():
                update.learn(party, module.bottoms.parties[party], features[party], gradient, view)
        finally:
            module.learns_locally = False
        view.zero_grad()
        for group, before in zip(optimizer.param_groups, settings, strict=True):
            group.update(before)
    for parameter, gradient in waiting.items():
        parameter.grad = gradient
