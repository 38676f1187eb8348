"""Columns from uploads that change between epochs by gradients that the server itself has sent."""
