"""Gaussian noise on the model updates of groups."""

from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.crypto import Keystream
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.events import GaussianEvent
from lightning_vfl.streams import stream
from lightning_vfl.types import RoundNames

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INSIDE = 1 - 2.0**-30  # a float64 norm of up to 2^22 numbers is off by less than this share of itself


class UpdateNoise:
    r"""Each party of a group clips its whole update and adds Gaussian noise before the update is masked and sent.

    .. math:: \tilde u = u \cdot \min(1, C / \|u\|_2) + \mathcal{N}(0, \sigma^2 I),

    u the party's gradient of the shared bottom, summed over ``sum_updates_over`` batches. With plain SGD the party
    sends :math:`-\eta \tilde u`.

    Shapes: u (W,), W the parameters of the shared bottom; the noisy update (W,).
    Units: ``clip`` and ``sigma`` in those of the gradient of the mean loss of a batch.
    Guarantee: one update is as private as ``GaussianEvent(sigma, 2 clip, 1)`` says for the party's values of ANY number
        of records in it, against a server and parties that know everything else; masks are not relied on. Each update
        that is sent is charged to the records of its batches.
    Not guaranteed: anything about embeddings. Their masked sums are exact, so ε of the updates is no ε of the training.
        Freedom from the holes of floating-point noise (Mironov 2012); the update is rounded to the precision of the
        parameters after the noise is added.

    Args:
        clip: C, the largest L2 norm of an update that is not shortened.
        sigma: σ, the standard deviation of the noise in every number.
        draws: ``system``: from AES-256 in counter mode under a key from the operating system. ``seeded``: from a named
            stream, so that runs can be repeated; whoever knows the seed knows the noise.

    Raises:
        ConfigurationError: for a clip or a sigma that is not above 0; in a round, for updates that are NaN or infinite.

    Example:
        >>> UpdateNoise(clip=1.0, sigma=4.0).event(groups=1)
        GaussianEvent(sigma=4.0, sensitivity=2.0, parties=1)

    References:
        Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A (the Gaussian mechanism).
        Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
    """

    def __init__(self, clip: float, sigma: float, draws: Literal["system", "seeded"] = "system") -> None:
        for name, number in (("clip", clip), ("sigma", sigma)):
            if not 0 < number < inf:
                raise ConfigurationError(f"{name} of update_noise must be a number above 0; got {number}")
        if draws not in ("system", "seeded"):
            raise ConfigurationError(f"draws must be system or seeded; got {draws!r}")
        self.clip = clip
        self.sigma = sigma
        self.draws = draws
        self._keystream = Keystream()

    def __repr__(self) -> str:
        return f"UpdateNoise(clip={self.clip:g}, sigma={self.sigma:g}, draws={self.draws})"

    def event(self, groups: int) -> GaussianEvent:
        """What the updates of so many groups cost a record that is in each of them."""
        return GaussianEvent(self.sigma, 2 * self.clip, groups)

    def noisy(self, update: Tensor, names: RoundNames, party: int) -> Tensor:
        """What a party sends in the place of its update (W,)."""
        exact = update.detach().to(torch.float64)
        norm = torch.linalg.vector_norm(exact)
        if not torch.isfinite(norm):
            raise ConfigurationError(
                "NaN or infinite updates cannot be hidden by noise; clean the data or lower the learning rate"
            )
        inside = self.clip * _INSIDE
        noise = torch.from_numpy(self._drawn(len(exact), names, party)).to(exact.device)
        sent: Tensor = exact * (inside / norm.clamp(min=inside)) + self.sigma * noise
        return sent.to(update.dtype)

    def _drawn(self, count: int, names: RoundNames, party: int) -> "NDArray[np.float64]":
        """(count,) independent standard normal numbers, by Box and Muller's transform."""
        pairs = (count + 1) // 2
        if self.draws == "system":
            words = self._keystream.words(2 * pairs)
        else:
            words = stream(names.seed, "update noise", names.stage, names.round, party).random_raw(2 * pairs)
        uniform = ((words.astype(np.float64) + 1) * 2.0**-64).reshape(pairs, 2)  # in (0, 1]
        radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
        return np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1).reshape(-1)[:count]
