"""Schedules: the order of batches and events of a training."""
