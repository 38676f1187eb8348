"""Protection of labels: what the server changes in labels or gradients before gradients leave it."""

from lightning_vfl.downlinks.base import Downlink, GradientDownlink, LabelDownlink
from lightning_vfl.downlinks.gaussian import GaussianGradients
from lightning_vfl.downlinks.laplace_labels import LaplaceLabels
from lightning_vfl.downlinks.marvell import Marvell
from lightning_vfl.downlinks.max_norm import MaxNorm
from lightning_vfl.downlinks.randomized_response import RandomizedResponse

__all__ = [
    "Downlink",
    "GaussianGradients",
    "GradientDownlink",
    "LabelDownlink",
    "LaplaceLabels",
    "Marvell",
    "MaxNorm",
    "RandomizedResponse",
]
