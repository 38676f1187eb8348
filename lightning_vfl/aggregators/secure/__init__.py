"""Masked sums: keys, masks, recovery of lost parties, and the messages that carry them."""

from lightning_vfl.aggregators.secure.codec import Codec
from lightning_vfl.aggregators.secure.integer_sum import IntegerSum
from lightning_vfl.aggregators.secure.layer import SecureLayer

__all__ = ["Codec", "IntegerSum", "SecureLayer"]
