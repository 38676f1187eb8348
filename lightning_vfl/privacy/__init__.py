"""What a release costs in privacy, in exact figures that are rounded against whoever publishes them."""

from lightning_vfl.privacy.gaussian import analytic_sigma, gaussian_delta, gaussian_epsilon
from lightning_vfl.privacy.poisson_binomial import poisson_binomial_curve, poisson_binomial_rdp
from lightning_vfl.privacy.rdp import Converted, compose_rdp, rdp_delta, rdp_epsilon

__all__ = [
    "Converted",
    "analytic_sigma",
    "compose_rdp",
    "gaussian_delta",
    "gaussian_epsilon",
    "poisson_binomial_curve",
    "poisson_binomial_rdp",
    "rdp_delta",
    "rdp_epsilon",
]
