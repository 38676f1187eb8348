"""Parties by the names that the data give them."""

from collections.abc import Sequence

from lightning_vfl.errors import ConfigurationError, nearest


def party_number(name: str, names: Sequence[str]) -> int:
    """The number of the party of this name; a number is returned as it is, whatever the names are.

    Args:
        name: a name or a number.
        names: the names of the parties, in the order of their numbers.

    Raises:
        ConfigurationError: for a name that no party has.

    Examples:
        >>> party_number("shop", ["bank", "shop"]), party_number("3", ["bank", "shop"])
        (1, 3)
    """
    if name.isdecimal():
        return int(name)
    if name not in names:
        raise ConfigurationError(f"there is no party '{name}'; {nearest(name, names)}")
    return list(names).index(name)


def shown(party: int, names: Sequence[str]) -> str:
    """The party for a reader: its name, or ``party 3`` if the data have none.

    Examples:
        >>> shown(1, ["bank", "shop"]), shown(1, ["0", "1"])
        ('shop', 'party 1')
    """
    return f"party {party}" if names[party].isdecimal() else names[party]
