"""Cascade training with several label holders: CVFL."""

from lightning_vfl.protocols.cascade.protocol import CascadeVFL

__all__ = ["CascadeVFL"]
