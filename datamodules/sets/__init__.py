"""Data sets, and forms that several of them share."""
