"""The bytes of a transcript against those of the meter."""

from typing import TYPE_CHECKING

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
    found: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
    known: set[tuple[str, str]] = set()
    for meter in meters_of(module):
        heard = transcript.bytes(meter)
        for key in meter.bits:
            metered = meter.total(key[1], key[0])
            found[key] = heard.get(key, metered * 0), metered
            known.add(key)
    for key in transcript.kinds() - known:
        nothing = module.books.meter.total("up") * 0
        found[key] = nothing + 1, nothing
    return found


def differences(module: "VFLModule", transcript: "Transcript") -> list[str]:
    """What the meter has counted and the transcript has not heard, and the reverse, in a sentence for each kind."""
    found, announced = [], {key for meter in meters_of(module) for key in meter.bits}
    for (kind, way), (heard, metered) in both_counts(module, transcript).items():
        lacking, more = (int(difference.clamp(min=0).sum()) for difference in (metered - heard, heard - metered))
        if lacking:
            found.append(f"the audit has not heard {lacking:,} bytes of '{kind}': the simulation has not computed them")
        if (kind, way) not in announced:
            found.append(f"the audit has heard messages '{kind}' ({way}), which no leg announces: nobody counts them")
        elif more:
            found.append(f"the audit has heard {more:,} bytes of '{kind}' more than its legs announce")
    return found
