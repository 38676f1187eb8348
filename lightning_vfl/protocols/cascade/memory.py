"""The state of cascade training between events: replicas, latest embeddings, and embeddings in transit."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.memory import Memory


@dataclass
class Replica:
    """The networks at the START of a period: the parties' bottoms, and the active party's replica of the top.

    The lists are made once, because every event asks for them several times.
    """

    bottoms: PartyBank
    top: nn.Module

    @cached_property
    def bottom_tensors(self) -> list[Tensor]:
        """Parameters and buffers of the bottoms."""
        return _tensors(self.bottoms)

    @cached_property
    def top_tensors(self) -> list[Tensor]:
        """Parameters and buffers of the top."""
        return _tensors(self.top)

    @cached_property
    def bottom_parameters(self) -> list[Tensor]:
        """Parameters of the bottoms."""
        return list(self.bottoms.parameters())

    @cached_property
    def party_parameters(self) -> list[list[nn.Parameter]]:
        """Parameters of each party's bottom."""
        return [list(bottom.parameters()) for bottom in self.bottoms.parties]

    @cached_property
    def top_parameters(self) -> list[nn.Parameter]:
        """Parameters of the top."""
        return list(self.top.parameters())


class Replicas:
    """One copy of all networks for every active party.

    The simulation stores the bottoms at START instead of the embeddings that they computed at START. The result is the
    same, and the embeddings are computed when they are needed. The copies are not submodules of the protocol, so
    neither the optimiser nor state_dict contains them; ``state`` puts them into checkpoints for resuming.

    ``live`` has the networks that are trained, ``of`` the copy of each active party.

    Args:
        parties: the active parties.
        bottoms: the bottoms to copy, on the device where they are trained.
        top: the collaborator's top.
    """

    def __init__(self, parties: Sequence[int], bottoms: PartyBank, top: nn.Module) -> None:
        self.live = Replica(bottoms, top)
        self.of = {party: Replica(deepcopy(bottoms).requires_grad_(False), deepcopy(top)) for party in parties}
        for replica in self.of.values():
            for module in (replica.bottoms, replica.top):
                module.zero_grad()

    @torch.no_grad()
    def refresh(self, party: int, top: bool = True) -> None:
        """Copy the current bottoms for a party that begins a period, and the global top if the party received it."""
        replica = self.of[party]
        live = self.live
        _copy(replica.bottom_tensors, live.bottom_tensors)
        if top:
            _copy(replica.top_tensors, live.top_tensors)

    def state(self) -> dict[int, dict[str, dict[str, Tensor]]]:
        """The state for a checkpoint: L times all parameters."""
        return {
            party: {"bottoms": replica.bottoms.state_dict(), "top": replica.top.state_dict()}
            for party, replica in self.of.items()
        }

    def load_state(self, state: dict[int, dict[str, Any]]) -> None:
        """Restore the replicas from a checkpoint.

        Raises:
            ConfigurationError: if the checkpoint has other active parties.
        """
        if sorted(state) != sorted(self.of):
            raise ConfigurationError(
                f"the checkpoint has replicas of parties {sorted(state)}, but in this run parties {sorted(self.of)} "
                "hold labels; resume with the same label partition"
            )
        for party, networks in state.items():
            self.of[party].bottoms.load_state_dict(networks["bottoms"])
            self.of[party].top.load_state_dict(networks["top"])


def refuse_above(limit_bytes: float, parties: int, bottoms: PartyBank, top: nn.Module) -> int:
    """The bytes of the replicas of ``parties`` active parties.

    Raises:
        ConfigurationError: if these are more than ``limit_bytes``.
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


def _copy(into: list[Tensor], of: list[Tensor]) -> None:
    if into:  # networks without parameters have none
        torch._foreach_copy_(into, of)


class Late(NamedTuple):
    """A late embedding (B, D_m), and the virtual time of its arrival."""

    moment: float
    party: int
    ids: Tensor
    h: Tensor


class CascadeMemory(Memory):
    """The replicas of the active parties, and the memory of the policy for missing embeddings.

    Args:
        missing: the policy.
    """

    def __init__(self, missing: MissingPolicy) -> None:
        self.latest = missing.memory
        self.late: dict[int, list[Late]] = {}  # embeddings in transit, by receiving active party
        self._replicas: Replicas | None = None  # None before a fit
        self._resumed: dict[int, dict[str, Any]] = {}

    @property
    def replicas(self) -> Replicas:
        """The replicas, once the training has started."""
        if self._replicas is None:
            raise RuntimeError("there are no replicas before the training starts; read them after on_train_start")
        return self._replicas

    def start_over(self) -> None:
        """Clear the memory for a new fit; ``load`` may restore it afterwards."""
        self.late.clear()
        self._resumed = {}

    def begin(self, replicas: Replicas) -> bool:
        """Store new replicas, in the loaded state if there is one; returns whether there was one."""
        self._replicas = replicas
        resumed = self._resumed
        self._resumed = {}
        if resumed:
            replicas.load_state(resumed)
        return bool(resumed)

    def send(self, joiner: int, message: Late) -> None:
        """Store a late embedding that is in transit to an active party."""
        if self.latest is not None:
            self.late.setdefault(joiner, []).append(message)

    def receive(self, joiner: int, now: float) -> None:
        """Write the embeddings that have arrived at an active party until ``now`` into the policy's memory."""
        on_the_way = sorted(self.late.get(joiner, []), key=lambda message: message.moment)
        come = [message for message in on_the_way if message.moment <= now]
        if self.latest is not None:
            for message in come:
                self.latest.write(message.ids, message.party, message.h)
            self.late[joiner] = on_the_way[len(come) :]

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        if self.latest is not None:
            self.latest.prepare(records, widths, device)

    def move(self, device: torch.device) -> None:
        if self.latest is not None:
            self.latest.move(device)

    def state(self) -> dict[str, Any]:
        if self._replicas is None:
            return {}
        late = {party: [list(message) for message in messages] for party, messages in self.late.items() if messages}
        missing = {} if self.latest is None else self.latest.state()
        return {"missing": missing, "late": late, "replicas": self._replicas.state()}

    def load(self, state: dict[str, Any]) -> None:
        if self.latest is not None and state["missing"]:
            self.latest.load(state["missing"])
        self.late = {party: [Late(*message) for message in messages] for party, messages in state["late"].items()}
        self._resumed = state["replicas"]
