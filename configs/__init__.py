"""Recipes: data/, protocol/ and trainer/ parts that overlay. This file only makes the folder a package."""
