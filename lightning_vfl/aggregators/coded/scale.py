"""In which units LagrangeCoded counts data and weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, PrimeField


@dataclass(frozen=True)
class Scale:
    """Scale bits of data and weights.

    Args:
        l_x: of the data.
        given: of the weights; ``auto``: settled before training.
        headroom: how many times larger than at the beginning the products |X||W| may become, for ``auto``.
    """

    l_x: int
    given: int | Literal["auto"]
    headroom: float

    def codec(self, field: PrimeField, agreed: Mapping[str, Any]) -> FixedPoint:
        """The codec of a round.

        Raises:
            ConfigurationError: if the scale bits of the weights are settled by set-up, and set-up has not run.
        """
        if self.given != "auto":
            return FixedPoint(field, self.l_x, self.given)
        if "l_w" not in agreed:
            raise ConfigurationError(
                "nobody has agreed on the scale of the weights, because set-up has not run; give the trainer a "
                "datamodule, or use evaluate: plain"
            )
        return FixedPoint(field, self.l_x, agreed["l_w"])
