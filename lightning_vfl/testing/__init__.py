"""The laws of aggregators, protocols and data sets, to check classes of your own. No test framework is needed."""

from lightning_vfl.testing.aggregators import aggregator_laws, check_aggregator
from lightning_vfl.testing.law import Law, LawBroken

__all__ = ["Law", "LawBroken", "aggregator_laws", "check_aggregator"]
