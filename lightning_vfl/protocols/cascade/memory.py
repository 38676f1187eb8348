"""The state of cascade training between events: replicas, latest embeddings, and embeddings in transit."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.missing import MissingPolicy
from lightning_vfl.networks.memory import Memory
from lightning_vfl.protocols.cascade.replicas import Replicas


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
