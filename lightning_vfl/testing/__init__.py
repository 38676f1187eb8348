"""The laws of the classes that you may write yourself, to check classes of your own. No test framework is needed.

``check_aggregator``, ``check_protocol``, ``check_datamodule``, ``check_fault_model`` and ``check_waiting_rule`` check
all laws and raise ``LawBroken`` for the first one that is broken. ``aggregator_laws`` and so on give the laws one by
one, for the parameters of a test.
"""

from lightning_vfl.testing.aggregators import aggregator_laws, check_aggregator
from lightning_vfl.testing.datamodules import check_datamodule, datamodule_laws
from lightning_vfl.testing.faults import check_fault_model, fault_laws
from lightning_vfl.testing.law import Law, LawBroken
from lightning_vfl.testing.protocols import check_protocol, protocol_laws
from lightning_vfl.testing.waiting import check_waiting_rule, waiting_laws

__all__ = [
    "Law",
    "LawBroken",
    "aggregator_laws",
    "check_aggregator",
    "check_datamodule",
    "check_fault_model",
    "check_protocol",
    "check_waiting_rule",
    "datamodule_laws",
    "fault_laws",
    "protocol_laws",
    "waiting_laws",
]
