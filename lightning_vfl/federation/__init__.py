"""Parties as processes on hosts of their own, with one recipe: frames, the charter of a federation, identities."""
