"""Laplace noise on one-hot labels, and the probabilities of the classes given the noisy label."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lightning_vfl.downlinks.random_classes import RandomClasses


class LaplaceLabels(RandomClasses):
    r"""Laplace noise of scale 2/ε on each number of the one-hot label; the loss sees the probabilities of the classes.

    .. math:: o = e_y + \mathrm{Lap}(2 / \epsilon)^C, \quad
        P(c \mid o) \propto \exp(-\epsilon / 2 \cdot \|o - e_c\|_1),

    with equal prior probabilities. The label of a record is drawn once for the whole training.

    Shapes: labels (B,) integers; what the loss sees is (B, C); with one output of the top it is (B,), the
        probability of class 1.
    Units: ε in nats.
    Guarantee: ε-differential privacy of each training label, with δ = 0, for everything that follows, as
        ``RandomizedResponse``. The probabilities are computed from the noisy label alone.
    Not guaranteed: privacy of validation and test labels. Noise in floating point has gaps (Mironov 2012). With
        ``draws: seeded``, anyone who knows the seed knows the noise.

    Args:
        epsilon: ε > 0.
        draws: as in ``RandomizedResponse``.

    Raises:
        ConfigurationError: for an ε that is not above 0, and for labels that are not classes.

    Examples:
        >>> downlink = LaplaceLabels(epsilon=50.0, draws="seeded")
        >>> downlink.prepare(3, outputs=3)
        >>> downlink.targets(torch.tensor([2, 0]), torch.tensor([4, 5]), seed=0).argmax(1).tolist()
        [2, 0]

    References:
        Malek, Mironov, Prasad, Shilov, Tramèr, "Antipodes of Label Differential Privacy: PATE and ALIBI", NeurIPS 2021,
        section 3 (ALIBI).
    """

    @property
    def numbers(self) -> int:
        return self.classes

    def drawn(self, labels: Tensor, uniform: Tensor) -> Tensor:
        centred = uniform - 0.5
        noise = -(2 / self.epsilon) * centred.sign() * torch.log1p(-2 * centred.abs())
        noisy = one_hot(labels.long(), self.classes) + noise
        corners = torch.eye(self.classes, dtype=noisy.dtype, device=noisy.device)
        distances = (noisy[:, None] - corners).abs().sum(2)
        probabilities = (-self.epsilon / 2 * distances).softmax(1).float()
        return probabilities[:, 1] if self.outputs == 1 else probabilities
