"""VGG13, as a bottom for images, or as a top that treats the aggregate as an image."""

from collections.abc import Sequence
from math import isqrt
from typing import Literal

from torch import nn

from lightning_vfl.checks import one_of, positive
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks._linear import stated
from lightning_vfl.networks.images import NORMS, Layered, image_shape
from lightning_vfl.types import Shape

# Configuration B: five blocks of two convolutions and a pooling; channels of each block in units of `base`.
_BLOCKS = (1, 2, 4, 8, 8)


class VGG13(Layered):
    """VGG with 13 weight layers: ten 3 x 3 convolutions in five pooled blocks, then three linear layers.

    As a bottom, it takes images. As a top, it reshapes the aggregate to a square image of ``channels`` channels: FedVS
    uses a VGG13 on the mean of the embeddings of FashionMNIST, without stating the width; 784 makes the aggregate an
    image of the size of the data.

    Four parts differ from the published network. A side of one pixel is not pooled further, so that small images and
    thin strips can pass. The two hidden linear layers have 512 units instead of 4,096, which are for the 1,000 classes
    of ImageNet (``hidden=(4096, 4096)`` gives these). There is no dropout after the hidden layers. Weights are
    initialised as in He et al. (2015), without which ten ReLU layers hardly learn, and not from a smaller trained
    network.

    Shapes: input (B, C, H, W) as a bottom, (B, channels · side²) as a top; output (B, outputs).

    Args:
        inputs: (C, H, W) of a party's part of an image (as a bottom) or width of the aggregate (as a top).
        outputs: width of the embedding (as a bottom) or of the prediction (as a top); if a top leaves it open, the
            protocol sets the number that the task needs.
        channels: channels of the image that a top makes of the aggregate; a bottom has the channels of its ``inputs``.
        base: channels of the first block; the other blocks have 2, 4, 8 and 8 times as many. 64 is VGG13; a smaller
            number is a smaller network of the same form.
        batch_norm: a batch norm after every convolution, as ``norm: batch``.
        hidden: widths of the hidden linear layers.
        norm: the norm after every convolution. ``batch``: over the batch; such a bottom is refused if the privacy of
            single records is accounted for. ``group``: of single records, over groups of 16 channels.

    Raises:
        ConfigurationError: if the features are not images, or the aggregate cannot be reshaped to a square image.

    Examples:
        >>> import torch
        >>> VGG13((1, 7, 28), 64, base=2)(torch.zeros(2, 1, 7, 28)).shape
        torch.Size([2, 64])
        >>> VGG13(3 * 8 * 8, 10, channels=3, base=2)(torch.zeros(2, 192)).shape
        torch.Size([2, 10])

    References:
        Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
        https://arxiv.org/abs/1409.1556, Table 1, configuration B.
        He, Zhang, Ren, Sun, "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852, section 2.2.
        Li, Yao, Liu, "FedVS", ICML 2023, section 3 and Table 1.
    """

    def __init__(
        self,
        inputs: Shape | int,
        outputs: int | None = None,
        channels: int = 1,
        base: int = 64,
        batch_norm: bool = False,
        hidden: Sequence[int] = (512, 512),
        norm: Literal["batch", "group"] | None = None,
    ) -> None:
        super().__init__()
        one_of("norm of VGG13", norm, (*NORMS, None))
        if batch_norm:
            one_of("norm of VGG13", norm, ("batch", None), advice="leave batch_norm out")
        make_norm = NORMS.get("batch" if batch_norm else norm or "")
        positive("base", base, whole=True)
        layers: list[nn.Module] = []
        if isinstance(inputs, int):
            shape = _square(inputs, channels)
            layers.append(nn.Unflatten(1, shape))
        else:
            shape = image_shape(inputs, self)
        depth, height, length = shape
        for times in _BLOCKS:
            for _ in range(2):
                layers.append(nn.Conv2d(depth, times * base, kernel_size=3, padding=1))
                depth = times * base
                if make_norm:
                    layers.append(make_norm(depth))
                layers.append(nn.ReLU(inplace=True))
            window = (min(2, height), min(2, length))
            layers.append(nn.MaxPool2d(window))
            height, length = height // window[0], length // window[1]
        layers.append(nn.Flatten())
        width = depth * height * length
        for wide in hidden:
            layers += [nn.Linear(width, wide), nn.ReLU(inplace=True)]
            width = wide
        last = nn.Linear(width, stated(outputs, self))
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # both have one
        self.layers = nn.Sequential(*layers, last)


def _square(width: int, channels: int) -> tuple[int, int, int]:
    """The shape of the image that a top makes of the aggregate."""
    positive("channels", channels, whole=True)
    side = isqrt(width // channels)
    if width < 1 or channels * side**2 != width:
        fitting = " or ".join(str(channels * near**2) for near in (side, side + 1) if near)
        raise ConfigurationError(
            f"VGG13 cannot reshape an aggregate of width {width} to a square image of channels = {channels}; use width "
            f"{fitting} for the aggregate (with Concat: the sum over all parties), or other channels"
        )
    return channels, side, side
