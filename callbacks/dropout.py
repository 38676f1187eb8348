"""Party dropout in a training."""

from lightning_vfl.simulation import RandomAbsence

from .injector import FaultInjector


class PartyDropout(FaultInjector):
    """Keeps a proportion of the passive parties away from some rounds; see ``RandomAbsence``.

    Args:
        probability: that a round has dropouts.
        proportion: of the passive parties that are then away, at least one.
        announced: True: they are known to be away and not called. False: they are called and silent.
    """

    def __init__(self, probability: float, proportion: float, announced: bool = True) -> None:
        super().__init__(RandomAbsence(probability, proportion, announced))
