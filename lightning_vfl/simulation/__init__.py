"""Models of faults, delays, traffic and virtual time; independent of Lightning."""

from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.crashes import Crashes
from lightning_vfl.simulation.data_faults import (
    Blur,
    DataFault,
    DroppedColumns,
    Misaligned,
    Noise,
    ShiftedUnits,
    StaleTable,
)
from lightning_vfl.simulation.delays import ComputeBound, Constant, Delay, Exponential, LogNormal, Uniform
from lightning_vfl.simulation.faults import FaultModel, Faults, RoundOutcome
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.simulation.party_dropout import PartyDropout
from lightning_vfl.simulation.stragglers import Stragglers
from lightning_vfl.simulation.trace import TraceReplay

__all__ = [
    "Blur",
    "CommunicationMeter",
    "ComputeBound",
    "Constant",
    "Crashes",
    "DataFault",
    "Delay",
    "DroppedColumns",
    "Exponential",
    "FaultModel",
    "Faults",
    "LogNormal",
    "Misaligned",
    "Noise",
    "PartyDropout",
    "RoundOutcome",
    "ShiftedUnits",
    "StaleTable",
    "Stragglers",
    "TraceReplay",
    "Uniform",
    "VirtualClock",
]
