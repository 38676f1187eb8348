"""Groups of parties that share a bottom: what they send of it, with which noise, and when that is too much."""
