"""What a release costs in privacy, in exact figures that are rounded against whoever publishes them."""

from lightning_vfl.privacy.gaussian import analytic_sigma, gaussian_delta, gaussian_epsilon

__all__ = ["analytic_sigma", "gaussian_delta", "gaussian_epsilon"]
