"""Gaussian noise on the model updates of groups."""

from math import inf

import torch
from torch import Tensor

from lightning_vfl.aggregators.local_gaussian import grid, normal
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import Draws, OwnKeystreams, checked_draws
from lightning_vfl.privacy.events import GaussianEvent
from lightning_vfl.privacy.exact_normal import rounded_normal
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.types import RoundNames

_INSIDE = 1 - 2.0**-30  # the relative error of a float64 norm of up to 2^22 numbers is below 2^-30


class UpdateNoise(Rebuildable):
    r"""Each party of a group clips its whole update and adds Gaussian noise before the update is masked and sent.

    .. math:: \tilde u = u \cdot \min(1, C / \|u\|_2) + \mathcal{N}(0, \sigma^2 I),

    where u is the party's gradient of the shared bottom, summed over ``sum_updates_over`` batches. With plain SGD the
    party sends :math:`-\eta \tilde u`.

    Shapes: u (W,), with W parameters of the shared bottom; the noisy update (W,).
    Units: ``clip`` and ``sigma`` have the unit of the gradient of a batch's mean loss.
    Guarantee: one update has the privacy of ``GaussianEvent(sigma, 2 clip, 1)`` for the party's values of ANY number of
        records in the update, against a server and parties that know everything else; the guarantee does not rely on
        masks. Each update that is sent is charged to the records of its batches.
    Not guaranteed: privacy of embeddings. Their masked sums are exact, so the ε of the updates is not an ε of the
        training. With ``draws: seeded``, the noise is not secret, and its floating-point values have gaps (Mironov
        2012).

    Args:
        clip: C; an update with a larger L2 norm is scaled down to C.
        sigma: σ, the standard deviation of the noise on every number.
        draws: ``system``: the noise comes from AES-256 in counter mode under a key from the operating system and is
            rounded to a grid with exact probabilities, as in ``LocalGaussian``. ``seeded``: it comes from a named
            stream, so that runs are reproducible; anyone who knows the seed can compute the noise.

    Raises:
        ConfigurationError: for a clip or a sigma that is not above 0; in a round, for NaN or infinite updates.

    Examples:
        >>> UpdateNoise(clip=1.0, sigma=4.0).event(groups=1)
        GaussianEvent(sigma=4.0, sensitivity=2.0, parties=1)

    References:
        Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A (the Gaussian mechanism).
        Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
    """

    def __init__(self, clip: float, sigma: float, draws: Draws = "system") -> None:
        for name, number in (("clip", clip), ("sigma", sigma)):
            if not 0 < number < inf:
                raise ConfigurationError(f"{name} of update_noise must be a number above 0; got {number}")
        self.clip = clip
        self.sigma = sigma
        self.draws = checked_draws(draws)
        self._keystreams = OwnKeystreams()

    def __repr__(self) -> str:
        return f"UpdateNoise(clip={self.clip:g}, sigma={self.sigma:g}, draws={self.draws})"

    def event(self, groups: int) -> GaussianEvent:
        """The privacy event of a record that is in the updates of this many groups."""
        return GaussianEvent(self.sigma, 2 * self.clip, groups)

    def noisy(self, update: Tensor, names: RoundNames, party: int) -> Tensor:
        """The noisy form of a party's update (W,), which the party sends."""
        exact = update.detach().to(torch.float64)
        norm = torch.linalg.vector_norm(exact)
        if not torch.isfinite(norm):
            raise ConfigurationError(
                "a model update has NaN or infinite numbers, which noise cannot hide; clean the data or lower the "
                "learning rate"
            )
        inside = self.clip * _INSIDE
        clipped = exact * (inside / norm.clamp(min=inside))
        if self.draws == "seeded":
            noise = normal(1, len(exact), names.seed, "update noise", names.stage, names.round, party)[0]
            sent: Tensor = clipped + self.sigma * torch.from_numpy(noise).to(exact.device)
            return sent.to(update.dtype)
        step = grid(self.sigma, self.clip)
        whole = torch.trunc(clipped / step).to(torch.int64)  # towards zero: the norm stays below the clip
        noise = rounded_normal(len(exact), self.sigma / step, self._keystreams.of(party))
        whole += torch.from_numpy(noise).to(exact.device)
        return (whole.to(torch.float64) * step).to(update.dtype)
