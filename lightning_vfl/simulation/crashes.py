"""Crashes: parties, hosts or connections that fail and come back."""

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.checks import one_of, within
from lightning_vfl.simulation.draws import BLOCK, uniform_block
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.streams import Name
from lightning_vfl.types import Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]


class Crashes(FaultModel):
    """Each guest (or host, or connection) is alive or dead, and its state may change at each of its requests.

    All start alive. At request t one uniform number U is drawn for each guest. A guest that is alive dies if
    U < ``down``; a guest that is dead comes back if U ≥ 1 - ``rejoin``. The state changes before the request is
    answered. A dead guest neither sends nor receives. For crashes of several kinds, use one model for each.

    The state at a late request is found without a walk from request 0. If ``down`` + ``rejoin`` ≤ 1, a draw leads to
    the same state from both states, or changes nothing. Above 1, it leads to the same state or exchanges the two. So
    the last draw that leads to one state, and the number of exchanges after it, determine the state.

    Guarantee: the expected number of earlier draws that are needed is below 1 / (1 - |1 - down - rejoin|), plus the
        rest of a block of 64, for any request. The states of guest m, of host h and of the link (m, h) do not depend on
        other guests and hosts.

    Args:
        what: ``guests`` (the parties), ``hosts``, or the ``connections`` between them.
        down: the probability at a request that a living guest dies.
        rejoin: the probability at a request that a dead guest comes back.

    Raises:
        ConfigurationError: for another ``what``, or numbers outside [0, 1].

    Examples:
        >>> model = Crashes("guests", down=1.0, rejoin=1.0)
        >>> [model.sample(t, Roster.singles(2), seed=0).sends.tolist() for t in range(2)]
        [[False, False], [True, True]]

    References:
        Amalanshu, Sirvi, Inouye, "Decoupled Vertical Federated Learning" (DVFL), appendix D.2 (fault simulation;
        the paper prints the rate of rejoining as the threshold of both transitions; here each transition has its own
        rate; in table 1 down is 0.3, rejoin 1, 0.5 and 0.1).
    """

    stream_name: ClassVar[str] = "CrashChain"
    announces = False

    def __init__(self, what: str, down: float, rejoin: float) -> None:
        one_of("what", what, ("guests", "hosts", "connections"))
        self.what = what
        self.down = within("down", down, 0, 1)
        self.rejoin = within("rejoin", rejoin, 0, 1)

    @property
    def silent(self) -> bool:
        return self.down > 0 and self.what != "hosts"  # the server waits for no message of a host

    @property
    def tells_hosts_apart(self) -> bool:
        return self.down > 0 and self.what != "guests"

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        nothing = RoundOutcome.nothing(roster)
        if self.what == "guests":
            alive = self._alive(request, roster.parties, seed, "guests")
            return replace(nothing, sends=alive, receives=alive)
        # one stream for each host, independent of the number of hosts
        each = 1 if self.what == "hosts" else roster.parties
        states = [self._alive(request, each, seed, self.what, host) for host in range(roster.hosts)]
        if self.what == "hosts":
            return replace(nothing, hosts=torch.cat(states))
        return replace(nothing, links=torch.stack(states, dim=1))

    def hosts(self, request: int, roster: Roster, seed: int) -> Tensor:
        if self.what != "hosts":
            return RoundOutcome.nothing(roster).hosts
        return self.sample(request, roster, seed).hosts

    def _alive(self, request: int, entities: int, seed: int, *names: Name) -> Tensor:
        """(entities,) bool, the states after the draw of this request."""
        block, row = divmod(request, BLOCK)
        return _states(self.down, self.rejoin, seed, block, entities, *names)[row]


@lru_cache(maxsize=1024)
def _states(down: float, rejoin: float, seed: int, block: int, entities: int, *names: Name) -> Tensor:
    """(BLOCK, entities) bool, the states after each request of a block."""
    u = uniform_block(seed, block, entities, *names)
    dies, revives = u < down, u >= 1.0 - rejoin
    states = np.empty_like(dies)
    state = _before(down, rejoin, seed, block, entities, *names)
    for row in range(BLOCK):
        state = states[row] = np.where(state, ~dies[row], revives[row])
    return torch.from_numpy(states)


def _before(down: float, rejoin: float, seed: int, block: int, entities: int, *names: Name) -> "Flags":
    """(entities,) bool, the states before the first request of a block, found backwards block by block."""
    state = np.ones(entities, dtype=np.bool_)  # all start alive
    if down + rejoin == 0.0 or (down + rejoin == 2.0 and BLOCK % 2 == 0):
        return state  # all states never change, or always change: no draw determines the state
    exchanged = np.zeros(entities, dtype=np.bool_)
    unknown = np.ones(entities, dtype=np.bool_)
    while block > 0 and unknown.any():
        block -= 1
        settled, to, odd = _moves(down, rejoin, seed, block, entities, *names)
        state = np.where(unknown & settled, to, state)
        exchanged ^= unknown & odd
        unknown &= ~settled
    return state ^ exchanged


@lru_cache(maxsize=4096)  # to find a rare crash, every later block reads many earlier blocks
def _moves(
    down: float, rejoin: float, seed: int, block: int, entities: int, *names: Name
) -> tuple["Flags", "Flags", "Flags"]:
    """The effect of a block's draws on each chain of states.

    Returns:
        Three arrays (entities,): whether a draw sets the state (it leads to one state from both states); the state that
        the last such draw sets; whether the number of exchanges after it (of all exchanges, if there is no such draw)
        is odd.
    """
    u = uniform_block(seed, block, entities, *names)
    dies, revives = u < down, u >= 1.0 - rejoin
    settles = dies ^ revives
    settled: Flags = np.any(settles, axis=0)
    last = np.where(settled, BLOCK - 1 - settles[::-1].argmax(0), -1)
    later = np.arange(BLOCK)[:, None] > last
    odd = (dies & revives & later).sum(0) % 2 == 1
    return settled, revives[last, np.arange(entities)], odd
