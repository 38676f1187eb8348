"""Attacks on the toolkit's own protection. ``python -m tests.attacks`` runs them and prints the table of results."""
