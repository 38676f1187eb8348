"""A training round: its plan, and the exchange of its messages."""
