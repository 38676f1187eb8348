"""Rules for the Gaussian noise of uploads: a given σ, a budget, PBM-VFL's published σ, or a σ matched to its sums."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt

from lightning_vfl.checks import positive, within
from lightning_vfl.privacy.gaussian import analytic_sigma
from lightning_vfl.privacy.poisson_binomial import poisson_binomial_rdp


class Noise(ABC):
    """A rule for the standard deviation of the noise in every value of an upload."""

    @abstractmethod
    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        """σ for M parties.

        Args:
            clip: C, the aggregator's bound on uploads.
            sensitivity: the largest L2 distance of two uploads.
            parties: M.
        """


class Sigma(Noise):
    """A constant σ.

    Args:
        sigma: σ > 0, in the units of the uploads.

    Examples:
        >>> Sigma(2.0).sigma(clip=1.0, sensitivity=2.0, parties=4)
        2.0
    """

    def __init__(self, sigma: float) -> None:
        self._sigma = positive("sigma", sigma)

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return self._sigma

    def __repr__(self) -> str:
        return f"Sigma(sigma={self._sigma!r})"


@dataclass(frozen=True)
class Budget(Noise):
    """The smallest σ that makes ONE upload of one record (ε, δ)-differentially private, exactly calibrated.

    Args:
        epsilon: ε of one upload of one record.
        delta: δ of one upload of one record.

    Raises:
        ConfigurationError: for a budget that no noise can meet.

    Examples:
        >>> f"{Budget(epsilon=5.0, delta=1e-5).sigma(clip=1.0, sensitivity=2.0, parties=4):.4f}"
        '1.7837'

    References:
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.
    """

    epsilon: float = 5.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        analytic_sigma(self.epsilon, self.delta, 1.0)  # checks the numbers

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return analytic_sigma(self.epsilon, self.delta, sensitivity)


@dataclass(frozen=True)
class PublishedPBM(Noise):
    r"""The noise of the local baseline in PBM-VFL's experiments: :math:`\sigma^2 = C^2 \, 2 M / (b \beta^2)`.

    Not guaranteed: the same privacy as the PBM, with which the paper compares it. In Rényi ε, one value of an upload is
        8 times MORE private than one value of the sum, for small β and many parties, and up to 14 times at β = 1/4: see
        ``MatchedPBM``.

    Args:
        levels: b, trials of a draw.
        beta: β.

    Examples:
        >>> PublishedPBM(levels=16, beta=0.25).sigma(clip=1.0, sensitivity=2.0, parties=8)
        4.0

    References:
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, section 7 (LDP).
    """

    levels: int
    beta: float

    def __post_init__(self) -> None:
        _check(self.levels, self.beta)

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return clip * sqrt(2 * parties / self.levels) / self.beta


@dataclass(frozen=True)
class MatchedPBM(Noise):
    r"""As private as a value of the PBM's sum of all M parties, at one order: :math:`\sigma^2 = 2 α C^2 / ε_{PBM}(α)`.

    A value in [-C, C] with this noise has the same Rényi ε of order α as one coordinate of the sum, exactly computed.
    For small β and many parties, this is a variance of :math:`C^2 M / (4 b \beta^2)`, an eighth of the published one.

    Not guaranteed: the same (ε, δ) after a training, because the best order may be another one. The two ε then differ
        by about ten percent at β = 1/4, and by one percent at β = 0.1.

    Args:
        levels: b, trials of a draw.
        beta: β.
        order: α > 1, the order at which both are equally private.

    Examples:
        >>> f"{MatchedPBM(levels=16, beta=0.25).sigma(clip=1.0, sensitivity=2.0, parties=8):.3f}"
        '1.133'
    """

    levels: int
    beta: float
    order: float = 2.0

    def __post_init__(self) -> None:
        _check(self.levels, self.beta)
        within("order", self.order, above=1)

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return clip * sqrt(2 * self.order / poisson_binomial_rdp(self.levels, self.beta, parties, self.order))


def _check(levels: int, beta: float) -> None:
    """Refuse settings that a Poisson binomial mechanism cannot have, and a β for which the noise is infinite."""
    poisson_binomial_rdp(levels, beta, 1, 2.0)
    within("beta", beta, above=0, most=0.25, advice="beta 0 needs infinite noise")
