"""What cascade training keeps between events: replicas, the latest embeddings, and embeddings that are on the way."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.missing import MissingPolicy
from lightning_vfl.networks.memory import Memory
from lightning_vfl.protocols.cascade.replicas import Replicas


class Late(NamedTuple):
    """An embedding (B, D_m) that was not in time, and the virtual moment at which it comes."""

    moment: float
    party: int
    ids: Tensor
    h: Tensor


class CascadeMemory(Memory):
    """The replicas of the active parties, and what the policy for the missing remembers.

    Args:
        missing: the policy.
    """

    def __init__(self, missing: MissingPolicy) -> None:
        self.latest = missing.memory
        self.late: dict[int, list[Late]] = {}  # on the way to each active party
        self._replicas: Replicas | None = None  # before a fit
        self._resumed: dict[int, dict[str, Any]] = {}

    @property
    def replicas(self) -> Replicas:
        """The replicas, once the training has started."""
        if self._replicas is None:
            raise RuntimeError("the replicas are made when the training starts")
        return self._replicas

    def start_over(self) -> None:
        """A fit begins: nothing is on the way, and no replicas are to be taken up unless ``load`` follows."""
        self.late.clear()
        self._resumed = {}

    def begin(self, replicas: Replicas) -> bool:
        """Keep these replicas from now on, in the state that was loaded; gives whether there was one."""
        self._replicas = replicas
        resumed, self._resumed = self._resumed, {}
        if resumed:
            replicas.load_state(resumed)
        return bool(resumed)

    def send(self, joiner: int, message: Late) -> None:
        """An embedding sets out to an active party, and comes too late."""
        if self.latest is not None:
            self.late.setdefault(joiner, []).append(message)

    def receive(self, joiner: int, now: float) -> None:
        """Remember what has come to an active party until now."""
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
