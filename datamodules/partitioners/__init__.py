"""Partitioners: which party holds which columns, which records and which labels."""
