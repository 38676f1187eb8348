"""Fit the scaling of all parties' columns, and note it party by party."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import FittedParty

from .layout import Layout, Part
from .normalise import Normaliser


def fit_scaling(
    normaliser: Normaliser, train: Tensor, present: Tensor | None, widths: Sequence[int], names: Sequence[str] = ()
) -> tuple[Tensor, Tensor]:
    """Shift and scale, each (Σ F_m,), of the columns of all parties.

    Args:
        normaliser: how each party scales its own columns.
        train: (N, Σ F_m), the columns of the training records, side by side.
        present: (N, M) bool, whether party m holds record n; None: every party holds every record.
        widths: F_m, how many of the columns belong to party m.
        names: the names of the columns; empty: they have none.

    Raises:
        ConfigurationError: for a party that holds none of the records.
    """
    fitted = []
    begin = 0
    for party, own in enumerate(torch.split(train, list(widths), dim=1)):
        # a copy, as the party has alone: a sum over some columns of a wider array can differ in the last bit
        rows = own.contiguous() if present is None else own[present[:, party]]
        if not len(rows):
            raise without_records(party, len(own))
        of_party = normaliser.of_columns(names[begin : begin + widths[party]], names)
        begin += widths[party]
        fitted.append(of_party.fit_bytes(rows) if rows.dtype == torch.uint8 else of_party.fit(rows))
    return torch.cat([shift for shift, _ in fitted]), torch.cat([scale for _, scale in fitted])


def party_states(parts: Sequence[Part], shift: Tensor, scale: Tensor, layout: Layout) -> tuple[FittedParty, ...]:
    """What each party has fitted: its part of shift and scale, each (Σ F_m,), and the names of its columns."""
    widths = [part.width for part in parts]
    states = []
    for part, own_shift, own_scale in zip(parts, torch.split(shift, widths), torch.split(scale, widths), strict=True):
        names = tuple(map(str, layout.names_of(part)))
        scaled = bool(own_shift.any()) or not bool((own_scale == 1).all())  # scaled whole numbers are none any more
        dtype = "" if scaled else layout.dtype_of(part.positions)
        names = names if any(names) else ()  # the columns of another party of a federation have none
        states.append(FittedParty(torch.from_numpy(part.positions), part.shape, own_shift, own_scale, names, dtype))
    return tuple(states)


def without_records(party: int, records: int) -> ConfigurationError:
    """The error for a party that holds none of so many training records."""
    return ConfigurationError(
        f"party {party} holds none of the {records} training records, so its scaling cannot be fitted; give it "
        "records or leave the party out"
    )
