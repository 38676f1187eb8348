"""Groups of parties that share a bottom: their model updates, the noise on these, and checks against inversion."""
