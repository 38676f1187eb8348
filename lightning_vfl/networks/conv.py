"""A small convolutional bottom for images and strips of images."""

from collections.abc import Callable, Sequence

from torch import nn

from lightning_vfl.networks.images import Layered, image_shape
from lightning_vfl.types import Shape


class ConvNet(Layered):
    """Blocks of 3 x 3 convolution, ReLU and 2 x 2 pooling, then one linear layer.

    A side of one pixel is not pooled further, so that thin strips (1 x 28) can pass all blocks.

    Shapes: input (B, C, H, W); output (B, width).

    Args:
        shape: (C, H, W) of a party's part of an image.
        width: D, width of the embedding.
        channels: output channels of each block.
        output_activation: makes a last activation, e.g. ``torch.nn.Tanh``; default: none.

    Raises:
        ConfigurationError: if the features are not images.

    Examples:
        >>> import torch
        >>> ConvNet((1, 7, 28), 64)(torch.zeros(2, 1, 7, 28)).shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        shape: Shape,
        width: int,
        channels: Sequence[int] = (16, 32),
        output_activation: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        depth, height, length = image_shape(shape, self)
        layers: list[nn.Module] = []
        for wide in channels:
            layers += [nn.Conv2d(depth, wide, kernel_size=3, padding=1), nn.ReLU()]
            window = (min(2, height), min(2, length))
            layers.append(nn.MaxPool2d(window))
            depth = wide
            height = height // window[0]
            length = length // window[1]
        layers += [nn.Flatten(), nn.Linear(depth * height * length, width)]
        if output_activation is not None:
            layers.append(output_activation())
        self.layers = nn.Sequential(*layers)
