"""Randomised response: every label is replaced by chance, once."""

from math import exp

import torch
from torch import Tensor

from lightning_vfl.downlinks.random_classes import RandomClasses


class RandomizedResponse(RandomClasses):
    r"""Each training label stays with probability e^ε / (e^ε + C - 1), and is otherwise one of the other classes.

    The label of a record is replaced once for the whole training; the server's networks see the replaced labels alone.

    Shapes: labels (B,) integers.
    Units: ε in nats.
    Guarantee: ε-differential privacy of each training label, with δ = 0, for everything that follows: gradients of all
        rounds, weights of the bottoms AND of the top, and predictions. More rounds cost nothing.
    Not guaranteed: privacy of validation and test labels, whose metrics are exact, or of early stopping by them. With
        ``draws: seeded``, anyone who knows the seed knows which labels are true.

    Args:
        epsilon: ε > 0.
        draws: ``system``: a secret key from the operating system, which the server's checkpoints keep. ``seeded``:
            reproducible.

    Raises:
        ConfigurationError: for an ε that is not above 0, and for labels that are not classes.

    Examples:
        >>> downlink = RandomizedResponse(epsilon=1.0)
        >>> downlink.prepare(2, outputs=1)
        >>> f"{downlink.kept:.3f}"
        '0.731'

    References:
        Warner, "Randomized Response: A Survey Technique for Eliminating Evasive Answer Bias", JASA 60, 1965.
        Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential Privacy", NeurIPS 2021.
    """

    @property
    def kept(self) -> float:
        """The probability that a label stays."""
        return 1 / (1 + (self.classes - 1) * exp(-self.epsilon))

    @property
    def numbers(self) -> int:
        return 2

    def drawn(self, labels: Tensor, uniform: Tensor) -> Tensor:
        shift = 1 + (uniform[:, 1] * (self.classes - 1)).long()  # to one of the other classes, each alike
        other = (labels.long() + shift) % self.classes
        return torch.where(uniform[:, 0] < self.kept, labels.long(), other).to(labels.dtype)
