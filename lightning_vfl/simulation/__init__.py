"""Pure models of the world around the parties: what is sent, how long it takes, who fails. No Lightning."""

from lightning_vfl.simulation.absences import RandomAbsence
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.crashes import CrashChain
from lightning_vfl.simulation.delays import ComputeBound, Constant, Delay, Exponential, LogNormal, Uniform
from lightning_vfl.simulation.faults import FaultModel, Faults, RoundOutcome
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.simulation.slow_parties import SlowParties
from lightning_vfl.simulation.trace import RecordedTrace

__all__ = [
    "CommunicationMeter",
    "ComputeBound",
    "Constant",
    "CrashChain",
    "Delay",
    "Exponential",
    "FaultModel",
    "Faults",
    "LogNormal",
    "RandomAbsence",
    "RecordedTrace",
    "RoundOutcome",
    "SlowParties",
    "Uniform",
    "VirtualClock",
]
