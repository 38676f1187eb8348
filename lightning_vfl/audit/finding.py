"""What an audit reports of an attack."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from torch import Tensor

from lightning_vfl.audit.attack import Attack

NOT_ATTACKED = "not attacked"  # begins the verdict where an attack cannot use what is sent


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
