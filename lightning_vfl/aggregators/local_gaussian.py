"""Embeddings with noise: each party clips every record's embedding and adds Gaussian noise before it leaves."""

from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import analytic_sigma, gaussian_epsilon
from lightning_vfl.privacy.events import GaussianEvent, PrivacyEvent
from lightning_vfl.streams import Name, stream
from lightning_vfl.types import (
    Aggregate,
    Contribution,
    Embeddings,
    Leg,
    Message,
    PartyView,
    Roll,
    Roster,
    ServerView,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A norm in float64 is off by (D / 2 + 2) 2⁻⁵³ of itself: up to D = 16,000 this keeps it from passing the clip.
_INSIDE = 1 - 2.0**-40


class LocalGaussian(Aggregator):
    r"""An aggregate in the clear of embeddings that each party has clipped and made noisy: local differential privacy.

    Party m sends, for every record of the batch and by itself,

    .. math:: \tilde h = h \cdot \min(1, C / \|h\|_2) + \mathcal{N}(0, \sigma^2 I),

    and the server joins what it receives with ``inner``. Two clipped embeddings are at most 2C apart, so σ is the
    smallest that gives (ε, δ)-differential privacy at sensitivity 2C, for ONE upload of one record; neighbouring data
    differ in one party's values of one record. A record is uploaded once an epoch: ``total_epsilon`` says what all its
    uploads cost together. Gradients flow through the clipping; the noise is added, so its adjoint is the identity.

    With a mean and ε = 5 it is Wait-DP, the private baseline of FedVS; with a sum the local baseline of PBM-VFL. The
    papers state neither a δ nor a clip with it; the defaults here are the toolkit's own. FedVS does not state a
    calibration either, and PBM-VFL sets σ² = 2M / (b β²): look at σ before accuracies are compared.

    Shapes: h_m (B, D_m); an upload (B, D_m) as the embeddings; value as ``inner``'s.
    Units: uploads and gradients in float32 on the wire; ``clip`` and ``sigma`` in those of the embeddings.
    Guarantee: an upload, in evaluation too (``private_evaluation``), is (ε, δ)-differentially private for the party's
        values of its record: in exact arithmetic, against a server that knows everything else. Noise is a function of
        the names of round and party and of the row in the joint batch, so several processes draw what one would have
        drawn, and a resumed run what the uninterrupted one would have.
    Not guaranteed: privacy of what a record leaves in the weights of its party's bottom, and through them in later
        uploads of OTHER records; ``total_epsilon`` of the number of ALL rows that the party uploads covers that too.
        Privacy of labels, and of which records take part. Secrecy of the noise: Philox is no cryptographic generator.
        Freedom from the known holes of floating-point noise (Mironov 2012; Jin et al. 2022), though the sum is taken in
        float64 and rounded to the embedding's precision afterwards; beyond 9.4 σ, of probability 4e-21, there is no
        noise. It is a baseline for research, and nothing to deploy. The same last bit of a logarithm or cosine on
        another processor.

    Args:
        epsilon: ε of one upload of one record.
        delta: δ of one upload of one record.
        clip: C, the largest L2 norm of an embedding that is left as it is.
        inner: joins the noisy embeddings; one in the clear. None: ``Mean()``.

    Raises:
        ConfigurationError: for a budget that no noise meets, a clip that is not positive, an ``inner`` that does not
            take embeddings in the clear; in a round, for embeddings that are NaN or infinite.

    Example:
        >>> aggregator = LocalGaussian(epsilon=5.0, delta=1e-5, clip=1.0)
        >>> f"{aggregator.sigma:.4f} {aggregator.total_epsilon(uploads=100):.1f}"
        '1.7837 109.8'

    References:
        Li, Yao, Liu, "FedVS", ICML 2023, section 6.2 (Wait-DP, ε = 5), after Thapa et al., AAAI 2022.
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, the experiments (LDP).
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8 (σ).
        Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
        Jin, McMurtry, Rubinstein, Ohrimenko, "Are We There Yet? Timing and Floating-Point Attacks on Differential
        Privacy Systems", IEEE Symposium on Security and Privacy 2022, https://arxiv.org/abs/2112.05307.
    """

    visible = True
    private_evaluation = True

    def __init__(
        self, epsilon: float = 5.0, delta: float = 1e-5, clip: float = 1.0, inner: Aggregator | None = None
    ) -> None:
        if not 0 < clip < inf:
            raise ConfigurationError(f"clip {clip} is no norm to clip embeddings to; use a number above 0")
        self.epsilon = epsilon
        self.delta = delta
        self.clip = clip
        self.inner = inner or Mean()
        if not self.inner.in_the_clear:
            raise ConfigurationError(
                f"LocalGaussian hands noisy embeddings over in the clear, which {type(self.inner).__name__} does not "
                "take; use Mean, Sum, Concat or Max as inner"
            )
        self._sensitivity = 2 * clip
        self._sigma = analytic_sigma(epsilon, delta, self._sensitivity)

    @property
    def sigma(self) -> float:
        """The standard deviation σ of the noise in each coordinate."""
        return self._sigma

    def total_epsilon(self, uploads: int, delta: float | None = None) -> float:
        """The ε of one party's values of a record that it uploads so many times; rounded up.

        The values of all M parties together cost what M times as many uploads cost.

        Args:
            uploads: in all: epochs of training, and evaluations of the record.
            delta: δ of all uploads together; None: that of one.
        """
        return gaussian_epsilon(self._sigma, self._sensitivity, self.delta if delta is None else delta, uploads)

    def protection(self, uploads: int) -> str:
        total = f"; ε = {self.total_epsilon(uploads):.4g} for the {uploads:,} of a record" if uploads > 1 else ""
        return f"ε = {self.epsilon:g} for one upload{total}, δ = {self.delta:g}"

    def event(self, included: tuple[int, ...], widths: tuple[int, ...], roster: Roster) -> PrivacyEvent | None:
        """The uploads of these parties."""
        return GaussianEvent(self._sigma, self._sensitivity, len(included)) if included else None

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
        return self.inner.plain(tuple(_clipped(x, self.clip).to(x.dtype) for x in h), roll, present)

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
            clipped = _clipped(leaf, self.clip).to(h.dtype)
        return torch.autograd.grad(clipped, leaf, grad)[0]

    def _noisy(self, contribution: Contribution, view: PartyView) -> Embeddings:
        """What the hosted parties send: rounded to the precision of the embeddings when the noise is in."""
        leaves = contribution.leaves
        if not all(torch.isfinite(h).all() for h in leaves):
            raise ConfigurationError(
                "NaN or infinite embeddings cannot be hidden by noise; clean the data or lower the learning rate"
            )
        uploads = []
        for party, h in zip(view.parties, leaves, strict=True):
            names = ("noise", view.names.stage, view.names.round, party)
            drawn = normal(view.rows.total, h.shape[1], view.names.seed, *names)
            own = torch.from_numpy(drawn[view.rows.start : view.rows.start + len(h)]).to(h.device)
            uploads.append((_clipped(h.detach(), self.clip) + self._sigma * own).to(h.dtype))
        return Embeddings(tuple(uploads))


def _clipped(h: Tensor, clip: float) -> Tensor:
    """(B, D) float64: rows longer than the clip scaled down to it, the others as they are."""
    exact = h.to(torch.float64)
    inside = clip * _INSIDE
    norm = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    scale: Tensor = inside / norm.clamp(min=inside)
    return exact * scale


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
