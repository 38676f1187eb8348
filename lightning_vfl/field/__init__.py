"""Exact arithmetic modulo a prime, and codes over it."""

from lightning_vfl.field.code import LagrangeCode
from lightning_vfl.field.fixed_point import FixedPoint, auto_weight_bits
from lightning_vfl.field.lagrange import interpolate, lagrange_matrix
from lightning_vfl.field.limbs import Limbs, Plan, plan
from lightning_vfl.field.prime import PrimeField
from lightning_vfl.field.reed_solomon import Decoded, DecodingError, decode

__all__ = [
    "Decoded",
    "DecodingError",
    "FixedPoint",
    "LagrangeCode",
    "Limbs",
    "Plan",
    "PrimeField",
    "auto_weight_bits",
    "decode",
    "interpolate",
    "lagrange_matrix",
    "plan",
]
