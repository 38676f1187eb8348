"""Recipes for data, protocol, policy, faults and trainer, which overlay each other, and studies; and their lookup."""

from .keys import RepeatedKey, read_yaml, refuse_repeated_keys
from .lookup import find_recipe, packaged, packaged_name

__all__ = ["RepeatedKey", "find_recipe", "packaged", "packaged_name", "read_yaml", "refuse_repeated_keys"]
