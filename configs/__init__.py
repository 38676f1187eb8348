"""Recipes for data, protocol, policy, faults and trainer, which overlay each other, and studies; and their lookup."""

from .lookup import find_recipe, packaged, packaged_name

__all__ = ["find_recipe", "packaged", "packaged_name"]
