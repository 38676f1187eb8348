"""How the embeddings of M parties become one tensor at the server."""

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.plain import Concat, Max, Mean, Sum

__all__ = ["Aggregator", "Concat", "Max", "Mean", "Sum"]
