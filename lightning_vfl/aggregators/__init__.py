"""How the embeddings of M parties become one tensor at the server."""

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.lagrange_coded import LagrangeCoded
from lightning_vfl.aggregators.lagrange_shared import LagrangeShared
from lightning_vfl.aggregators.local_gaussian import LocalGaussian
from lightning_vfl.aggregators.masked_sum import MaskedSum
from lightning_vfl.aggregators.parts import (
    Accounting,
    Heard,
    Opening,
    PartySide,
    ServerSide,
    Setup,
    SharedBottoms,
    Traits,
    Wire,
)
from lightning_vfl.aggregators.plain import Concat, Max, Mean, Sum
from lightning_vfl.aggregators.poisson_binomial import PoissonBinomial

__all__ = [
    "Accounting",
    "Aggregator",
    "Concat",
    "Heard",
    "LagrangeCoded",
    "LagrangeShared",
    "LocalGaussian",
    "MaskedSum",
    "Max",
    "Mean",
    "Opening",
    "PartySide",
    "PoissonBinomial",
    "ServerSide",
    "Setup",
    "SharedBottoms",
    "Sum",
    "Traits",
    "Wire",
]
