"""Decoupled training, in which no gradient is sent: DVFL."""

from lightning_vfl.protocols.decoupled.protocol import DecoupledVFL

__all__ = ["DecoupledVFL"]
