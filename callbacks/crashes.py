"""Crashes in a training."""

from lightning_vfl.simulation import CrashChain

from .injector import FaultInjector


class Crashes(FaultInjector):
    """Lets guests, hosts or connections go down and come back at random; see ``CrashChain``.

    For crashes of several kinds, give the trainer one for each.

    Args:
        what: guests (the parties), hosts, or the connections between them.
        down: probability at every request that one who is alive dies.
        rejoin: probability at every request that one who is dead comes back.
    """

    def __init__(self, what: str, down: float, rejoin: float) -> None:
        super().__init__(CrashChain(what, down, rejoin))
