"""Embeddings with noise: each party clips every record's embedding and adds Gaussian noise before it sends it."""

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator, Around
from lightning_vfl.aggregators.clear import ClearParty, EmbeddingWire, PlainServer
from lightning_vfl.aggregators.parts import Accounting, PartySide, Traits, Uploads
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.checks import one_of, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import gaussian_epsilon, shown
from lightning_vfl.privacy.calibration import Budget, Noise
from lightning_vfl.privacy.draws import SIMULATED, Draws, OwnKeystreams, checked_draws
from lightning_vfl.privacy.events import ASSUMED, GaussianEvent, PrivacyEvent
from lightning_vfl.privacy.exact_normal import INSIDE, with_noise
from lightning_vfl.streams import Name, stream
from lightning_vfl.types import Parties, Roll, Roster, Tensors, Widths
from lightning_vfl.wire import Aggregate, Contribution, Embeddings, Message, PartyView

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_CLIP = 1e-140  # squares of smaller numbers are no floats, and the norm of a longer embedding could come out as 0


@dataclass(frozen=True)
class Mechanism:
    """How a party clips its embeddings and adds noise.

    Args:
        noise: how much.
        clip: C.
        bounds: what ``clip`` bounds.
        draws: where the noise comes from.
    """

    noise: Noise
    clip: float
    bounds: Literal["record", "value"]
    draws: Draws

    @property
    def simulated(self) -> str | None:
        """Why privacy figures are those of a simulation; None: they are not."""
        return SIMULATED if self.draws == "seeded" else None

    def sensitivity(self, width: int) -> float:
        """How far two clipped embeddings of D values can be apart, in L2 norm."""
        return 2 * self.clip * (sqrt(width) if self.bounds == "value" else 1.0)

    def sigma(self, width: int, parties: int) -> float:
        """The standard deviation σ of the noise in each of D values, where there are M parties."""
        return _sigma(self.noise, self.clip, self.sensitivity(width), parties)

    def noisy(self, contribution: Contribution, view: PartyView, own: OwnKeystreams) -> Embeddings:
        """The embeddings of the hosted parties, clipped and with noise, rounded to the precision of the embeddings.

        Raises:
            ConfigurationError: for NaN and infinite embeddings.
        """
        leaves = contribution.leaves
        if not all(torch.isfinite(h).all() for h in leaves):
            raise ConfigurationError(
                "NaN or infinite embeddings cannot be hidden by noise; clean the data or lower the learning rate"
            )
        hosted = zip(view.parties, leaves, strict=True)
        return Embeddings(tuple(self._noisy(party, h, view, own) for party, h in hosted))

    def _noisy(self, party: int, h: Tensor, view: PartyView, own: OwnKeystreams) -> Tensor:
        sigma = self.sigma(h.shape[1], view.roster.parties)
        clipped = self.clipped(h.detach())
        if self.draws == "system":
            noisy = torch.from_numpy(with_noise(clipped.cpu().numpy(), sigma, self.clip, own.of(party)))
        else:
            names = ("noise", view.names.stage, view.names.round, party)
            drawn = normal(view.rows.total, h.shape[1], view.names.seed, *names)
            noisy = clipped + sigma * torch.from_numpy(drawn[view.rows.start :][: len(h)]).to(h.device)
        return noisy.to(h.device, h.dtype)

    def clipped(self, h: Tensor) -> Tensor:
        """(B, D) float64: rows, or values, that are longer than the clip are scaled down to it."""
        if self.bounds == "value":
            return h.to(torch.float64).clamp(-self.clip, self.clip)
        return shortened(h, self.clip)

    def through_clip(self, h: Tensor, grad: Tensor) -> Tensor:
        """The adjoint of clipping at h, applied to the gradient of the clipped embedding."""
        with torch.enable_grad():
            leaf = h.detach().requires_grad_()
            clipped = self.clipped(leaf).to(h.dtype)
        return torch.autograd.grad(clipped, leaf, grad)[0]


@lru_cache(maxsize=256)
def _sigma(noise: Noise, clip: float, sensitivity: float, parties: int) -> float:
    return noise.sigma(clip, sensitivity, parties)  # takes milliseconds


@dataclass(frozen=True)
class NoisyWire(EmbeddingWire):
    """Noisy embeddings on the wire; the server joins them as embeddings in the clear.

    Args:
        mechanism: how a party clips its embeddings and adds noise.
        inner: how the server joins them.
    """

    mechanism: Mechanism
    inner: Aggregator

    traits = Traits(visible=True, loses_quietly=True)

    def protection(self, uploads: int) -> str:
        noise = self.mechanism.noise
        clip = self.mechanism.clip
        remark = "" if self.mechanism.simulated is None else f"; {self.mechanism.simulated}"
        if isinstance(noise, Budget):
            sensitivity = self.mechanism.sensitivity(1)
            signal = sensitivity / noise.sigma(clip, sensitivity, 1)  # the same for any width
            total = gaussian_epsilon(1.0, signal, noise.delta, uploads)
            more = f"; ε = {shown(total)} for the {uploads:,} of a record, {ASSUMED}" if uploads > 1 else ""
            return f"ε = {noise.epsilon:g} for one upload{more}, δ = {noise.delta:g}{remark}"
        clipped = f"values clipped to ±{clip:g}" if self.mechanism.bounds == "value" else f"a norm clipped to {clip:g}"
        return f"noise of {noise}, {clipped}{remark}"

    def party_side(self) -> "NoisyParty":
        return NoisyParty(self.mechanism)

    def server_side(self) -> PlainServer:
        return PlainServer(self.inner)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        noisy = self.mechanism.noisy(contribution, view, OwnKeystreams())
        return self.server_side().aggregate(noisy.leaves, roll, view.present)


class NoisyParty(PartySide):
    """Parties that clip their embeddings and add noise.

    Args:
        mechanism: how.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self._own = OwnKeystreams()
        self._clear = ClearParty()

    def upload(self, contribution: Contribution, view: PartyView) -> Uploads:
        yield from self._clear.upload(self.mechanism.noisy(contribution, view, self._own), view)

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> Tensors:
        """The server's gradient, at the noisy upload, through the party's own clipping."""
        answers = self._clear.carry(answer, contribution, view)
        sent = answer.receivers or ()
        hosted = zip(view.parties, contribution.leaves, answers, strict=True)
        return tuple(self.mechanism.through_clip(h, grad) if m in sent else grad for m, h, grad in hosted)


@dataclass(frozen=True)
class NoisyUploads(Accounting):
    """The privacy cost of noisy uploads.

    Args:
        mechanism: how embeddings are clipped and made noisy.
    """

    mechanism: Mechanism

    @property
    def simulated(self) -> str | None:
        return self.mechanism.simulated

    def event(self, included: Parties, widths: Widths, roster: Roster) -> PrivacyEvent | None:
        """The uploads of these parties."""
        if not included:
            return None
        width = max(widths[party] for party in included)
        sigma = self.mechanism.sigma(width, roster.parties)
        return GaussianEvent(sigma, self.mechanism.sensitivity(width), len(included))

    def colluders(self, roster: Roster) -> int:
        return roster.parties - 2

    def released(self, roll: Roll, sent: Tensor, roster: Roster) -> Tensor:
        return sent


class LocalGaussian(Around):
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
        >>> event = aggregator.accounting.event((0, 1, 2, 3), (16, 16, 16, 16), four)
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
        self.noise = noise or Budget()
        self.clip = within("clip", clip, LEAST_CLIP)
        self.inner = inner or Mean()
        self.bounds = one_of("bounds", bounds, ("record", "value"))
        self.draws = checked_draws(draws)
        self._mechanism = Mechanism(self.noise, clip, bounds, self.draws)
        if self.inner.wire is not None:
            raise ConfigurationError(
                f"LocalGaussian hands noisy embeddings over in the clear, which {type(self.inner).__name__} does not "
                "take; use Mean, Sum, Concat or Max as inner"
            )

    def sigma(self, width: int, parties: int) -> float:
        """The standard deviation σ of the noise in each of D values, where there are M parties."""
        return self._mechanism.sigma(width, parties)

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        """The aggregate of the clipped embeddings, without noise."""
        return self.inner.plain(tuple(self._mechanism.clipped(x).to(x.dtype) for x in h), roll, present)

    @property
    def wire(self) -> NoisyWire:
        return NoisyWire(self._mechanism, self.inner)

    @property
    def accounting(self) -> NoisyUploads:
        return NoisyUploads(self._mechanism)


def shortened(h: Tensor, clip: float) -> Tensor:
    """(B, D) float64: rows that are longer than the clip, in L2 norm, are scaled down to it."""
    exact = h.to(torch.float64)
    inside = clip * INSIDE
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
