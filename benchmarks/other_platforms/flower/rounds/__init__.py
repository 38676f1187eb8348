"""Rounds of a split model over Flower's Message API: the server sends gradients, the clients answer with embeddings."""
