"""What a participant of decoupled training learns by itself, without labels and without anybody's gradients.

An objective takes n participants at once, each with an encoder and a partner network of its own, so that equal ones
run in one batched call. Nothing of theirs is mixed: every participant has the loss and gradients it would have alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.autoencoder import mirrored
from lightning_vfl.networks.mlp import MLP

__all__ = ["BarlowTwins", "LocalObjective", "Reconstruction"]

Call = Callable[[Tensor], Tensor]


class LocalObjective(ABC):
    """What an encoder is trained for.

    Guarantee: n participants at once equal n calls with one each, within rounding; no gradient passes from one
        participant to another; rows of weight 0 teach nothing, and without a row that counts the loss is 0, and so is
        every gradient.
    Not guaranteed: anything about rows of weight 0 that are no finite numbers; pad with zeros.
    """

    passes: ClassVar[int] = 1
    """How often a record goes through encoder and partner in a step: what it costs."""

    @abstractmethod
    def partner(self, encoder: nn.Module, shape: tuple[int, ...], width: int) -> nn.Module:
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
            weight: (n, B) float, what every row counts in its participant's mean, 0: not at all; None: all the same.
            generator: makes a generator on x's device in the state that belongs to this round.
        """

    def __repr__(self) -> str:
        # what makes networks is left out: their printed form says it
        settings = (f"{k}={v!r}" for k, v in vars(self).items() if not (v is None or callable(v)))
        return f"{type(self).__name__}({', '.join(settings)})"


class Reconstruction(LocalObjective):
    r"""An autoencoder: what is left of a record in its embedding should be enough to draw it again.

    .. math:: \frac{1}{B d} \sum_{b} \lVert x_b - \mathrm{decode}(\mathrm{encode}(x_b)) \rVert^2

    The mean is over the d = ∏ S numbers of a record and over the rows that count. Nothing is drawn.

    Args:
        output_activation: makes the decoder's last activation, e.g. ``torch.nn.Sigmoid`` for pixels in [0, 1]; None:
            none. With a decoder of your own it goes unused, and is refused.
        decoder: makes the decoder from (width D, per-record shape S), its output (B, *S) or (B, ∏ S); None: the mirror
            of the encoder, which must be an ``MLP``.

    Raises:
        ConfigurationError: for an encoder that has no mirror, or a decoder that returns another number of numbers.

    Examples:
        >>> encoder = MLP((4,), 2, hidden=(3,))
        >>> Reconstruction().partner(encoder, (4,), 2)(torch.zeros(5, 2)).shape
        torch.Size([5, 4])

    References:
        Amalanshu, Sirvi, Inouye, "Decoupling Vertical Federated Learning using Local Self-Supervision", appendix D.1.
    """

    def __init__(
        self,
        output_activation: Callable[[], nn.Module] | None = None,
        decoder: Callable[[int, tuple[int, ...]], nn.Module] | None = None,
    ) -> None:
        if output_activation is not None and decoder is not None:
            raise ConfigurationError(
                "output_activation ends the mirrored decoder, but a decoder is given; let that one end with it, and "
                "leave output_activation out"
            )
        self.output_activation = output_activation
        self.decoder = decoder

    def partner(self, encoder: nn.Module, shape: tuple[int, ...], width: int) -> nn.Module:
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
        h = encode(x)
        target, drawn = x.flatten(2), partner(h).flatten(2)
        if drawn.shape != target.shape:  # one number would be broadcast
            raise ConfigurationError(
                f"the decoder returns {drawn.shape[2]} numbers for records of shape {tuple(x.shape[2:])}; "
                f"let it return {prod(x.shape[2:])}"
            )
        errors = nn.functional.mse_loss(drawn, target, reduction="none").mean(2)
        return (_shares(x, weight) * errors).sum(1), h.detach()


class BarlowTwins(LocalObjective):
    r"""Redundancy reduction: two corrupted views of a record agree in every number of a projection, and no two numbers
    of it say the same.

    .. math:: \sum_i (1 - C_{ii})^2 + λ \sum_i \sum_{j \ne i} C_{ij}^2

    C (D', D') is the cross-correlation of the two views' projections over the rows that count, every number first
    brought to mean 0 and variance 1 over those rows. A view is the record with each of its numbers set to zero with
    probability ``corruption``. That is defined for columns of a table, where zero is the mean of a standardised one,
    and for strips of images, where crops and colours are not. The embeddings are those of the whole records.

    All participants use the same two masks a row, so what one of them draws depends neither on how many there are nor
    on their order.

    Shapes: a projection is (n, B, D'), D' the last width of ``projector``.
    Not guaranteed: anything learnt from a batch of one row; a single row has no correlation, and its gradient is 0.

    Args:
        projector: widths of the projector, its output the last. It has no batch normalisation inside, unlike the
            paper's: what is kept between calls cannot be batched over participants. The loss normalises its output.
        off_diagonal: λ, the weight of redundancy against agreement.
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

    passes = 2  # and once more through the encoder, forward only

    def __init__(
        self, projector: Sequence[int] = (256, 256), off_diagonal: float = 5e-3, corruption: float = 0.3
    ) -> None:
        if not projector or min(projector) < 1:
            raise ConfigurationError(f"projector {tuple(projector)} has no output; give widths >= 1, e.g. [256, 256]")
        if not 0 < corruption < 1:
            raise ConfigurationError(
                f"corruption {corruption} gives two equal views or two empty ones; choose it between 0 and 1, e.g. 0.3"
            )
        if not off_diagonal >= 0:
            raise ConfigurationError(f"off_diagonal {off_diagonal} rewards redundancy; choose it >= 0, e.g. 0.005")
        self.projector = tuple(projector)
        self.off_diagonal = off_diagonal
        self.corruption = corruption

    def partner(self, encoder: nn.Module, shape: tuple[int, ...], width: int) -> MLP:
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
    """(n, B), every row's share in its participant's mean; all 0 where no row counts."""
    if weight is None:
        return x.new_full(x.shape[:2], 1 / max(x.shape[1], 1))
    total = weight.sum(1, keepdim=True)
    return weight / torch.where(total > 0, total, 1)


def _standardised(z: Tensor, shares: Tensor) -> Tensor:
    """(n, B, D') with mean 0 and variance 1 over the rows that count; a constant number becomes 0."""
    z = z - (shares * z).sum(1, keepdim=True)
    return z * ((shares * z.square()).sum(1, keepdim=True) + 1e-5).rsqrt()  # torch.nn.BatchNorm1d's ε
