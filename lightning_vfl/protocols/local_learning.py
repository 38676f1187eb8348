"""Local updates of parties in a training: each has the one optimiser for itself while it learns."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.local_updates import LocalUpdate
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.streams import seed_torch


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
    features: tuple[Tensor, ...],
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
