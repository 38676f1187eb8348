"""A training round: what is going to happen in it, and the messages that carry it out."""
