"""Local objectives of decoupled training: a participant trains without labels and without gradients of others.

An objective takes n participants at once, each with its own encoder and partner network, so that networks of the same
architecture run in one batched call. The participants stay independent: each has the same loss and gradients as alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.mlp import MLP, mirrored
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.types import Shape

__all__ = ["BarlowTwins", "LocalObjective", "Reconstruction"]

Call = Callable[[Tensor], Tensor]


class LocalObjective(Rebuildable, ABC):
    """The objective by which an encoder is trained.

    Guarantee: n participants at once equal n calls with one participant each, within rounding. There is no gradient
        between participants. Rows of weight 0 have no effect; if all rows have weight 0, the loss and every gradient
        are 0.
    Not guaranteed: correct results if rows of weight 0 have infinite or NaN numbers; pad with zeros.
    """

    passes: ClassVar[int] = 1
    """The number of passes of a record through encoder and partner in a step, for the costs."""

    @abstractmethod
    def partner(self, encoder: nn.Module, shape: Shape, width: int) -> nn.Module:
        """The network that is trained beside an encoder of records of this shape into ``width`` numbers."""

    @abstractmethod
    def losses(
        self,
        encode: Call,
        partner: Call,
        x: Tensor,
        weight: Tensor | None,
        generator: Callable[[], torch.Generator],
    ) -> tuple[Tensor, Tensor]:
        """Losses (n,) of n participants at once, and their embeddings of x (n, B, D), detached.

        Args:
            encode: the encoders, (n, B', *S) to (n, B', D), for any number of rows.
            partner: the partners, (n, B', D) to (n, B', D').
            x: the participants' records, (n, B, *S).
            weight: (n, B) float, the weight of every row in its participant's mean, 0: ignored; None: equal weights.
            generator: makes a generator on x's device, seeded for this round.
        """

    def __repr__(self) -> str:
        # factories of networks are left out, because the printed form of the networks has their settings
        settings = (f"{k}={v!r}" for k, v in vars(self).items() if not (v is None or callable(v) or k[0] == "_"))
        return f"{type(self).__name__}({', '.join(settings)})"


class Reconstruction(LocalObjective):
    r"""An autoencoder: a decoder reconstructs the record from its embedding.

    .. math:: \frac{1}{B d} \sum_{b} \lVert x_b - \mathrm{decode}(\mathrm{encode}(x_b)) \rVert^2

    The mean is over the d = ∏ S numbers of a record and over the rows with a weight above 0. Without ``corruption``
    the loss is deterministic. With it the encoder gets the record with each of its numbers set to zero with this
    probability, and the decoder reconstructs the whole record, as a denoising autoencoder does.

    Args:
        output_activation: makes the decoder's last activation, for example ``torch.nn.Sigmoid`` for pixels in [0, 1];
            None: no activation. It is refused if a decoder is given.
        decoder: makes the decoder from (width D, per-record shape S), with output (B, *S) or (B, ∏ S); None: the mirror
            image of the encoder, which must be an ``MLP``.
        corruption: the probability that a number is masked, between 0 and 1; None: no number is.

    Raises:
        ConfigurationError: for an encoder without a mirror image, a decoder with a wrong number of outputs, or a
            corruption outside of (0, 1).

    Examples:
        >>> encoder = MLP((4,), 2, hidden=(3,))
        >>> Reconstruction().partner(encoder, (4,), 2)(torch.zeros(5, 2)).shape
        torch.Size([5, 4])

    References:
        Amalanshu, Sirvi, Inouye, "Decoupling Vertical Federated Learning using Local Self-Supervision", appendix D.1.
        Vincent et al., "Stacked Denoising Autoencoders", JMLR 2010, section 3.3 (masking noise).
    """

    def __init__(
        self,
        output_activation: Callable[[], nn.Module] | None = None,
        decoder: Callable[[int, Shape], nn.Module] | None = None,
        corruption: float | None = None,
    ) -> None:
        if output_activation is not None and decoder is not None:
            raise ConfigurationError(
                "output_activation belongs to the mirrored decoder, but a decoder is given; put the activation into "
                "this decoder, and leave output_activation out"
            )
        if corruption is not None:
            within("corruption", corruption, above=0, below=1, advice="use for example 0.3")
        self.output_activation = output_activation
        self.decoder = decoder
        self.corruption = corruption

    def partner(self, encoder: nn.Module, shape: Shape, width: int) -> nn.Module:
        """The decoder."""
        return self.decoder(width, shape) if self.decoder else mirrored(encoder, shape, self.output_activation)

    def losses(
        self,
        encode: Call,
        partner: Call,
        x: Tensor,
        weight: Tensor | None,
        generator: Callable[[], torch.Generator],
    ) -> tuple[Tensor, Tensor]:
        h = encode(self._masked(x, generator))
        target = x.flatten(2)
        drawn = partner(h).flatten(2)
        if drawn.shape != target.shape:  # a single number would be broadcast
            raise ConfigurationError(
                f"the decoder returns {drawn.shape[2]} numbers for records of shape {tuple(x.shape[2:])}; "
                f"make it return {prod(x.shape[2:])}"
            )
        errors = nn.functional.mse_loss(drawn, target, reduction="none").mean(2)
        if self.corruption is not None:
            with torch.no_grad():
                h = encode(x)
        return (_shares(x, weight) * errors).sum(1), h.detach()

    def _masked(self, x: Tensor, generator: Callable[[], torch.Generator]) -> Tensor:
        """What the encoder gets of records (n, B, *S); all participants have the same masks."""
        if self.corruption is None:
            return x
        drawn = torch.rand(x.shape[1:], generator=generator(), device=x.device)
        return x * (drawn >= self.corruption).to(x.dtype)


class BarlowTwins(LocalObjective):
    r"""Redundancy reduction: two corrupted views of a record agree in every number of a projection, and different
    numbers of the projection are uncorrelated.

    .. math:: \sum_i (1 - C_{ii})^2 + λ \sum_i \sum_{j \ne i} C_{ij}^2

    C (D', D') is the cross-correlation of the two views' projections over the rows with a weight above 0. Every number
    is first scaled to mean 0 and variance 1 over these rows. A view is the record with each of its numbers set to zero
    with probability ``corruption``. This works for columns of a table, where zero is the mean of a standardised column,
    and for strips of images, for which crops and colour changes are not defined. The embeddings are those of the
    uncorrupted records.

    All participants use the same two masks for a row, so a participant's masks do not depend on the number or the order
    of the participants.

    Shapes: a projection is (n, B, D'), D' the last width of ``projector``.
    Not guaranteed: learning from a batch of one row: a single row has no correlation, and its gradient is 0.

    Args:
        projector: widths of the projector's layers, the output last. Unlike in the paper it has no batch normalisation,
            because running statistics cannot be batched over participants. The loss normalises the output.
        off_diagonal: λ, the weight of the redundancy term.
        corruption: the probability that a number is masked, between 0 and 1.

    Raises:
        ConfigurationError: for no width, a corruption outside of (0, 1), or a negative λ.

    Examples:
        >>> BarlowTwins(projector=(32, 64))
        BarlowTwins(projector=(32, 64), off_diagonal=0.005, corruption=0.3)

    References:
        Zbontar, Jing, Misra, LeCun, Deny, "Barlow Twins: Self-Supervised Learning via Redundancy Reduction", ICML 2021,
        equations (1) and (2).
    """

    passes = 2  # and one more forward pass through the encoder

    def __init__(
        self, projector: Sequence[int] = (256, 256), off_diagonal: float = 5e-3, corruption: float = 0.3
    ) -> None:
        if not projector or min(projector) < 1:
            raise ConfigurationError(
                f"projector must have one or more widths >= 1; got {tuple(projector)}; use for example [256, 256]"
            )
        within("corruption", corruption, above=0, below=1, advice="use for example 0.3")
        within("off_diagonal", off_diagonal, 0, advice="use for example 0.005")
        self.projector = tuple(projector)
        self.off_diagonal = off_diagonal
        self.corruption = corruption

    def partner(self, encoder: nn.Module, shape: Shape, width: int) -> MLP:
        """The projector."""
        *hidden, outputs = self.projector
        return MLP(width, outputs, hidden=hidden)

    def losses(
        self,
        encode: Call,
        partner: Call,
        x: Tensor,
        weight: Tensor | None,
        generator: Callable[[], torch.Generator],
    ) -> tuple[Tensor, Tensor]:
        drawn = torch.rand((2, *x.shape[1:]), generator=generator(), device=x.device)
        first, second = (drawn >= self.corruption).to(x.dtype)  # (B, *S), the same for all participants
        one, other = partner(encode(torch.cat([x * first, x * second], dim=1))).chunk(2, dim=1)
        with torch.no_grad():
            h = encode(x)
        return self._losses(one, other, _shares(x, weight)), h

    def _losses(self, one: Tensor, other: Tensor, shares: Tensor) -> Tensor:
        """Projections of the two views, each (n, B, D'), to losses (n,)."""
        shares = shares.unsqueeze(2)
        correlation = (shares * _standardised(one, shares)).mT @ _standardised(other, shares)
        diagonal = correlation.diagonal(dim1=1, dim2=2)
        redundancy = correlation.square().sum((1, 2)) - diagonal.square().sum(1)
        losses = (1 - diagonal).square().sum(1) + self.off_diagonal * redundancy
        return losses * shares.any(1).squeeze(1)


def _shares(x: Tensor, weight: Tensor | None) -> Tensor:
    """(n, B), every row's share in its participant's mean; all 0 if no row has a weight above 0."""
    if weight is None:
        return x.new_full(x.shape[:2], 1 / max(x.shape[1], 1))
    total = weight.sum(1, keepdim=True)
    return weight / torch.where(total > 0, total, 1)


def _standardised(z: Tensor, shares: Tensor) -> Tensor:
    """(n, B, D') with mean 0 and variance 1 over the rows with a weight above 0; a constant number becomes 0."""
    z = z - (shares * z).sum(1, keepdim=True)
    return z * ((shares * z.square()).sum(1, keepdim=True) + 1e-5).rsqrt()  # torch.nn.BatchNorm1d's ε
