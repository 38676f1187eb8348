"""Random numbers of downlinks: from the operating system, or from named streams of the seed."""

import secrets
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.local_gaussian import normal
from lightning_vfl.crypto import Keystream
from lightning_vfl.privacy.draws import Draws, checked_draws
from lightning_vfl.privacy.exact_normal import rounded_normal, with_noise
from lightning_vfl.streams import key_of
from lightning_vfl.types import RoundNames

_WORDS = 8  # 64-bit words of a digest
_STEP = 2.0**-30  # of the grid of numbers that are drawn secretly


class NormalDraws:
    """Standard normal numbers for the rows of a round.

    Args:
        draws: ``system``: secret, under a key of the operating system. ``seeded``: of the round and the row.
    """

    def __init__(self, draws: Draws) -> None:
        self.draws = checked_draws(draws)
        self._keystream = Keystream()

    def rows(self, count: int, columns: int, names: RoundNames, first: int) -> Tensor:
        """(count, columns) float64, of the rows from ``first`` on of the joint batch."""
        if self.draws == "seeded":
            drawn = normal(first + count, columns, names.seed, "downlink", names.stage, names.round)[first:]
        else:
            whole = rounded_normal(count * columns, 1 / _STEP, self._keystream.words)
            drawn = whole.reshape(count, columns).astype(np.float64) * _STEP
        return torch.from_numpy(drawn)

    def added(self, value: Tensor, sigma: float, clip: float, names: RoundNames, first: int) -> Tensor:
        """(B, D) float64: values (B, D), whose rows have norms up to ``clip``, with noise of deviation σ.

        Guarantee: with ``system``, the sum is that of the ideal mechanism, rounded to a grid. What a value is cannot be
            read from the last bits of the sum.
        """
        if self.draws == "seeded":
            return value + sigma * self.rows(value.shape[0], value.shape[1], names, first).to(value)
        noisy = with_noise(value.cpu().numpy(), sigma, clip, self._keystream.words)
        return torch.from_numpy(noisy).to(value.device)


class RecordDraws:
    """Uniform numbers of a record, the same whenever the record is asked for: BLAKE2b of its position, under a key.

    Args:
        draws: ``system``: the key comes from the operating system, once; the server's checkpoints keep it, so that a
            resumed run has the same numbers. ``seeded``: the key follows from the seed of the run.
    """

    def __init__(self, draws: Draws) -> None:
        self.draws = checked_draws(draws)
        self._key: str | None = None

    def uniform(self, record_ids: Tensor, columns: int, seed: int) -> Tensor:
        """(B, columns) float64 in (0, 1)."""
        key = key_of(seed, "downlink", "labels") if self.draws == "seeded" else bytes.fromhex(self._secret())
        blocks = -(-columns // _WORDS)
        drawn = [
            b"".join(blake2b(struct.pack("<qq", record, block), key=key).digest() for block in range(blocks))
            for record in record_ids.tolist()
        ]
        words = np.frombuffer(b"".join(drawn), "<u8").reshape(len(drawn), blocks * _WORDS)[:, :columns]
        found = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return torch.from_numpy(np.minimum(found, 1 - 2.0**-53))  # the largest word is rounded up to 1

    def _secret(self) -> str:
        self._key = secrets.token_hex(32) if self._key is None else self._key
        return self._key

    def state(self) -> Mapping[str, Any]:
        """The key, for a checkpoint."""
        return {} if self._key is None else {"key": self._key}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the key."""
        self._key = state.get("key", self._key)
