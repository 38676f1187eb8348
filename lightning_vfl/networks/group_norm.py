"""A norm of single records, which replaces batch norm in convolutional bottoms."""

from math import gcd

from torch import nn

__all__ = ["group_norm"]


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
