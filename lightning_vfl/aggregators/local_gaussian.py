"""Embeddings with noise: each party clips every record's embedding and adds Gaussian noise before it leaves."""

from math import frexp, inf, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import gaussian_epsilon
from lightning_vfl.privacy.calibration import Budget, Noise
from lightning_vfl.privacy.draws import SIMULATED, Draws, OwnKeystreams, checked_draws
from lightning_vfl.privacy.events import ASSUMED, GaussianEvent, PrivacyEvent
from lightning_vfl.privacy.exact_normal import rounded_normal
from lightning_vfl.streams import Name, stream
from lightning_vfl.types import Roll, Roster
from lightning_vfl.wire import Aggregate, Contribution, Embeddings, Leg, Message, PartyView, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A norm in float64 is off by (D / 2 + 2) 2⁻⁵³ of itself: up to D = 16,000 this keeps it from passing the clip.
_INSIDE = 1 - 2.0**-40
# The grid: steps of at most σ 2⁻²⁰, so that rounding to it is small beside the noise, and of at least C 2⁻⁶⁰, so that a
# clipped value and its noise fit 64 bits.
_FINE, _COARSE, _SMALLEST = 20, 60, -1022
_LEAST_CLIP = 1e-140  # squares of smaller numbers are no floats, and the norm of a longer embedding could come out as 0


class LocalGaussian(Aggregator):
    r"""An aggregate in the clear of embeddings that each party has clipped and made noisy: local differential privacy.

    Party m sends, for every record of the batch and by itself,

    .. math:: \tilde h = h \cdot \min(1, C / \|h\|_2) + \mathcal{N}(0, \sigma^2 I),

    or, with ``bounds: value``, every value cut to [-C, C] and made noisy, and the server joins what it receives with
    ``inner``. Two clipped embeddings of D values are at most 2C apart, or :math:`2 C \sqrt D`; ``noise`` says how σ
    follows from that. Neighbouring data differ in one party's values of one record, which is uploaded once an epoch:
    ``event`` is what an upload costs, and the accountant adds them up. Gradients flow through the clipping; the noise
    is added, so its adjoint is the identity.

    With a mean and a budget of ε = 5 it is Wait-DP, the private baseline of FedVS; with a sum and ``bounds: value`` the
    local baseline of PBM-VFL, with its σ² = 2M / (b β²) as ``PublishedPBM`` and a matched one as ``MatchedPBM``. The
    papers state neither a δ nor a clip; the defaults here are the toolkit's own.

    Shapes: h_m (B, D_m); an upload (B, D_m) as the embeddings; value as ``inner``'s.
    Units: uploads and gradients in float32 on the wire; ``clip`` and ``sigma`` in those of the embeddings.
    Guarantee: with ``draws: system``, an upload, in evaluation too (``private_evaluation``), is as private as its
        ``event`` says for the party's values of its record, against a server that knows everything else, the recipe and
        its seed included, and that cannot break AES. The noise has no gaps of floating point (Mironov 2012): the
        clipped embedding is rounded towards zero to a grid of steps γ, a power of two of at most σ 2⁻²⁰, which makes
        nothing longer; the noise is :math:`\mathcal{N}(0, \sigma^2 I)` rounded to the same grid with exactly the
        right probabilities (``lightning_vfl.privacy.exact_normal``). Their sum is the ideal Gaussian mechanism at a
        point of the grid, rounded; the conversion to the embedding's precision is a function of that sum.
        With ``draws: seeded``, noise is a function of the names of round and party and of the row in the joint batch:
        several processes draw what one would have drawn, and a resumed run what the uninterrupted one would have.
    Not guaranteed: privacy of what a record leaves in the weights of its party's bottom, and through them in later
        uploads of OTHER records; the unit ``party`` covers that too.
        Privacy of labels, and of which records take part. Constant time (Jin et al. 2022 read noise from the time that
        it takes).
        With ``draws: system``, repeatability: two runs of one seed differ, and a resumed run draws new noise, also for
        a round that it repeats. (The same noise on two values would show their difference.)
        With ``draws: seeded``, any privacy: anyone who knows the seed subtracts the noise, which is computed in
        floating point and does not pass 9.4 σ. The same last bit of a logarithm or cosine on another processor.

    Args:
        noise: how much; None: ``Budget()``, (5, 1e-5)-differential privacy of one upload of one record.
        clip: C, the largest that is left as it is.
        inner: joins the noisy embeddings; one in the clear. None: ``Mean()``.
        bounds: what ``clip`` bounds: the L2 norm of a ``record``'s embedding, or each ``value`` of it.
        draws: where the noise comes from. ``system``: AES-256 keystreams under keys from the operating system, one a
            party. ``seeded``: streams named by the run's seed, for tests and for studies that compare runs in pairs;
            the privacy is then simulated, and the summary says so.

    Raises:
        ConfigurationError: for a clip that is not positive, an ``inner`` that does not take embeddings in the clear; in
            a round, for embeddings that are NaN or infinite.

    Examples:
        >>> from lightning_vfl.privacy import composed_epsilon
        >>> aggregator, four = LocalGaussian(), Roster.singles(4)
        >>> event = aggregator.event((0, 1, 2, 3), (16, 16, 16, 16), four)
        >>> f"{event.sigma:.4f} {composed_epsilon({event: 100}, delta=1e-5):.1f}"
        '1.7837 109.8'

    References:
        Li, Yao, Liu, "FedVS", ICML 2023, section 6.2 (Wait-DP, ε = 5), after Thapa et al., AAAI 2022.
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, the experiments (LDP).
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018 (what ``event`` costs).
        Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
        Jin, McMurtry, Rubinstein, Ohrimenko, "Are We There Yet? Timing and Floating-Point Attacks on Differential
        Privacy Systems", IEEE Symposium on Security and Privacy 2022, https://arxiv.org/abs/2112.05307.
    """

    visible = True
    private_evaluation = True
    incidental: ClassVar[tuple[str, ...]] = ("draws",)

    def __init__(
        self,
        noise: Noise | None = None,
        clip: float = 1.0,
        inner: Aggregator | None = None,
        bounds: Literal["record", "value"] = "record",
        draws: Draws = "system",
    ) -> None:
        if not _LEAST_CLIP <= clip < inf:
            raise ConfigurationError(
                f"clip {clip} is nothing to clip embeddings to; use a number above 0 ({_LEAST_CLIP:g} at the least)"
            )
        if bounds not in ("record", "value"):
            raise ConfigurationError(f"bounds {bounds!r} is nothing to clip; use 'record' or 'value'")
        self.noise = noise or Budget()
        self.clip = clip
        self.inner = inner or Mean()
        self.bounds = bounds
        self.draws = checked_draws(draws)
        self._keystreams = OwnKeystreams()
        self._sigmas: dict[tuple[int, int], float] = {}  # by width and parties: milliseconds to find
        if not self.inner.in_the_clear:
            raise ConfigurationError(
                f"LocalGaussian hands noisy embeddings over in the clear, which {type(self.inner).__name__} does not "
                "take; use Mean, Sum, Concat or Max as inner"
            )

    def sensitivity(self, width: int) -> float:
        """How far two clipped embeddings of D values can be apart, in L2 norm."""
        return 2 * self.clip * (sqrt(width) if self.bounds == "value" else 1.0)

    def sigma(self, width: int, parties: int) -> float:
        """The standard deviation σ of the noise in each of D values, where there are M parties."""
        if (width, parties) not in self._sigmas:
            self._sigmas[width, parties] = self.noise.sigma(self.clip, self.sensitivity(width), parties)
        return self._sigmas[width, parties]

    def protection(self, uploads: int) -> str:
        if isinstance(self.noise, Budget):
            noise = self.noise
            signal = self.sensitivity(1) / noise.sigma(self.clip, self.sensitivity(1), 1)  # the same for any width
            total = gaussian_epsilon(1.0, signal, noise.delta, uploads)
            more = f"; ε = {total:.4g} for the {uploads:,} of a record, {ASSUMED}" if uploads > 1 else ""
            return f"ε = {noise.epsilon:g} for one upload{more}, δ = {noise.delta:g}{self._remark}"
        clipped = f"values clipped to ±{self.clip:g}" if self.bounds == "value" else f"a norm clipped to {self.clip:g}"
        return f"noise of {self.noise}, {clipped}{self._remark}"

    @property
    def simulated(self) -> str | None:
        return SIMULATED if self.draws == "seeded" else None

    @property
    def _remark(self) -> str:
        return "" if self.simulated is None else f"; {self.simulated}"

    def event(self, included: tuple[int, ...], widths: tuple[int, ...], roster: Roster) -> PrivacyEvent | None:
        """The uploads of these parties."""
        if not included:
            return None
        width = max(widths[party] for party in included)
        return GaussianEvent(self.sigma(width, roster.parties), self.sensitivity(width), len(included))

    # ---- shapes

    def out_width(self, width: int, roster: Roster) -> int:
        return self.inner.out_width(width, roster)

    def check(self, parties: int) -> None:
        self.inner.check(parties)

    def widths(self, width: int, roster: Roster) -> tuple[int, ...]:
        return self.inner.widths(width, roster)

    def columns(self, widths: tuple[int, ...], roll: Roll) -> Tensor:
        return self.inner.columns(widths, roll)

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        return self.inner.legs(rows, widths, basis, roster)

    def downlink(self, rows: int, widths: tuple[int, ...], roster: Roster) -> Leg:
        return self.inner.downlink(rows, widths, roster)

    def min_responses(self, parties: int) -> int:
        return self.inner.min_responses(parties)

    # ---- one round

    def encode(self, contribution: Contribution, view: PartyView) -> tuple[Message, Any]:
        return self.inner.encode(self._noisy(contribution, view), view)

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        return self.inner.decode(messages, view)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        return self.inner.clear(self._noisy(contribution, view), view, roll)

    def plain(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None = None) -> Tensor:
        """The aggregate of the clipped embeddings, without noise."""
        return self.inner.plain(tuple(self._clipped(x).to(x.dtype) for x in h), roll, present)

    def pullback(
        self, grad: Tensor, aggregate: Aggregate, contribution: Contribution, view: ServerView
    ) -> tuple[Tensor, ...]:
        """The server's half is ``inner``'s, at the noisy uploads that it has; a party's goes through its clipping."""
        answers = self.inner.pullback(grad, aggregate, contribution, view)
        fresh = zip(contribution.leaves, answers, view.roll.included.tolist(), strict=True)
        return tuple(self._through_clip(h, answer) if mine else torch.zeros_like(h) for h, answer, mine in fresh)

    def _through_clip(self, h: Tensor, grad: Tensor) -> Tensor:
        """The adjoint of clipping at h, applied to the gradient of the clipped embedding."""
        with torch.enable_grad():
            leaf = h.detach().requires_grad_()
            clipped = self._clipped(leaf).to(h.dtype)
        return torch.autograd.grad(clipped, leaf, grad)[0]

    def _noisy(self, contribution: Contribution, view: PartyView) -> Embeddings:
        """What the hosted parties send: rounded to the precision of the embeddings when the noise is in."""
        leaves = contribution.leaves
        if not all(torch.isfinite(h).all() for h in leaves):
            raise ConfigurationError(
                "NaN or infinite embeddings cannot be hidden by noise; clean the data or lower the learning rate"
            )
        send = self._on_grid if self.draws == "system" else self._in_floats
        return Embeddings(tuple(send(party, h, view) for party, h in zip(view.parties, leaves, strict=True)))

    def _on_grid(self, party: int, h: Tensor, view: PartyView) -> Tensor:
        """The rounded sum of the clipped embedding and secret noise, without the gaps of floating point."""
        sigma = self.sigma(h.shape[1], view.roster.parties)
        step = grid(sigma, self.clip)
        # exact: a step is a power of two; and towards zero, so that nothing becomes longer than the clip
        whole = torch.trunc(self._clipped(h.detach()) / step).to(torch.int64)
        noise = rounded_normal(h.numel(), sigma / step, self._keystreams.of(party))
        whole += torch.from_numpy(noise).reshape(h.shape).to(h.device)
        return (whole.to(torch.float64) * step).to(h.dtype)

    def _in_floats(self, party: int, h: Tensor, view: PartyView) -> Tensor:
        """The clipped embedding with noise of the seed's stream, computed in float64."""
        names = ("noise", view.names.stage, view.names.round, party)
        drawn = normal(view.rows.total, h.shape[1], view.names.seed, *names)
        own = torch.from_numpy(drawn[view.rows.start : view.rows.start + len(h)]).to(h.device)
        sigma = self.sigma(h.shape[1], view.roster.parties)
        return (self._clipped(h.detach()) + sigma * own).to(h.dtype)

    def _clipped(self, h: Tensor) -> Tensor:
        """(B, D) float64: rows, or values, longer than the clip brought down to it, the others as they are."""
        exact = h.to(torch.float64)
        if self.bounds == "value":
            return exact.clamp(-self.clip, self.clip)
        inside = self.clip * _INSIDE
        norm = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
        scale: Tensor = inside / norm.clamp(min=inside)
        return exact * scale


def grid(sigma: float, clip: float) -> float:
    """The step γ of the grid that clipped embeddings and their noise are rounded to: a power of two.

    Examples:
        >>> grid(sigma=1.5, clip=1.0) == 2.0**-20
        True
    """
    return 2.0 ** max(frexp(sigma)[1] - 1 - _FINE, frexp(clip)[1] - _COARSE, _SMALLEST)


def normal(rows: int, columns: int, seed: int, *names: Name) -> "NDArray[np.float64]":
    """Independent standard normal numbers of the named stream, by Box and Muller's transform.

    Shapes: (rows, columns).
    Guarantee: a row is a function of its number, of ``columns`` and of the names, not of how many rows there are.

    References:
        Box, Muller, "A Note on the Generation of Random Normal Deviates", Annals of Mathematical Statistics 29, 1958.
    """
    pairs = (rows * columns + 1) // 2
    words = stream(seed, *names).random_raw(2 * pairs).reshape(pairs, 2)
    uniform = (words.astype(np.float64) + 1) * 2.0**-64  # in (0, 1]
    radius = np.sqrt(-2 * np.log(uniform[:, 0]))
    angle = 2 * np.pi * uniform[:, 1]
    drawn = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return drawn.reshape(-1)[: rows * columns].reshape(rows, columns)
