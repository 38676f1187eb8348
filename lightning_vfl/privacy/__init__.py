"""The privacy cost of releases, in exact figures that are always rounded up."""

from lightning_vfl.privacy.accountant import PrivacyAccountant, composed_epsilon
from lightning_vfl.privacy.calibration import Budget, MatchedPBM, Noise, PublishedPBM, Sigma
from lightning_vfl.privacy.digits import rounded_up, shown
from lightning_vfl.privacy.events import GaussianEvent, PoissonBinomialEvent, PrivacyEvent, UnknownEvent
from lightning_vfl.privacy.gaussian import analytic_sigma, gaussian_epsilon
from lightning_vfl.privacy.ledger import PrivacyLedger
from lightning_vfl.privacy.loss_distribution import Account, Figure, loss_epsilon
from lightning_vfl.privacy.poisson_binomial import (
    poisson_binomial_curve,
    poisson_binomial_profiles,
    poisson_binomial_rdp,
)
from lightning_vfl.privacy.rdp import Converted, compose_rdp, rdp_epsilon
from lightning_vfl.privacy.solve import (
    planned_epsilon,
    solve_beta,
    solve_epochs,
    solve_levels,
    worst_epsilon,
    worst_figure,
)

__all__ = [
    "Account",
    "Budget",
    "Converted",
    "Figure",
    "GaussianEvent",
    "MatchedPBM",
    "Noise",
    "PoissonBinomialEvent",
    "PrivacyAccountant",
    "PrivacyEvent",
    "PrivacyLedger",
    "PublishedPBM",
    "Sigma",
    "UnknownEvent",
    "analytic_sigma",
    "compose_rdp",
    "composed_epsilon",
    "gaussian_epsilon",
    "loss_epsilon",
    "planned_epsilon",
    "poisson_binomial_curve",
    "poisson_binomial_profiles",
    "poisson_binomial_rdp",
    "rdp_epsilon",
    "rounded_up",
    "shown",
    "solve_beta",
    "solve_epochs",
    "solve_levels",
    "worst_epsilon",
    "worst_figure",
]
