"""The setting ``preprocess``: which steps make numbers of each column of each party."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError, nearest

from .auto_steps import choose_steps
from .category_steps import OneHotCategories
from .column_encoder import ColumnEncoder, Unseen
from .column_steps import Reader, Step
from .party_tables import by_party, listed, refuse_unknown_parties
from .step_chain import LeftOut, fit_chain, plain_numbers, reads_text
from .step_settings import AUTO, Steps, read_steps
from .steps_table import TableRow
from .weight_of_evidence import WeightOfEvidence
from .written_numbers import DECIMALS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from .party_tables import PartyTable


@dataclass(frozen=True)
class Preprocess:
    """The steps that users have asked for; a column without steps gets those that ``choose_steps`` chooses, or numbers.

    Args:
        columns: party -> column -> its steps.
        everywhere: column -> its steps in every party that has it and no steps of its own for it.
        decimals: party -> the decimal mark of its numbers; other parties: found in each column.
        auto: whether steps are chosen for columns without steps; else these columns are numbers already.
    """

    columns: Mapping[str, Mapping[str, Steps]]
    everywhere: Mapping[str, Steps]
    decimals: Mapping[str, str] = field(default_factory=dict)
    auto: bool = True

    @classmethod
    def of(
        cls, setting: object, tables: Iterable[str], categorical: Iterable[str] = (), unseen: Unseen = Unseen.IGNORE
    ) -> "Preprocess":
        """The steps of a recipe.

        Args:
            setting: ``auto``, or party -> ``auto`` or column -> steps, see ``read_steps``; None: all other columns are
                numbers.
            tables: the parties.
            categorical: columns to encode one-hot in every party that has no steps for them.
            unseen: what these do with a category that no training row has.

        Raises:
            ConfigurationError: for unknown parties, and steps that cannot be read.
        """
        everywhere: dict[str, Steps] = {name: (OneHotCategories(unseen),) for name in categorical}
        if not setting or setting == AUTO:
            return cls({}, everywhere, auto=setting == AUTO)
        if not isinstance(setting, Mapping):
            raise ConfigurationError(
                f"preprocess must be auto, or party: {{column: steps}}; got {setting!r}; see the page on tables"
            )
        refuse_unknown_parties("preprocess", setting, list(tables))
        columns: dict[str, dict[str, Steps]] = {}
        for party, own in setting.items():
            if own == AUTO:
                continue
            if not isinstance(own, Mapping):
                raise ConfigurationError(
                    f"preprocess of party '{party}' must be auto, or column: steps; got {own!r}; name its columns"
                )
            named = {str(name): steps for name, steps in own.items() if steps != AUTO}
            columns[party] = {name: read_steps(s, f"column '{name}' of party '{party}'") for name, s in named.items()}
        return cls(columns, everywhere)

    def with_decimals(self, setting: str | Mapping[str, str], tables: Iterable[str]) -> "Preprocess":
        """These steps, for numbers with this decimal mark, of all parties or party -> mark.

        Raises:
            ConfigurationError: for other marks and unknown parties.
        """
        by_name = by_party("decimal", setting, tables, "")
        marks = by_name if isinstance(setting, str) else {party: by_name[party] for party in setting}
        for party, mark in marks.items():
            if mark not in DECIMALS:
                raise ConfigurationError(f"decimal must be '.' or ','; got '{mark}' for party '{party}'")
        return replace(self, decimals=marks)

    def texts(self, party: str) -> list[str]:
        """The columns of categories and dates, which are read as text so that 007 does not become 7."""
        own = {**self.everywhere, **self.columns.get(party, {})}
        return [name for name, steps in own.items() if any(_of_texts(step) for step in steps or ())]

    @property
    def counted(self) -> list[tuple[str, str]]:
        """The parties and columns whose steps need counts of the labels."""
        return [
            (party, name)
            for party, own in self.columns.items()
            for name, steps in own.items()
            if any(isinstance(step, WeightOfEvidence) for step in steps or ())
        ]

    def check_columns(self, tables: "Mapping[str, PartyTable]") -> None:
        """Accept tables that have all columns with steps.

        Raises:
            ConfigurationError: for the first column that is not there.
        """
        with_column = {str(name) for table in tables.values() for name in table}
        if unknown := [name for name in self.everywhere if name not in with_column]:
            raise ConfigurationError(
                f"categorical names column '{unknown[0]}', which no party has; they have {listed(sorted(with_column))}"
            )
        for party, own in self.columns.items():
            there = [str(name) for name in tables[party]]
            for name in own:
                if name not in there:
                    raise ConfigurationError(
                        f"preprocess names column '{name}', which party '{party}' does not have; {nearest(name, there)}"
                    )

    def of_party(self, party: str | None, columns: Collection[str]) -> "Preprocess":
        """The steps for these columns of a party, in a process that has no other table."""
        everywhere = {name: steps for name, steps in self.everywhere.items() if name in columns}
        return replace(
            self, columns={name: own for name, own in self.columns.items() if name == party}, everywhere=everywhere
        )

    def fit(
        self,
        tables: "Mapping[str, PartyTable]",
        trained: "Mapping[str, NDArray[Any]]",
        ranges: bool = False,
        counts: "Callable[..., NDArray[Any]] | None" = None,
    ) -> tuple[tuple[ColumnEncoder, ...], list[TableRow]]:
        """The encoders of the columns of a group of tables, and what is told about them.

        Args:
            tables: party -> its table; all have the same columns in the same order.
            trained: party -> (N,) bool, which rows are training records.
            ranges: whether to keep the ends of numbers and dates, and the share of missing values.
            counts: counts the labels of training rows, for parties, a column, bins and their number; None: there are
                no labels here.

        Raises:
            ConfigurationError: for steps that differ between tables of the group, and cells that a step cannot use.
        """
        own = self._of_group(tables)
        party = "+".join(tables)
        encoders: list[ColumnEncoder] = []
        steps: Sequence[Step] | None
        rows = []
        for name in map(str, next(iter(tables.values()))):
            if not self.auto and name not in own:
                encoders.append(plain_numbers(name))
                continue
            columns = {member: table[name] for member, table in tables.items()}
            values = _one_column([column[trained[member]] for member, column in columns.items()])
            if name in own:
                kind = "as set"
                steps = own[name]
                note = ""
            else:
                other_rows = _one_column([column[~trained[member]] for member, column in columns.items()])
                chosen = choose_steps(values, self.decimals.get(next(iter(tables)), ""), party, other_rows)
                kind = str(chosen.kind)
                steps = chosen.steps
                note = chosen.note
            missing = float(values.isna().mean())
            if steps is None:
                encoders.append(LeftOut(name))
                what = note or "left out"
            else:
                of_column = None if counts is None else partial(counts, tuple(tables), name)
                chain = fit_chain(steps, values, party, of_column)
                encoders.append(chain if ranges else replace(chain, seen=(), missing=None))
                missing = chain.missing or 0.0
                what = f"{chain.describe()}{'; ' if note else ''}{note}"
            rows.append(TableRow(party, name, kind, missing, what))
        unused = [row for row in rows if row.column not in own]
        if unused and not any(encoder.names for encoder in encoders):
            told = "; ".join(f"{row.column}: {row.what}" for row in unused[:5])
            raise ConfigurationError(
                f"every column of party '{party}' is left out ({told}); give steps for one of them, or leave the table "
                "out"
            )
        return tuple(encoders), rows

    def _of_group(self, tables: Iterable[str]) -> dict[str, Steps]:
        """Column -> its steps, as the settings of all tables of the group say."""
        merged: dict[str, Steps] = {}
        for party in tables:
            for name, steps in self.columns.get(party, {}).items():
                if name in merged and merged[name] != steps:
                    raise ConfigurationError(
                        f"preprocess has other steps for column '{name}' of party '{party}' than for another table of "
                        "its group; give the tables of a group the same steps"
                    )
                merged[name] = steps
        return {**self.everywhere, **merged}


def _one_column(parts: "Sequence[pd.Series[Any]]") -> "pd.Series[Any]":
    """The cells of a column of all tables of a group, one table after the other."""
    import pandas as pd  # 0.5 s, where it is used

    return parts[0] if len(parts) == 1 else pd.concat(parts)


def taken_from(encoders: Mapping[str, Iterable[ColumnEncoder]]) -> str:
    """What encoders have taken from the values of the training rows, with the columns; empty: nothing."""
    found: dict[str, list[str]] = {}
    for party, own in encoders.items():
        for chain in own:
            for what in chain.taken():
                found.setdefault(what, []).append(f"{party}.{chain.column}")
    return ", ".join(f"{what} ({listed(columns)})" for what, columns in found.items())


def _of_texts(step: object) -> bool:
    """Whether the step reads texts."""
    return isinstance(step, Reader) and reads_text(step)
