"""What each active party has last seen of everybody's parameters."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.bank import PartyBank


@dataclass
class Replica:
    """Networks as they were when a period began: the parties' bottoms then, and the top that the party has then."""

    bottoms: PartyBank
    top: nn.Module


class Replicas:
    """One copy of all networks for every active party.

    A simulation keeps the bottoms of the START of a period instead of the embeddings that they gave then: it is the
    same, and computed when it is needed. The copies are no submodules of anybody: neither optimiser nor state_dict
    sees them; ``state`` puts them into checkpoints that can be resumed.

    Args:
        parties: the active ones.
        bottoms: the networks that are copied, on the device where they are trained.
        top: the collaborator's.
    """

    def __init__(self, parties: Sequence[int], bottoms: PartyBank, top: nn.Module) -> None:
        self._live = bottoms, top
        self.of = {party: Replica(deepcopy(bottoms).requires_grad_(False), deepcopy(top)) for party in parties}
        for replica in self.of.values():
            for module in (replica.bottoms, replica.top):
                module.zero_grad()

    @torch.no_grad()
    def refresh(self, party: int, top: bool = True) -> None:
        """A party begins a period: bottoms as they are, and the global top if it was sent to it."""
        replica, (bottoms, live_top) = self.of[party], self._live
        _copy(replica.bottoms, bottoms)
        if top:
            _copy(replica.top, live_top)

    def state(self) -> dict[int, dict[str, dict[str, Tensor]]]:
        """For a checkpoint: L times all parameters."""
        return {
            party: {"bottoms": replica.bottoms.state_dict(), "top": replica.top.state_dict()}
            for party, replica in self.of.items()
        }

    def load_state(self, state: dict[int, dict[str, Any]]) -> None:
        """Go on from there.

        Raises:
            ConfigurationError: if the active parties are others.
        """
        if sorted(state) != sorted(self.of):
            raise ConfigurationError(
                f"the checkpoint has the replicas of parties {sorted(state)}, here parties {sorted(self.of)} hold "
                "labels; resume with the same labels"
            )
        for party, networks in state.items():
            self.of[party].bottoms.load_state_dict(networks["bottoms"])
            self.of[party].top.load_state_dict(networks["top"])


def refuse_above(limit_bytes: float, parties: int, bottoms: PartyBank, top: nn.Module) -> int:
    """The bytes of so many replicas.

    Raises:
        ConfigurationError: if they are more than the limit.
    """
    size = parties * sum(tensor.nbytes for network in (bottoms, top) for tensor in _tensors(network))
    if size > limit_bytes:
        raise ConfigurationError(
            f"the replicas of {parties} active parties take {size / 1e6:,.0f} MB, here and in every checkpoint, more "
            f"than limit_bytes = {limit_bytes:.0f}; raise the limit, or use smaller networks or fewer active parties"
        )
    return size


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _copy(to: nn.Module, source: nn.Module) -> None:
    torch._foreach_copy_(_tensors(to), _tensors(source))
