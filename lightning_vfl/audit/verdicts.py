"""Findings, and verdicts on those of one report: a leak, no more than without the protocol, or nothing shown.

An attack that finds nothing shows safety only if it finds something where nothing is protected.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan

import numpy as np
from torch import Tensor

from lightning_vfl.audit.attack import Attack

LEAK = "leak"
NO_MORE = "no more than without the protocol"
NOT_SHOWN = "NOT SHOWN"
NOT_ATTACKED = "not attacked"  # begins the verdict where an attack cannot use what is sent
MARGIN = 0.02  # a success is a leak if it is above the reference by more
RISK = 0.05  # of a leak in a report of attacks that tell nothing


@dataclass(frozen=True)
class Finding:
    """The result of one attack.

    Args:
        attack: its name, with the settings that are not the defaults.
        attacker: who attacked.
        saw: what was used.
        measure: of the success.
        success: the success; NaN: the attack could not be tried.
        low: end of the 95 % interval.
        high: end of the 95 % interval.
        chance: the success of guesses that do not depend on the truth.
        without: the success without the protocol, from what the attacker knows anyway; None: there is no such attack.
        claimed: the accountant's ε; None: the attack bounds no ε.
        verdict: in a few words, see ``judged``; empty: it depends on the other attacks of the report.
        seconds: the time that the attack took.
        plain: the success of the same attack on the uploads as they are; None: it is not known.
        p: the probability of such a success if the true one were at most 0.02 above the larger of ``chance`` and
            ``without``; not corrected for the number of attacks. None: it was not tested.
        unprotected: the success of the same attack on an unprotected twin; None: there is none.
        allowed: the largest success that the claimed ε of labels allows; None: there is none.
        pictures: guesses and truth of a few records, for the page.
    """

    attack: str
    attacker: str
    saw: str
    measure: str
    success: float
    low: float
    high: float
    chance: float
    without: float | None
    claimed: float | None
    verdict: str
    seconds: float = 0.0
    plain: float | None = None
    p: float | None = None
    unprotected: float | None = None
    allowed: float | None = None
    pictures: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)

    @property
    def known_anyway(self) -> float:
        """The success of an attacker that has seen no message."""
        return self.chance if self.without is None or isnan(self.without) else max(self.chance, self.without)


def label(attack: Attack, names: Sequence[str]) -> str:
    """The name of an attack, with the settings that are not the defaults, and the party by the name of the data."""
    settings = []
    for setting, parameter in inspect.signature(type(attack)).parameters.items():
        value = getattr(attack, setting, parameter.default)
        named = setting == "party" and isinstance(value, int) and not names[value].isdecimal()
        if named:
            settings.append(f"party={names[value]}")
        elif value != parameter.default:
            settings.append(f"{setting}={value}")
    return type(attack).__name__ + (f"({', '.join(settings)})" if settings else "")


Twins = Mapping[tuple[str, str], Finding]


def judged(findings: Sequence[Finding], twins: Twins | None = None) -> list[Finding]:
    """The findings with verdicts; those that have a verdict already keep it.

    A finding is a leak if its p-value is at most 0.05 after the correction for all attacks of the report. Otherwise
    its success is no more than without the protocol, if it is at most 0.02 above what is known anyway, the same attack
    on an unprotected twin is a leak, and the two intervals are apart.

    Args:
        findings: of one report.
        twins: judged findings of the same attacks on an unprotected twin, by attacker and attack.
    """
    p_values = {i: finding.p for i, finding in enumerate(findings) if not finding.verdict and finding.p is not None}
    risks = dict(zip(p_values, adjusted([*p_values.values()]), strict=True))
    with_verdicts = []
    for i, finding in enumerate(findings):
        twin = (twins or {}).get((finding.attacker, finding.attack))
        verdict = finding.verdict or _verdict(finding, risks.get(i), twin)
        unprotected = None if twin is None else twin.success
        with_verdicts.append(replace(finding, verdict=verdict, unprotected=unprotected))
    return with_verdicts


def by_attack(findings: Sequence[Finding]) -> Twins:
    """The findings by attacker and attack."""
    return {(finding.attacker, finding.attack): finding for finding in findings}


def _verdict(finding: Finding, risk: float | None, twin: Finding | None) -> str:
    if risk is None:
        return "not measured"
    if risk <= RISK:
        return LEAK
    if twin is None or isnan(twin.success):
        return f"{NOT_SHOWN}: no such attack on an unprotected twin; use lightning-vfl audit"
    known_anyway = finding.known_anyway
    if finding.success > known_anyway + MARGIN:
        return f"{NOT_SHOWN}: it is above {known_anyway:.3f}, and too few records are scored to call this a leak"
    if twin.verdict != LEAK:
        return f"{NOT_SHOWN}: the attack reaches only {twin.success:.3f} without protection"
    if finding.high >= twin.low:
        return f"{NOT_SHOWN}: the interval reaches {twin.low:.3f}, as without protection"
    return NO_MORE


def adjusted(p_values: Sequence[float]) -> list[float]:
    """The p-values, corrected for their number: at most α for the hypotheses that are rejected at α.

    References:
        Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6, 1979.

    Examples:
        >>> adjusted([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values)
    remaining = len(p_values) - np.arange(len(p_values))
    corrected = np.empty(len(p_values))
    corrected[order] = np.maximum.accumulate(np.asarray(p_values)[order] * remaining).clip(max=1.0)
    return [float(p) for p in corrected]
