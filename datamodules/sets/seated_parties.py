"""The parties of a federation and the tables of a recipe: whether they agree."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Seat

from ..records.party_tables import kind_of, listed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def check_parties(data: Any, seat: Seat, names: Sequence[str], labels_at: int | None, copies: bool) -> None:
    """Accept a federation whose parties are those of the recipe, and settings that need one table at a time.

    Raises:
        ConfigurationError: for the first setting, party or table that is refused.
    """
    if data.groups:
        raise ConfigurationError("groups of tables are simulated only, not between processes yet; leave groups out")
    if repr(data.partitioner) != "Views()":
        raise ConfigurationError(
            f"{data.partitioner!r} divides the columns of all tables, which no process has; leave partitioner out"
        )
    for party in (seat.party, labels_at):
        if party is not None and not 0 <= party < len(names):
            raise ConfigurationError(f"there is no party {party} in the federation of {', '.join(names)}")
    if copies and (lacking := [name for name in names if name not in (data.label_party, *data.label_copies)]):
        raise ConfigurationError(
            f"party '{lacking[0]}' needs the labels in its table for this protocol, and its name in label_copies"
        )
    holder = None if labels_at is None else names[labels_at]
    for party, column in data.counted:
        if party != holder:
            raise ConfigurationError(
                f"woe of column '{column}' of party '{party}' needs the labels, which another process has; use "
                "another step in a federation"
            )
    if unknown := [name for name in names if name not in data.tables]:
        raise ConfigurationError(
            f"party '{unknown[0]}' of the federation has no table; tables names {', '.join(data.tables)}"
        )
    if others := [name for name in data.tables if name not in names and name != data.label_party]:
        raise ConfigurationError(f"tables names '{others[0]}', which is not a party of the federation; leave it out")
    if (wanted := tuple(name for name in data.tables if name in names)) != tuple(names):
        raise ConfigurationError(
            f"the parties of the federation are {', '.join(names)}, tables names {', '.join(wanted)}; write both in "
            "the same order, each party once"
        )
    if labels_at is not None and names[labels_at] != data.label_party:
        raise ConfigurationError(
            f"the labels are at party '{names[labels_at]}', but label_party is '{data.label_party}'; use one of them "
            "for both"
        )


def refuse_features(label_party: str, features: Collection[str]) -> None:
    """Accept a table of labels that is no party of the federation.

    Raises:
        ConfigurationError: if it has features.
    """
    if features:
        raise ConfigurationError(
            f"the table of label_party '{label_party}' has the further columns {listed(features)}, but it is no party "
            "of the federation; leave them out, or add the party"
        )


def refuse_unlike(ids: "Mapping[str, NDArray[np.generic]]") -> None:
    """Accept lists of ids of one kind, in which every id is told once.

    Raises:
        ConfigurationError: for the first party with another list.
    """
    import pandas as pd

    tables = {name: pd.Index(own) for name, own in ids.items()}
    if not tables:
        raise ConfigurationError("no process has told its ids; give those of the parties")
    first = next(iter(tables))
    for name, own in tables.items():
        if not len(own) or own.has_duplicates:
            raise ConfigurationError(f"party '{name}' has told {'an id twice' if len(own) else 'no ids'}; correct it")
        if kind_of(own) != (kind := kind_of(tables[first])):
            raise ConfigurationError(
                f"ids of party '{name}' are {kind_of(own)} but those of party '{first}' are {kind}; write them in the "
                "same form in all files"
            )
