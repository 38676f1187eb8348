"""Secrets: what must not be a function of a seed."""

from lightning_vfl.crypto.keystream import Keystream, Secrets, SeededSecrets

__all__ = ["Keystream", "Secrets", "SeededSecrets"]
