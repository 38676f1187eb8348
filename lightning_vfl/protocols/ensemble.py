"""EnsembleVFL: every party trains a model of its own, and the parties vote."""

from lightning_vfl.protocols.heads import HeadsVFL


class EnsembleVFL(HeadsVFL):
    """Every party trains a bottom and a head alone on the records that it holds; no message is sent in training.

    A prediction is the mean of the outputs of the parties that are there: a vote with the outputs as weights, without
    the ties of a majority vote. It is a baseline: it needs the labels at every party.

    Raises:
        ConfigurationError: see ``HeadsVFL``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, section 5 (the baseline Ensemble, there with a majority vote).
    """
