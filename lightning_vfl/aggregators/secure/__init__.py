"""Masked sums: keys, masks, recovery of lost parties, and the messages that carry them."""
