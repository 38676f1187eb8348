"""Decoupled training without messages of gradients: DVFL."""

from lightning_vfl.protocols.decoupled.protocol import DecoupledVFL

__all__ = ["DecoupledVFL"]
