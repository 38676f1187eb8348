"""Random delays; some parties are slow for the whole run."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation.delays import Delay, Exponential
from lightning_vfl.simulation.draws import BLOCK, uniform_block
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.streams import permutation
from lightning_vfl.types import Parties, Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Stragglers(FaultModel):
    """Random delays of all parties' messages, longer ones for a share of the parties. The seconds are virtual.

    The defaults are the delay pattern of FedVS section 6.2: half of the parties have exponential delays of mean 0.1 s,
    and the means of the other half increase. The scan of the paper does not show the increase. It is taken to be
    mean_i = 0.1 + i · step seconds for i = 1 .. ⌊M / 2⌋, with step = 0.1.

    Units: seconds.
    Guarantee: the set of slow parties depends only on the seed and the number of parties; a larger share adds parties
        to the set and removes none. Messages to the server and to peers are delayed by independent draws of the same
        distribution. A leg states which share of a delay applies to the leg.

    Args:
        share: the share of the parties that are slow; ⌊share · M⌋ parties are.
        fast: the delays of the other parties; None: ``Exponential(0.1)``.
        slow: the delays of the slow parties, which have ranks 1, 2, …; None: ``Exponential(0.1, step=0.1)``.
        parties: the numbers of the slow parties, the least slow first, instead of ``share``; None: drawn from the seed.
        delay_of: delays of single parties by number, at rank 0. They do not change which parties count as slow.

    Raises:
        ConfigurationError: for a share outside [0, 1], and for parties that do not exist or are named twice.

    Examples:
        >>> model = Stragglers(parties=[2, 0])
        >>> model.stragglers(Roster.singles(4), seed=0).tolist()
        [True, False, True, False]

    References:
        Li, Yao, Liu, "FedVS: Straggler-Resilient and Privacy-Preserving Vertical Federated Learning for Split Models",
        ICML 2023, section 6.2 (delay pattern).
    """

    stream_name: ClassVar[str] = "SlowParties"
    announces = False
    tells_hosts_apart = False

    def __init__(
        self,
        share: float = 0.5,
        fast: Delay | None = None,
        slow: Delay | None = None,
        parties: list[int] | None = None,
        delay_of: dict[int, Delay] | None = None,
    ) -> None:
        within("share", share, 0, 1)
        if parties is not None and len(set(parties)) < len(parties):
            raise ConfigurationError(f"parties must name each slow party once; got {parties}")
        self.share = share
        self.fast = fast or Exponential(0.1)
        self.slow = slow or Exponential(0.1, step=0.1)
        self.parties = parties
        self.delay_of = dict(delay_of or {})
        # cached results of a pure function
        self._blocks: dict[tuple[int, int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        block, row = divmod(request, BLOCK)
        key = (block, roster.parties, seed)
        if key not in self._blocks:
            if len(self._blocks) >= _REMEMBERED:
                self._blocks.clear()
            self._blocks[key] = self._drawn(*key)
        delays, peer_delays, slowdown = self._blocks[key]
        nothing = RoundOutcome.nothing(roster)
        return replace(nothing, delay=delays[row], peer_delay=peer_delays[row], slowdown=slowdown)

    def _drawn(self, block: int, m: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Delays to the server and to the peers of a block of requests, (BLOCK, M), and the slowdowns, (M,)."""
        delays = np.empty((BLOCK, m))
        peer_delays = np.empty((BLOCK, m))
        slowdown = np.empty(m)
        for kind, who, rank in self._kinds(m, seed):
            for seconds, name in ((delays, "delay"), (peer_delays, "peer delay")):
                u = uniform_block(seed, block, m, name)[:, who]
                drawn = kind.seconds(u.reshape(-1), np.tile(rank, BLOCK))
                seconds[:, who] = drawn.reshape(BLOCK, -1)
            slowdown[who] = kind.slowdown(rank)
        return torch.from_numpy(delays), torch.from_numpy(peer_delays), torch.from_numpy(slowdown)

    def stragglers(self, roster: Roster, seed: int) -> Tensor:
        slow = torch.zeros(roster.parties, dtype=torch.bool)
        slow[list(self._slow_ones(roster.parties, seed))] = True
        return slow

    def _kinds(self, m: int, seed: int) -> Iterator[tuple[Delay, "NDArray[np.int64]", "NDArray[np.int64]"]]:
        """Each kind of delay with its parties and their ranks; every party belongs to one kind."""
        ranks = {party: rank for rank, party in enumerate(self._slow_ones(m, seed), start=1)}
        fast = [party for party in range(m) if party not in ranks]
        for kind, candidates in ((self.fast, fast), (self.slow, list(ranks))):
            who = [party for party in candidates if party not in self.delay_of]
            rank = [ranks.get(party, 0) for party in who]
            yield kind, np.array(who, dtype=np.int64), np.array(rank, dtype=np.int64)
        for party, kind in self.delay_of.items():
            yield kind, np.array([party]), np.array([0])

    def _slow_ones(self, m: int, seed: int) -> Parties:
        """The numbers of the slow parties, the least slow first."""
        for party in (*(self.parties or ()), *self.delay_of):
            within("a party in the settings of slow parties", party, 0, m - 1, whole=True)
        if self.parties is not None:
            return tuple(self.parties)
        return _order(m, seed)[: int(self.share * m + 1e-9)]  # 0.29 · 100 is a little less than 29 in floating point


_REMEMBERED = 256  # cached blocks: asynchronous parties are at different requests


@lru_cache(maxsize=64)
def _order(m: int, seed: int) -> Parties:
    return tuple(permutation(m, seed, "slow parties").tolist())
