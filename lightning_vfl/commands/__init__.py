"""The commands of ``lightning-vfl``, and the recipes that they read."""
