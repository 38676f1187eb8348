"""The laws of aggregators, protocols and data sets, to check classes of your own. No test framework is needed.

``check_aggregator``, ``check_protocol`` and ``check_datamodule`` check all laws and raise ``LawBroken`` for the first
one that is broken. ``aggregator_laws``, ``protocol_laws`` and ``datamodule_laws`` give the laws one by one, for the
parameters of a test.
"""

from lightning_vfl.testing.aggregators import aggregator_laws, check_aggregator
from lightning_vfl.testing.datamodules import check_datamodule, datamodule_laws
from lightning_vfl.testing.law import Law, LawBroken
from lightning_vfl.testing.protocols import check_protocol, protocol_laws

__all__ = [
    "Law",
    "LawBroken",
    "aggregator_laws",
    "check_aggregator",
    "check_datamodule",
    "check_protocol",
    "datamodule_laws",
    "protocol_laws",
]
