"""The bytes of a transcript against those of the meter."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.simulation.meter import CommunicationMeter

if TYPE_CHECKING:
    from lightning_vfl.audit.transcript import Transcript
    from lightning_vfl.protocols import VFLModule


def meters_of(module: "VFLModule") -> tuple[CommunicationMeter, ...]:
    """The meter of the parties, and in decoupled training that of the hosts."""
    hosts = getattr(module.books.own, "host_meter", None)
    return (module.books.meter,) if hosts is None else (module.books.meter, hosts)


def both_counts(module: "VFLModule", transcript: "Transcript") -> dict[tuple[str, str], tuple[Tensor, Tensor]]:
    """(heard, metered) bytes (M,) by (kind, direction), of every kind that either has."""
    counts: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
    for meter in meters_of(module):
        heard = transcript.bytes(meter)
        for kind, way in meter.bits:
            metered = meter.total(way, kind)
            counts[kind, way] = heard.get((kind, way), torch.zeros_like(metered)), metered
    nothing = torch.zeros_like(module.books.meter.total("up"))
    for unknown in transcript.kinds() - counts.keys():
        counts[unknown] = nothing + 1, nothing
    return counts


def differences(module: "VFLModule", transcript: "Transcript") -> list[str]:
    """What the meter has counted and the transcript has not heard, and the reverse, in a sentence for each kind."""
    sentences = []
    announced = {key for meter in meters_of(module) for key in meter.bits}
    for (kind, way), (heard, metered) in both_counts(module, transcript).items():
        lacking = int((metered - heard).clamp(min=0).sum())
        more = int((heard - metered).clamp(min=0).sum())
        if lacking:
            sentences.append(
                f"the audit has not heard {lacking:,} bytes of '{kind}': the simulation has not computed them"
            )
        if (kind, way) not in announced:
            sentences.append(
                f"the audit has heard messages '{kind}' ({way}), which no leg announces: nobody counts them"
            )
        elif more:
            sentences.append(f"the audit has heard {more:,} bytes of '{kind}' more than its legs announce")
    return sentences
