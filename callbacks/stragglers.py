"""Stragglers in a training."""

from lightning_vfl.simulation import Delay, SlowParties

from .injector import FaultInjector


class Stragglers(FaultInjector):
    """Delays everybody's messages at random, those of a share of the parties for longer; see ``SlowParties``.

    The defaults are the delay pattern of FedVS section 6.2. Seconds are virtual: nothing sleeps.

    Args:
        share: of the parties that are slow.
        fast: delays of the others; None: ``Exponential(0.1)``.
        slow: delays of the slow; None: ``Exponential(0.1, step=0.1)``.
        parties: the slow ones, the least slow first, instead of ``share``; None: drawn from the seed.
        delay_of: party number -> delay of its own.
    """

    def __init__(
        self,
        share: float = 0.5,
        fast: Delay | None = None,
        slow: Delay | None = None,
        parties: list[int] | None = None,
        delay_of: dict[int, Delay] | None = None,
    ) -> None:
        super().__init__(SlowParties(share, fast, slow, parties, delay_of))
