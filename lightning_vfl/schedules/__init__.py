"""The order of batches and events: aligned batches, arrivals, periods, and each party's own order."""
