"""Cascade training with labels that several parties hold: CVFL."""

from lightning_vfl.protocols.cascade.protocol import CascadeVFL

__all__ = ["CascadeVFL"]
