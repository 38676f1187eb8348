"""PBM-VFL: parties send binomial draws, whose randomness hides a record in the masked sum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.masked_sum import RING_BITS, MaskedSum
from lightning_vfl.aggregators.parts import Accounting
from lightning_vfl.aggregators.secure.codec import Codec
from lightning_vfl.aggregators.secure.integer_sum import IntegerSum
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.masked_wire import MaskedWire
from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import poisson_binomial_rdp, shown
from lightning_vfl.privacy.draws import SIMULATED, Draws, OwnKeystreams, checked_draws
from lightning_vfl.privacy.events import PoissonBinomialEvent, PrivacyEvent
from lightning_vfl.rebuildable import printed_without
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Rows, Widths

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

MOST_BETA = 0.25


@dataclass(frozen=True)
class Binomial(Codec):
    r"""A number x in [-C, C] as a draw of Binomial(b, 1/2 + β x / C).

    Shapes: any. Units: successes, 0 to b; a sum of n stands for :math:`\frac{C}{\beta b}(\hat q - \frac{b n}{2})`.
    Guarantee: unbiased; the variance of a sum of n is at most :math:`C^2 n / (4 \beta^2 b)`, reached at x = 0.
    Not guaranteed: anything outside [-C, C], unless values are clipped. With ``draws: system``, that draws are a
        function of names and places: every call has new ones, from the keystream of each slot.

    Args:
        levels: b.
        beta: β.
        clip: C.
        clip_outside: count values outside as ±C; False: they are an error.
        draws: as in ``PoissonBinomial``.

    References:
        PBM-VFL, Algorithm 1 and Theorem 2.3.
    """

    levels: int
    beta: float
    clip: float
    clip_outside: bool
    draws: Draws = "system"

    def encode(
        self, h: Tensor, slots: Sequence[int], every: int, names: RoundNames, rows: Rows, own: OwnKeystreams
    ) -> tuple[Tensor, float]:
        from lightning_vfl.privacy.binomial import Line, beyond, binomial_of

        x = h.detach().cpu()
        outside, infinite = beyond(x, self.clip)
        if outside and (infinite or not self.clip_outside):
            raise ConfigurationError(
                f"{outside} values of embeddings lie outside ±{self.clip:g} or are no numbers; end the bottoms in a "
                "bounded activation (output_activation: torch.nn.Tanh for clip: 1), or set clip_outside: true"
            )
        line = Line(self.beta / self.clip, 0.5, -self.clip, self.clip)
        drawn = torch.empty(x.shape, dtype=torch.int32)
        share = outside / max(x.numel(), 1)
        if self.draws == "system":
            for secret, values, out in zip(map(own.of, slots), x, drawn, strict=True):
                binomial_of(values, line, self.levels, secret, out, ties=secret)
            return drawn, share
        from lightning_vfl.fast_streams import FastStream

        count, local, width = x.shape
        together = (count, local) == (every, rows.total)  # all in one call
        for slot, values, out in [(0, x, drawn)] if together else zip(slots, x, drawn, strict=True):
            words = FastStream(names.seed, "binomial", names.stage, names.round).words
            binomial_of(values, line, self.levels, words, out, (slot * rows.total + rows.start) * width)
        return drawn, share

    def to_real(self, total: "NDArray[Any]", n: int) -> "NDArray[np.float64]":
        twice = 2.0 * np.asarray(total, np.float64) - float(n * self.levels)  # exact
        real: NDArray[np.float64] = twice * (self.clip / (2.0 * self.beta * self.levels))
        return real


@dataclass(frozen=True)
class DrawnSums(Accounting):
    """The privacy cost of sums of draws.

    Args:
        layer: which sums there are.
        codec: the draws.
    """

    layer: SecureLayer
    codec: Binomial

    @property
    def simulated(self) -> str | None:
        return SIMULATED if self.codec.draws == "seeded" else None

    def event(self, included: Parties, widths: Widths, roster: Roster) -> PrivacyEvent | None:
        """The sums that these parties are in; of several segments, all their coordinates together."""
        sums = self.layer.segments(roster)
        if self.layer.layout == "sum":
            members = [len(included)] if included else []
            segments = 1
        else:
            members = [len(others) for others in sums.members if all(m in included for m in others)]
            segments = len(members)
        if not members:
            return None
        width = widths[0] // len(sums.of[0])
        return PoissonBinomialEvent(self.codec.levels, self.codec.beta, min(members), width * segments)

    def colluders(self, roster: Roster) -> int:
        """With neighbours, those whose share they state; else all but two of the parties."""
        largest = self.layer.segments(roster).largest
        return roster.parties - 2 if self.layer.shared_with(largest) is None else self.layer.colluders(roster)

    def released(self, roll: Roll, sent: Tensor, roster: Roster) -> Tensor:
        """With recovery, a late upload stays hidden by its own mask; else the masks cancel once all have come."""
        return self.layer.takes_part(roll.called, sent, roster) if self.layer.recovery is None else roll.included

    def claim(self, n: int, uploads: int) -> str:
        """What the draws hide in a sum of n, in words for the summary."""
        figures = ", ".join(
            f"{shown(poisson_binomial_rdp(self.codec.levels, self.codec.beta, n, 2.0, unit))} of a {unit}"
            for unit in ("party-record", "record")
        )
        remark = "" if self.simulated is None else f"; {self.simulated}"
        return (
            f"Rényi ε of order 2 of one coordinate of one upload with nobody away: {figures}; they add up over "
            f"coordinates and {uploads:,} uploads{remark}"
        )


class PoissonBinomial(IntegerSum):
    r"""The sum of embeddings by the Poisson Binomial Mechanism: private to the server itself, because it is random.

    A party replaces each value x in [-C, C] by a draw of Binomial(b, 1/2 + β x / C); the draws are summed under the
    masks of ``inner``, in the smallest ring that holds bM, and the server estimates the sum of the embeddings from
    theirs. No noise is added: the randomness of the draws protects.
    ``lightning_vfl.privacy.poisson_binomial_rdp`` computes exactly how much.

    Shapes, layouts, keys and recovery: those of ``inner``. Uploads: ⌈log2(bM + 1)⌉ bits a number, gradients float32.
    Guarantee: exact in distribution (p is rounded towards 1/2 by less than 2^-40, so no privacy figure suffers),
        unbiased, and the Rényi ε of each coordinate of each upload is that of the exact mechanism for the n parties
        really included, if the server sees nothing but the sum (with ``neighbours``: but for their ``failure``).
        With ``draws: system`` the draws are secret, also from someone who knows the recipe and its seed.
    Not guaranteed: with ``draws: system``, repeatability: two runs of one seed differ, and a resumed run draws anew.
        With ``draws: seeded``, any privacy: anyone who knows the seed knows the draws, and the figures are those of a
        deployment whose parties draw for themselves. Privacy of gradients, which are sent in the clear, and of labels.
        Protection of evaluation, which runs in the clear by default. The paper draws masks from [0, b), which does not
        hide sums perfectly; ``inner`` masks in a full ring.

    Args:
        inner: whose masks hide the draws; None: ``MaskedSum()``. Its ``clip`` and ``levels`` have to be left alone.
        levels: b, trials of a draw.
        beta: β, above 0 and at most 1/4. Smaller is more private and noisier.
        clip: C; bottoms that end in tanh have 1.
        clip_outside: count values outside [-C, C] as ±C; False: they end the run.
        draws: where the random numbers come from. ``system``: AES-256 keystreams under keys from the operating system,
            one for each party and sum. ``seeded``: a stream named by the run's seed, for tests and for studies that
            compare runs in pairs; the privacy is then simulated, and the summary says so.

    Raises:
        ConfigurationError: before training, for settings outside these, a sum that no ring holds, and groups of
            several parties; in a round, for values outside [-C, C].

    Examples:
        >>> PoissonBinomial(levels=16, beta=0.25).among(Roster.singles(4)).bits
        7

    References:
        Tran, Castiglia, Patterson, Milanova, "PBM-VFL: Vertical Federated Learning with Feature and Sample Privacy",
        Algorithm 1, Theorem 2.3.
        Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation",
        ICML 2022.
    """

    private_evaluation: ClassVar[bool] = False
    incidental: ClassVar[tuple[str, ...]] = ("draws",)

    def __init__(
        self,
        inner: MaskedSum | None = None,
        levels: int = 16,
        beta: float = 0.25,
        clip: float = 1.0,
        clip_outside: bool = False,
        draws: Draws = "system",
    ) -> None:
        self.inner = inner or MaskedSum()
        if not isinstance(self.inner, MaskedSum):
            raise ConfigurationError(
                f"inner must be a MaskedSum, which masks the draws; got {type(self.inner).__name__}"
            )
        if (self.inner.clip, self.inner.levels) != (MaskedSum().clip, MaskedSum().levels):
            raise ConfigurationError(
                "clip and levels of inner are those of embeddings that are quantised, not drawn; set them on "
                "PoissonBinomial"
            )
        self.levels = positive("levels", levels, whole=True)
        self.beta = within("beta", beta, above=0, most=MOST_BETA)
        self.clip = positive("clip", clip, advice="use for example 1 for bottoms that end in tanh")
        self.clip_outside = clip_outside
        self.draws = checked_draws(draws)
        super().__init__(self.inner._layer, self.inner._equivalent)
        self._codec = Binomial(levels, beta, clip, clip_outside, draws)

    @property
    def bits(self) -> int:
        """Of the ring, and of a number on the wire."""
        return self._layer.bits

    @property
    def identity(self) -> str:
        inner = self.inner.identity
        return printed_without(self, ("inner", *self.incidental)) + f" in {inner}"

    def codec(self, roster: Roster) -> Binomial:
        return self._codec

    def among(self, roster: Roster) -> Self:
        if roster.shared:
            raise ConfigurationError(
                f"parties {list(roster.shared[0])} share a bottom, and their updates would be sent without any noise; "
                "PoissonBinomial takes groups of one"
            )
        n = self._layer.segments(roster).largest
        bits = (n * self.levels).bit_length()
        if bits > RING_BITS:
            raise ConfigurationError(
                f"the sum of {n} draws of {self.levels} trials does not fit {RING_BITS} bits; use fewer levels"
            )
        bound = super().among(roster)
        bound._layer = replace(self._layer, bits=bits)
        return bound

    @property
    def wire(self) -> MaskedWire:
        return replace(super().wire, claim=self.accounting.claim)

    @property
    def accounting(self) -> DrawnSums:
        return DrawnSums(self._layer, self._codec)
