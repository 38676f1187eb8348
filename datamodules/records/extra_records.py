"""Records that one party has and the others do not have: read and prepared as its training records were."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import FittedParty

from .checks import refuse_infinite
from .column_encoder import ColumnEncoder
from .column_tables import ColumnTable
from .modal_columns import located
from .party_tables import listed, plain_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray


def not_joined(table: ColumnTable, joined: "NDArray[np.generic]", party: str, own: bool) -> ColumnTable:
    """The records whose ids are not among the joined ones.

    Args:
        table: of the party.
        joined: (N,) the ids of all joined records, also of those for validation and for tests.
        party: its name, for the error.
        own: the table is the one that was joined, so that an id names the same record in both.

    Raises:
        ConfigurationError: for such an id in another table, because features of test records might be trained on, and
            for ids of another kind, among which it would not be found.
    """
    ids = plain_ids(table.index)
    if len(ids) and ids.dtype.kind != joined.dtype.kind:
        kinds = {"i": "whole numbers", "U": "texts"}
        raise ConfigurationError(
            f"the ids of the extra records of party '{party}' are {kinds[ids.dtype.kind]} such as {ids[0]}, and those "
            f"of joined records {kinds[joined.dtype.kind]} such as {joined[0]}; write them in the same form, because "
            "joined records may be for tests"
        )
    shared = np.isin(ids, joined)
    if shared.any() and not own:
        raise ConfigurationError(
            f"{int(shared.sum())} of the {len(ids)} extra records of party '{party}' have ids of joined records, first "
            f"{ids[shared][0]}, which may be for tests; leave them out, or give the party's own table"
        )
    return table.in_order(np.flatnonzero(~shared))


def prepared(
    table: ColumnTable, encoders: Sequence[ColumnEncoder], fitted: FittedParty, folder: Path, party: tuple[int, str]
) -> Tensor:
    """(n, *S_m) float32, the records with the steps and the scaling that were fitted to the training records.

    Args:
        table: of the party; columns without an encoder are not read.
        encoders: of its columns.
        fitted: its scaling.
        folder: in which names of pictures are looked up.
        party: its number and its name.

    Raises:
        ConfigurationError: for columns that are missing, and values that cannot be used.
    """
    used = [encoder for encoder in located(encoders, folder) if encoder.names]
    if missing := [encoder.column for encoder in used if encoder.column not in table]:
        raise ConfigurationError(
            f"the extra records of party '{party[1]}' are without {listed(missing)}, which its table has; give them "
            "the same columns"
        )
    ids = plain_ids(table.index)
    features = torch.empty(len(table), len(fitted.shift))
    place = 0
    for encoder in used:
        encoded = encoder.encode(table[encoder.column], party[1])
        for name, column in zip(encoder.names, encoded.T, strict=True):
            refuse_infinite(column, party[0], name, ids)
            scaled = torch.tensor(column).sub_(fitted.shift[place]).div_(fitted.scale[place])
            features[:, place] = scaled
            place += 1
    return features.view(-1, *fitted.shape)
