"""Groups of tables with the same columns for different records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from .column_tables import ColumnTable
    from .party_tables import PartyTable


def check_names(
    groups: Iterable[Sequence[str]], tables: Iterable[str], label_party: str
) -> tuple[tuple[str, ...], ...]:
    """The groups of at least two tables, each in the order of the tables.

    Raises:
        ConfigurationError: for unknown tables, for repeated tables and for the label party's table in a group.
    """
    tables = list(tables)
    groups = list(groups)
    for group in groups:
        if isinstance(group, str):
            raise ConfigurationError(f"groups must be a list of lists of table names; got '{group}' in place of a list")
        if not group:
            raise ConfigurationError("groups has an empty group; name its tables or leave it out")
        if len(group) > 1 and label_party in group:
            raise ConfigurationError(
                f"groups has label_party '{label_party}' in a group with other tables; take it out of the group"
            )
    names = [name for group in groups for name in group]
    for name in names:
        if name not in tables:
            raise ConfigurationError(f"groups names the unknown table '{name}'; use {', '.join(tables)}")
        if names.count(name) > 1:
            raise ConfigurationError(f"groups names table '{name}' {names.count(name)} times; name it once")
    return tuple(tuple(sorted(group, key=tables.index)) for group in groups if len(group) > 1)


def add_singles(groups: Iterable[tuple[str, ...]], tables: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """These groups and every other table as a group of its own, in the order of their first tables.

    Examples:
        >>> add_singles([("b", "d")], ["a", "b", "c", "d"])
        (('a',), ('b', 'd'), ('c',))
    """
    group_of = {table: group for group in groups for table in group}
    return tuple(dict.fromkeys(group_of.get(table, (table,)) for table in tables))


def align_columns(tables: "Mapping[str, ColumnTable]", groups: Iterable[tuple[str, ...]]) -> None:
    """Put the columns of the tables of every group into the order of its first table.

    Raises:
        ConfigurationError: if tables of a group have different columns.
    """
    for first, *others in groups:
        columns = tables[first].columns
        for other in others:
            only = {
                first: [str(name) for name in columns if name not in tables[other]],
                other: [str(name) for name in tables[other] if name not in columns],
            }
            if told := [f"only '{party}' has {', '.join(names)}" for party, names in only.items() if names]:
                raise ConfigurationError(
                    f"tables '{first}' and '{other}' of a group have different columns ({'; '.join(told)}); give the "
                    "tables of a group the same columns"
                )
            tables[other].columns = list(columns)


def refuse_shared_ids(tables: "Mapping[str, PartyTable]", groups: Iterable[tuple[str, ...]]) -> None:
    """Accept tables whose ids (their index) are in one table of a group only.

    Raises:
        ConfigurationError: with the number of ids in several tables, and the first.
    """
    for group in groups:
        ids = tables[group[0]].index.append([tables[party].index for party in group[1:]])
        shared = ids[ids.duplicated()].unique().sort_values()
        if len(shared):
            holders = " and ".join(f"'{party}'" for party in group if shared[0] in tables[party].index)
            raise ConfigurationError(
                f"{len(shared)} ids are in several tables of the group {', '.join(map(repr, group))}, first "
                f"{shared[0]} in {holders}; tables of a group hold different records, so leave each in one of them"
            )
