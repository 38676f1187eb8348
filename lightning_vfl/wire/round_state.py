"""The state that parties keep between training rounds, as one round reads and changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class _Change:
    """A new value of a state, or of these rows of it."""

    party: int
    name: str
    rows: Tensor | None
    value: Tensor


@dataclass(frozen=True)
class RoundState:
    """The state of the hosted parties in one round.

    Guarantee: a change takes effect when the round is over, and only if the party's upload is in the aggregate. The
        state of every other party keeps its bits.

    Args:
        tables: for each hosted party, tensors by name.
    """

    tables: Mapping[int, Mapping[str, Tensor]] = field(repr=False)
    _changes: list[_Change] = field(default_factory=list, init=False, repr=False)

    def read(self, party: int, name: str, rows: Tensor | None = None) -> Tensor:
        """A copy of a party's state at the beginning of the round; ``rows``: of these rows alone."""
        table = self.tables[party][name]
        return table.clone() if rows is None else table[rows.to(table.device)]

    def write(self, party: int, name: str, value: Tensor, rows: Tensor | None = None) -> None:
        """Change a party's state after the round; ``rows``: these rows alone, each of them once."""
        table = self.tables[party][name]
        place = table.shape if rows is None else (len(rows), *table.shape[1:])
        if value.shape != place:
            raise ValueError(f"the state '{name}' of party {party} has the shape {tuple(place)}; got {(*value.shape,)}")
        self._changes.append(_Change(party, name, rows, value.detach().to(table)))

    def settle(self, included: Tensor) -> None:
        """Make the changes of the included parties, (M,) bool; forget those of the others."""
        for change in self._changes:
            if included[change.party]:
                table = self.tables[change.party][change.name]
                table[... if change.rows is None else change.rows.to(table.device)] = change.value
        self._changes.clear()
