"""What convolutional networks share: their form, the check of their input, and a norm of single records."""

from collections.abc import Callable
from math import gcd

from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Shape


class Layered(nn.Module):
    """A network that applies its layers one after the other."""

    layers: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        """The output of the last layer."""
        out: Tensor = self.layers(x)
        return out


def image_shape(shape: Shape, network: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of a party's features.

    Raises:
        ConfigurationError: if the features are not images.
    """
    if len(shape) != 3:
        raise ConfigurationError(
            f"{type(network).__name__} needs images (channels, height, width) but a party's features have shape "
            f"{tuple(shape)}; choose an image partitioner (RowStrips, Grid) or an MLP bottom"
        )
    channels, height, width = shape
    return channels, height, width


def group_norm(channels: int) -> nn.GroupNorm:
    """A norm over groups of 16 channels, or of more channels if 16 does not divide their number.

    Guarantee: the output for a record depends only on this record.

    Examples:
        >>> group_norm(64).num_groups, group_norm(24).num_groups
        (4, 1)

    References:
        Wu, He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494.
    """
    return nn.GroupNorm(gcd(channels, max(1, channels // 16)), channels)


NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": group_norm}
