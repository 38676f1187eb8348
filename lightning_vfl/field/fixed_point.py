"""Real numbers as field elements: scaling, rounding, signs, and a check that no sum wraps around."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field.prime import PrimeField, integers
from lightning_vfl.streams import uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = Callable[[int], "NDArray[np.uint64]"]

MOST_BITS = 60  # of a scale: 2^60 times the smallest float32 step is still an integer far below 2^63


@dataclass(frozen=True)
class FixedPoint:
    r"""Data in units of 2^-l_x and weights in units of 2^-l_w, as integers and as elements of a field.

    Data are rounded to the nearest integer (halves upwards). Weights are rounded at random to one of the two nearest
    integers, so that the mean is the weight. A negative integer x becomes the element p + x. A sum of products of data
    and weights is decoded as its centred residue times 2^-(l_x + l_w). The decoded number is the sum over the parties
    in S if every party has checked with ``check_overflow`` that

    .. math:: \max(|\bar X_m| |\bar W_m|) \le \frac{p - 1}{2 |S|}.

    Shapes: element-wise; ``check_overflow`` takes x (*, B, d) and w (*, d, D).
    Units: real numbers in float32 or float64; integers and field elements in int64; ``dequantise`` gives float64.
    Guarantee: |x̄ 2^-l_x - x| ≤ 2^-(l_x+1) for data, < 2^-l_w for weights, with mean w up to 2^-53 of a unit; integers
        whose sign would be lost are refused, as are NaN and infinities.
    Not guaranteed: a bound on the error of a sum of products, which also depends on the magnitudes.

    Args:
        field: the modulus.
        l_x: scale bits of the data.
        l_w: scale bits of the weights.

    Raises:
        ConfigurationError: for scale bits outside 0..60.

    Examples:
        >>> from lightning_vfl.field import PrimeField
        >>> codec = FixedPoint(PrimeField(), l_x=4, l_w=8)
        >>> x = codec.quantise_data(torch.tensor([[0.5, -1.25]]))
        >>> x.tolist(), codec.field.embed(x).tolist()
        ([[8, -20]], [[8, 2147483627]])

    References:
        Li, Yao, Liu, "FedVS", ICML 2023, sections 4.2 (data) and 4.3 (equation (3), weights; dequantisation).
    """

    field: PrimeField
    l_x: int
    l_w: int

    def __post_init__(self) -> None:
        within("l_x", self.l_x, 0, MOST_BITS, whole=True)
        within("l_w", self.l_w, 0, MOST_BITS, whole=True)

    def quantise_data(self, x: Tensor, name: str = "l_x", summands: int = 1) -> Tensor:
        """Nearest integers to 2^l_x · x, halves upwards.

        Args:
            x: the data.
            name: of the setting l_x, for errors.
            summands: how many such integers are added; a number with which the sum could wrap around is refused.
        """
        scaled = self._scaled(x, name, self.l_x, self.field.half // summands)
        below = scaled.floor()
        # not floor(scaled + 0.5): that addition rounds, and takes the largest float64 below 0.5 to 1
        return below.to(torch.int64) + (scaled - below >= 0.5)

    def round_data(self, x: Tensor) -> Tensor:
        """The real numbers x̄ 2^-l_x that the integers of ``quantise_data`` represent; no further rounding happens.

        The result has the dtype of x, or float32 for the half precisions, which would overflow.
        """
        if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
            from lightning_vfl.field.kernels import nearest  # numba: 0.5 s, where it is used

            x = x.detach().contiguous()
            rounded = torch.empty_like(x)
            real = np.float32 if x.dtype == torch.float32 else np.float64
            nearest(x.view(-1).numpy(), real(2.0**self.l_x), real(0.5), rounded.view(-1).numpy())
            return rounded
        scaled = (x if x.dtype in (torch.float32, torch.float64) else x.float()) * 2.0**self.l_x
        below = scaled.floor()
        return below.add_(scaled.sub_(below) >= 0.5).mul_(2.0**-self.l_x)

    def quantise_weights(self, w: Tensor, words: "Words") -> Tensor:
        """Integers next to 2^l_w · w, the upper one with the probability of the fraction.

        Args:
            w: the weights.
            words: gives n uniform 64-bit words for n, e.g. ``stream(seed, "weights", round, party).random_raw``.
        """
        w = w.detach()
        bits = words(w.numel())
        if w.device.type == "cpu" and w.dtype in (torch.float32, torch.float64):
            from lightning_vfl.field.kernels import neighbours

            w = w.contiguous()
            rounded = torch.empty(w.shape, dtype=torch.int64)
            most = float(min(self.field.half - 1, 2**53))
            if neighbours(w.view(-1).numpy(), bits, self.l_w, most, rounded.view(-1).numpy()):
                return rounded
        scaled = self._scaled(w, "l_w", self.l_w, self.field.half)
        below = scaled.floor()
        drawn = torch.from_numpy(uniform(bits)).reshape(w.shape).to(w.device)
        return below.to(torch.int64) + (drawn < scaled - below)

    def dequantise(self, elements: Tensor) -> Tensor:
        """Sums of products of data and weights as float64: the centred residue times 2^-(l_x + l_w)."""
        unit = 2.0 ** -(self.l_x + self.l_w)
        if elements.device.type == "cpu" and elements.dtype == torch.int64:
            from lightning_vfl.field.kernels import lift

            elements = elements.contiguous()
            real = torch.empty(elements.shape, dtype=torch.float64)
            if lift(elements.view(-1).numpy(), self.field.modulus, unit, real.view(-1).numpy()):
                return real
        return self.field.lift(elements).to(torch.float64).mul_(unit)

    def check_overflow(self, x: Tensor, w: Tensor, summands: int) -> None:
        """Check that a party's part cannot make the sum wrap around; parties do this in every round, before they send.

        The product of absolute values is computed in float64. Below 2^53 it is exact. Above, the largest possible
        rounding error is added, so that the check may refuse slightly too early but never accepts an overflow.

        Args:
            x: the rows of this round as signed integers, (*, B, d).
            w: the weights as signed integers, (*, d, D).
            summands: |S|, the number of parties in the sum.

        Raises:
            ConfigurationError: if max(|x| |w|) is above (p - 1) / (2 |S|), naming a setting that fits.
        """
        reach, rows = _reach(x, w)
        positive("summands", summands, whole=True)
        bound = self.field.half // summands
        if reach > bound:
            raise ConfigurationError(
                f"l_x = {self.l_x} and l_w = {self.l_w} overflow: |X||W| reaches {reach:.6g}, above (p - 1) / (2 |S|) "
                f"= {bound} for p = {self.field.modulus} and |S| = {summands}; {self._remedy(reach, rows, bound)}"
            )

    def _remedy(self, reach: float, rows: float, bound: int) -> str:
        """The end of the error message: the largest l_w that fits, or what else to change."""
        # |w̄| ≤ 2^l_w |w| + 1 after any rounding and the other way round: with e bits fewer, each weight is at most
        # (|w̄| + 1) 2^-e + 1, and |X||W| at most (reach + rows) 2^-e + rows, where rows = max Σ_j |x_ij|
        for fewer in range(1, self.l_w + 1):
            if ((reach + rows) * 2.0**-fewer + rows) * (1 + 2.0**-40) <= bound:
                fit = self.l_w - fewer
                return f"use l_w = {fit} (scale: {fit}, or auto), fewer bits in l_x, or a larger modulus"
        return "no l_w fits; use fewer bits in l_x or a larger modulus"

    @staticmethod
    def _scaled(x: Tensor, name: str, bits: int, most: int) -> Tensor:
        """The numbers times 2^bits in float64, which does not round, if they are below ``most``."""
        if not x.is_floating_point():
            raise ConfigurationError(f"the numbers must be floating point; got {x.dtype}, convert with .float()")
        scaled = x.to(torch.float64) * 2.0**bits
        if scaled.numel():
            largest = float(scaled.abs().max())
            if not isfinite(largest):  # max() passes a NaN on
                raise ConfigurationError(
                    "NaN or infinity cannot be quantised; remove such values from the data, or lower the learning rate"
                )
            if largest + 1 > most:
                fit = next((b for b in range(bits - 1, -1, -1) if largest * 2.0 ** (b - bits) + 1 <= most), None)
                raise ConfigurationError(
                    f"{name} = {bits} takes {largest * 2.0**-bits:.6g} to {largest:.6g}, outside ±{most}; "
                    + (f"use {name} = {fit}" if fit is not None else "use a larger modulus")
                )
        return scaled


def auto_weight_bits(
    field: PrimeField, l_x: int, x: Tensor, weights: Tensor, summands: int, headroom: float = 4.0
) -> int:
    """The largest l_w for which weights may grow by the factor ``headroom`` without an overflow.

    Every party computes its own l_w; the sum uses the minimum over all parties.

    Shapes: x (*, B, d), weights (*, d, D).
    Units: x in integers of 2^-l_x; weights in real numbers.
    Guarantee: ``check_overflow`` passes for these rows and all weights up to ``headroom`` times these in absolute
        value, however they are rounded.
    Not guaranteed: the same for other rows; give all rows of the party, or rows that bound them.

    Args:
        field: the modulus.
        l_x: scale bits of the data.
        x: the data, quantised.
        weights: as they are now; zeros count as the smallest unit.
        summands: |S|, the number of parties in the sum.
        headroom: how many times larger the weights may become, at least 1.

    Raises:
        ConfigurationError: if not even l_w = 0 fits.

    Examples:
        >>> from lightning_vfl.field import PrimeField
        >>> auto_weight_bits(PrimeField(), 8, torch.tensor([[256, -256]]), torch.tensor([[0.5], [0.5]]), summands=4)
        17
    """
    within("headroom", headroom, 1)
    positive("summands", summands, whole=True)
    reach, rows = _reach(x, weights)
    if not isfinite(reach):
        raise ConfigurationError("some weights are NaN or infinite; lower the learning rate")
    bound = field.half // summands
    largest = float(weights.abs().max()) if weights.numel() else 0.0
    for l_w in range(MOST_BITS, -1, -1):
        grown = headroom * 2.0**l_w
        fits = (reach * grown + rows) * (1 + 2.0**-40) <= bound  # rounding moves a weight by less than 1
        if fits and largest * grown + 1 <= field.half:
            return l_w
    raise ConfigurationError(
        f"no l_w fits: data with l_x = {l_x} and a headroom of {headroom:g} pass (p - 1) / (2 |S|) = {bound} for "
        f"p = {field.modulus} and |S| = {summands}; use fewer bits in l_x, less headroom or a larger modulus"
    )


def _reach(x: Tensor, w: Tensor) -> tuple[float, float]:
    """Upper bounds of max(|x| |w|) and of max Σ_j |x_ij|, exact if they are integers below 2^53."""
    integers(x)
    if x.dim() < 2 or w.dim() < 2 or x.shape[-1] != w.shape[-2]:
        raise ConfigurationError(
            f"data of shape {tuple(x.shape)} and weights of shape {tuple(w.shape)} cannot be multiplied; "
            "use (B, d) and (d, D)"
        )
    if not x.numel() or not w.numel():
        return 0.0, 0.0
    rows = x.to(torch.float64).abs_()
    columns = w.detach().to(torch.float64).abs_()
    products = float((rows @ columns).max())
    sums = float(rows.sum(-1).max())
    if products < 2.0**53 and w.dtype == torch.int64:
        return products, sums
    # two conversions, a product and n additions, each off by 2^-53 of its result: Higham's γ, twice over
    slack = 1 + 4 * (x.shape[-1] + 4) * 2.0**-53
    return products * slack, sums * slack
