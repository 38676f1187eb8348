"""How much Gaussian noise an upload gets: σ as given, for a budget, as PBM-VFL publishes it or matched to its sums."""

from abc import ABC, abstractmethod
from math import inf, sqrt

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.gaussian import analytic_sigma
from lightning_vfl.privacy.poisson_binomial import poisson_binomial_rdp


class Noise(ABC):
    """A rule for the standard deviation of the noise in every value of an upload."""

    @abstractmethod
    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        """σ for M parties.

        Args:
            clip: C, that the aggregator bounds uploads by.
            sensitivity: the L2 distance of the two uploads that are furthest apart.
            parties: M.
        """

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


class Sigma(Noise):
    """This σ, whatever else.

    Args:
        sigma: σ > 0, in the units of the uploads.

    Examples:
        >>> Sigma(2.0).sigma(clip=1.0, sensitivity=2.0, parties=4)
        2.0
    """

    def __init__(self, sigma: float) -> None:
        if not 0 < sigma < inf:
            raise ConfigurationError(f"sigma {sigma} is no noise; use a number above 0")
        self._sigma = sigma

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return self._sigma

    def __repr__(self) -> str:
        return f"Sigma(sigma={self._sigma!r})"


class Budget(Noise):
    """The smallest σ that makes ONE upload of one record (ε, δ)-differentially private, exactly calibrated.

    Args:
        epsilon: ε of one upload of one record.
        delta: δ of one upload of one record.

    Raises:
        ConfigurationError: for a budget that no noise meets.

    Examples:
        >>> f"{Budget(epsilon=5.0, delta=1e-5).sigma(clip=1.0, sensitivity=2.0, parties=4):.4f}"
        '1.7837'

    References:
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.
    """

    def __init__(self, epsilon: float = 5.0, delta: float = 1e-5) -> None:
        analytic_sigma(epsilon, delta, 1.0)  # checks them
        self.epsilon = epsilon
        self.delta = delta

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return analytic_sigma(self.epsilon, self.delta, sensitivity)


class PublishedPBM(Noise):
    r"""What PBM-VFL's experiments give the local baseline: :math:`\sigma^2 = C^2 \, 2 M / (b \beta^2)`.

    Not guaranteed: the privacy of the mechanism that it is compared with. One value of an upload is 8 times MORE
        private than one of the sum in Rényi ε, for small β and many parties, and up to 13 times at β = 1/4: see
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

    def __init__(self, levels: int, beta: float) -> None:
        poisson_binomial_rdp(levels, beta, 1, 2.0)  # checks them
        if beta == 0:
            raise ConfigurationError("beta 0 asks for infinite noise; use more than 0 and at most 0.25")
        self.levels = levels
        self.beta = beta

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return clip * sqrt(2 * parties / self.levels) / self.beta


class MatchedPBM(PublishedPBM):
    r"""As private as a value of the PBM's sum of all M parties, at one order: :math:`\sigma^2 = 2 α C^2 / ε_{PBM}(α)`.

    A value in [-C, C] with this noise has the Rényi ε of order α that one coordinate of the sum has, exactly computed;
    for small β and many parties that is a variance of :math:`C^2 M / (4 b \beta^2)`, an eighth of the published one.

    Not guaranteed: the same (ε, δ) after a training: the best order for that may be another one, and at β = 1/4 the two
        then differ by some ten percent, at β = 0.1 by one.

    Args:
        levels: b, trials of a draw.
        beta: β.
        order: α > 1, the order at which both are equally private.

    Examples:
        >>> f"{MatchedPBM(levels=16, beta=0.25).sigma(clip=1.0, sensitivity=2.0, parties=8):.3f}"
        '1.133'
    """

    def __init__(self, levels: int, beta: float, order: float = 2.0) -> None:
        super().__init__(levels, beta)
        if not 1 < order < inf:
            raise ConfigurationError(f"order {order} is none to match at; use a number above 1")
        self.order = order

    def sigma(self, clip: float, sensitivity: float, parties: int) -> float:
        return clip * sqrt(2 * self.order / poisson_binomial_rdp(self.levels, self.beta, parties, self.order))
