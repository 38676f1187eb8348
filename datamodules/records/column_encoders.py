"""Encode the columns of a party's table as numbers, with what was fitted to its training rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError

from .column_encoder import ColumnEncoder as ColumnEncoder
from .modal_columns import modal_column
from .party_tables import listed
from .step_chain import LeftOut, chain_of

if TYPE_CHECKING:
    from .party_tables import PartyTable


def encoder_of(state: Mapping[str, Any]) -> ColumnEncoder:
    """The encoder of a state."""
    if state["kind"] == "chain":
        return chain_of(state)
    if state["kind"] == "left_out":
        return LeftOut(state["column"])
    if state["kind"] in ("pictures", "text"):
        return modal_column(state)
    raise ConfigurationError(
        f"the checkpoint has columns of the unknown kind {state['kind']!r}; train again with this version"
    )


def check_columns(table: "PartyTable", encoders: Sequence[ColumnEncoder], party: str) -> None:
    """Accept a table with the columns that the encoders use, and no others.

    Raises:
        ConfigurationError: for missing and unknown columns.
    """
    wanted, given = [encoder.column for encoder in encoders], [str(name) for name in table.columns]
    missing = [e.column for e in encoders if e.names and e.column not in given]
    extra = [name for name in given if name not in wanted]
    if missing or extra:
        told = [f"without {listed(missing)}"] * bool(missing) + [f"with the further {listed(extra)}"] * bool(extra)
        raise ConfigurationError(
            f"the table of party '{party}' is {' and '.join(told)}, unlike the table that the model was trained on, "
            f"which has {listed(wanted)}; give it the same columns"
        )
