"""The option ``--stand_in`` of commands that do without some parties."""

from typing import TYPE_CHECKING

from lightning_vfl.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from lightning_vfl.absence import AbsentStandIn

STAND_INS = ("Exclude", "Zeros", "MeanEmbedding", "Regressed")


def add_stand_in(parser: "ArgumentParser") -> None:
    """Add the option."""
    words = ", ".join(STAND_INS)
    parser.add_argument(
        "--stand_in", type=str, default=STAND_INS[0], help=f"what replaces absent parties with --absent: {words}"
    )


def stand_in_named(name: str) -> "AbsentStandIn":
    """The stand-in of this name.

    Raises:
        ConfigurationError: for another name.
    """
    from lightning_vfl import absence

    if name not in STAND_INS:
        raise ConfigurationError(f"--stand_in: there is no '{name}'; {nearest(name, STAND_INS)}")
    made: AbsentStandIn = getattr(absence, name)()
    return made
