"""ResNet18, as a bottom for small images."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from lightning_vfl.checks import one_of, positive
from lightning_vfl.networks.images import NORMS, Layered, image_shape
from lightning_vfl.types import Shape

# Output channels of the four stages in units of `base`; a stage has two blocks; all stages but the first halve sides.
_STAGES = (1, 2, 4, 8)


class ResNet18(Layered):
    """ResNet with 18 weight layers: a convolution, four stages of two residual blocks, and a linear layer.

    Two parts differ from the published network. It begins with a 3 x 3 convolution of stride 1 without pooling, as is
    usual for images of 32 x 32 pixels, which the published first layers would reduce to 8 x 8. The norm after every
    convolution is a group norm of single records, over groups of 16 channels, not a batch norm. An embedding therefore
    depends only on its own record, as privacy figures of a record require. An embedding does not depend on how
    processes split a batch, and there are no running statistics, which copies of a shared bottom would not share.
    ``norm: batch`` gives the published network's norm.

    Shapes: input (B, C, H, W); output (B, width).

    Args:
        shape: (C, H, W) of a party's part of an image.
        width: D, width of the embedding.
        base: channels of the first stage; the other stages have 2, 4 and 8 times as many. 64 is ResNet18; a smaller
            number is a smaller network of the same form.
        norm: the norm after every convolution: ``group`` (also for None) as above; ``batch``, as in the published
            network, which is refused if the privacy of single records is accounted for; or a factory of a norm from
            the number of channels.
        output_activation: makes a last activation, e.g. ``torch.nn.Tanh``; default: none.

    Raises:
        ConfigurationError: if the features are not images.

    Examples:
        >>> import torch
        >>> ResNet18((3, 16, 16), 64, base=2)(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 64])

    References:
        He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
        https://arxiv.org/abs/1512.03385, Table 1, 18 layers, with projections where shapes change (B).
        Wu, He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494.
    """

    def __init__(
        self,
        shape: Shape,
        width: int,
        base: int = 64,
        norm: Literal["batch", "group"] | Callable[[int], nn.Module] | None = None,
        output_activation: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape(shape, self)
        positive("base", base, whole=True)
        if norm is None or isinstance(norm, str):
            norm = NORMS[one_of("norm of ResNet18", norm or "group", NORMS, advice="or give a factory of a norm")]
        layers: list[nn.Module] = [_convolution(channels, base, 3), norm(base), nn.ReLU(inplace=True)]
        depth = base
        for times in _STAGES:
            for stride in (1 if times == 1 else 2, 1):
                layers.append(_Block(depth, times * base, stride, norm))
                depth = times * base
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(depth, width)]
        if output_activation is not None:
            layers.append(output_activation())
        self.layers = nn.Sequential(*layers)


class _Block(nn.Module):
    """A residual block: two convolutions, and a skip connection with a projection if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(inputs, outputs, 3, stride),
            norm(outputs),
            nn.ReLU(inplace=True),
            _convolution(outputs, outputs, 3),
            norm(outputs),
        )
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride != 1:
            self.shortcut.extend([_convolution(inputs, outputs, 1, stride), norm(outputs)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride), rounded up."""
        return relu(self.shortcut(x) + self.residual(x), inplace=True)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)  # the norm has a bias
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
