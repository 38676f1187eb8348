"""The source of random numbers behind a privacy figure: the operating system, or the seed of the run."""

from typing import TYPE_CHECKING, Literal

from lightning_vfl.checks import one_of
from lightning_vfl.crypto import Keystream

if TYPE_CHECKING:
    from lightning_vfl.crypto.keystream import Words

Draws = Literal["system", "seeded"]
SIMULATED = "simulated: anyone who knows the seed knows the draws"


def checked_draws(draws: Draws) -> Draws:
    """The setting ``draws``, after a check.

    Raises:
        ConfigurationError: for an unknown value.
    """
    one_of("draws", draws, ("system", "seeded"), advice="system draws are secret, seeded ones are for tests")
    return draws


class OwnKeystreams:
    """One ``Keystream`` for each owner, made at first use. In a deployment, every party has only its own.

    Units: uniform 64-bit words.
    Guarantee: as ``Keystream``: a copy and another process have other keys, so no two processes draw the same words.
    Not guaranteed: reproducibility. No word is drawn twice, so a repeated round has other draws.

    Examples:
        >>> own = OwnKeystreams()
        >>> own.of(0)(2).shape, bool((own.of(0)(4) == own.of(1)(4)).any())
        ((2,), False)
    """

    def __init__(self) -> None:
        self._keystreams: dict[int, Keystream] = {}

    def of(self, owner: int) -> "Words":
        """The function that returns the owner's next n words."""
        if owner not in self._keystreams:
            self._keystreams[owner] = Keystream()
        return self._keystreams[owner].words
