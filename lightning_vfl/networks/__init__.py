"""Bottom and top networks. First arguments: of bottoms (per-record shape, embedding width), of tops the input width."""

from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.conv import ConvNet
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.networks.polynomial import PolynomialNetwork
from lightning_vfl.networks.resnet import ResNet18
from lightning_vfl.networks.vgg import VGG13
from lightning_vfl.networks.words import WordMean

__all__ = ["MLP", "VGG13", "ConvNet", "Linear", "PartyBank", "PolynomialNetwork", "ResNet18", "WordMean"]
