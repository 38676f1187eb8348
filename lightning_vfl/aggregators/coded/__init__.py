"""Lagrange-coded computing: shares, coded rows, and the messages that carry them."""
