"""What a party does with the gradient of its embeddings: the part that makes its step, and more local steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.flops import Work
from lightning_vfl.rebuildable import Rebuildable

__all__ = ["LocalSteps", "LocalUpdate", "PartyOptimizer"]


class PartyOptimizer(Protocol):
    """The optimiser of the training, for the networks of one party alone."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The settings; a change is undone after ``learn``, so it is for one party in one round."""
        ...

    @property
    def state(self) -> Mapping[Any, Any]:
        """The state of each parameter."""
        ...

    def zero_grad(self) -> None:
        """Delete the party's gradients."""
        ...

    def step(self) -> None:
        """Clip the party's gradients as the trainer does, and change its weights."""
        ...


class LocalUpdate(Rebuildable, ABC):
    """How a party learns from a round; it is called where the gradient has arrived, instead of the party's step.

    A local update sends no message, so the bytes of a round are those without it. It draws from torch's generator,
    which is seeded by the round and the party. It must keep nothing between rounds: no checkpoint has it.
    """

    @abstractmethod
    def learn(
        self, party: int, bottom: nn.Module, features: Tensor, gradient: Tensor, optimizer: PartyOptimizer
    ) -> None:
        """Change the party's weights. Its parameters have the gradients of the round, as after ``backward``.

        Args:
            party: its number.
            bottom: its network.
            features: (B, *S_m), its rows of the batch.
            gradient: (B, D_m), the gradient of its embeddings, which becomes stale with the first step.
            optimizer: steps on its parameters alone.
        """

    @abstractmethod
    def flops(self, party: int, bottom: Work) -> float:
        """The operations for one record in addition to one forward and one backward pass of the bottom, ``bottom``."""

    def check(self, parties: int) -> None:
        """Refuse settings that do not suit so many parties; default: all do."""
        return


class LocalSteps(LocalUpdate):
    """Several local steps with the same gradient of the embeddings (Flex-VFL; FedBCD for equal numbers of steps).

    Guarantee: with one step, the weights have the same bits as without a local update.
    Not guaranteed: that more steps help: after the first, the gradient is stale.

    Args:
        steps: Q, the number of steps of every party in a round, or by party; a party that is not named makes one.
        proximal: μ of the term μ/2 ‖w - w_0‖² that FedProx adds to the loss, with the weights w_0 of the round.

    Raises:
        ConfigurationError: before training, for a number below 1 or a party that there is not; for μ below 0.

    References:
        Castiglia, Wang, Patterson, "Flexible Vertical Federated Learning With Heterogeneous Parties", TNNLS 2023.
        Liu et al., "FedBCD: A Communication-Efficient Collaborative Learning Framework for Distributed Features", 2022.
        Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, equation 2.
    """

    def __init__(self, steps: int | dict[int, int] = 2, proximal: float = 0.0) -> None:
        for number in steps.values() if isinstance(steps, Mapping) else [steps]:
            positive("steps", number, whole=True)
        self.steps = steps
        self.proximal = within("proximal", proximal, 0)

    def of(self, party: int) -> int:
        """The number of steps of a party."""
        return self.steps.get(party, 1) if isinstance(self.steps, Mapping) else self.steps

    def learn(
        self, party: int, bottom: nn.Module, features: Tensor, gradient: Tensor, optimizer: PartyOptimizer
    ) -> None:
        trained = [parameter for parameter in bottom.parameters() if parameter.requires_grad] if self.proximal else []
        first = [parameter.detach().clone() for parameter in trained]
        optimizer.step()
        for _ in range(self.of(party) - 1):
            optimizer.zero_grad()
            bottom(features).backward(gradient)
            for parameter, start in zip(trained, first, strict=True):
                if parameter.grad is not None:  # the gradient of the proximal term
                    parameter.grad.add_(parameter.detach() - start, alpha=self.proximal)
            optimizer.step()

    def flops(self, party: int, bottom: Work) -> float:
        return (self.of(party) - 1) * (bottom.forward + bottom.backward)

    def check(self, parties: int) -> None:
        named = self.steps if isinstance(self.steps, Mapping) else {}
        if strangers := [party for party in named if not 0 <= party < parties]:
            raise ConfigurationError(
                f"steps of LocalSteps names party {strangers[0]}; parties are from 0 to {parties - 1}"
            )
