"""Score records with exported halves: every party's half gives embeddings, the server's half predictions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_only

from lightning_vfl.checks import positive
from lightning_vfl.datamodules.records.grouped_tables import add_singles, refuse_shared_ids
from lightning_vfl.datamodules.records.party_tables import by_party, common_ids, csv_forms, kind_of, plain_ids
from lightning_vfl.datamodules.records.work_folders import work_folder
from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.export.engines import Runner, open_program
from lightning_vfl.export.manifest import Engine, Manifest, PartyHalf, ServerHalf
from lightning_vfl.export.party_data import PartyData, read_party
from lightning_vfl.trained.predictions import prediction_table, tell_left_out, with_parties

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Exported:
    """The halves of one model.

    Args:
        server: the folder and the manifest of the server.
        parties: those of the parties, in the order of the server's inputs.
    """

    server: tuple[Path, Manifest]
    parties: Mapping[str, tuple[Path, Manifest]]

    @property
    def about(self) -> ServerHalf:
        """What the server's manifest says."""
        return _about(self.server[1])


def read_exported(folders: Sequence[Path]) -> Exported:
    """The halves in these folders.

    Raises:
        ConfigurationError: for files that have changed, halves of several models, and parties that are missing or that
            the server does not expect.
    """
    found = [(folder, Manifest.read(folder)) for folder in folders]
    servers = [one for one in found if isinstance(one[1].half, ServerHalf)]
    if len(servers) != 1:
        raise ConfigurationError(
            f"{len(servers)} of the folders {', '.join(map(str, folders))} are a server's; give the folder of the "
            "server once, beside those of the parties"
        )
    ((place, server),) = servers
    wanted = _about(server).parties
    given = {manifest.name: (folder, manifest) for folder, manifest in found if isinstance(manifest.half, PartyHalf)}
    for name, (folder, manifest) in given.items():
        if name not in wanted:
            raise ConfigurationError(
                f"{folder} is the half of party '{name}', which {place} does not expect; it expects {', '.join(wanted)}"
            )
        if manifest.model != server.model:
            raise ConfigurationError(
                f"{folder} and {place} were exported from different checkpoints; export all halves from one checkpoint"
            )
    if missing := [name for name in wanted if name not in given]:
        raise ConfigurationError(f"the half of party '{missing[0]}' is missing, which {place} expects; give its folder")
    if len(given) + 1 != len(found):
        raise ConfigurationError(f"a party is given twice among {', '.join(map(str, folders))}; give each party once")
    return Exported((place, server), {name: given[name] for name in wanted})


def score(
    folders: Sequence[Path],
    tables: Mapping[str, str | Path],
    engine: Engine = Engine.ONNX,
    *,
    id_column: str | Mapping[str, str] = "id",
    separator: str | Mapping[str, str] = ",",
    encoding: str | Mapping[str, str] = "utf-8",
    leave_out: Collection[str] = (),
    records_of: str | None = None,
    batch_size: int = 4096,
    work_dir: str | Path | None = None,
    out: Path | None = None,
) -> "pd.DataFrame":
    """The predictions of the records of these tables, as ``lightning-vfl predict`` writes them.

    Args:
        folders: of all halves.
        tables: party -> its file.
        engine: what runs the programs.
        id_column: the column of the ids, of all tables or party -> column.
        separator: between the fields of a CSV file, of all tables or party -> separator.
        encoding: of the text of a CSV file, of all tables or party -> encoding.
        leave_out: columns of the tables that are no features, such as labels.
        records_of: with a model that was trained with ``overlap: keep``: the party whose records are predicted; None:
            every record of any party.
        batch_size: records that are run together.
        work_dir: folder on a disk in which tables are encoded column by column; None: files of more than 512 MB
            together are encoded in the folder of the system for temporary files, smaller ones in memory.
        out: the file that the predictions will have; records that are left out, because some party lacks them, are
            counted and written beside it, see ``tell_left_out``. None: they are not told.

    Guarantee: records are joined on their ids, in sorted order. The prediction of a record does not depend on the
        other records, except for rounding in float32 if ``batch_size`` differs.
    Not guaranteed: the protection of the aggregator: all halves run in this process, on embeddings in the clear.

    Raises:
        ConfigurationError: for folders or tables that do not belong to one model.
    """
    positive("--batch_size", batch_size, whole=True)
    # notes on records are printed by the process of rank 0, and without Lightning nothing has set it
    rank_zero_only.rank = getattr(rank_zero_only, "rank", 0)  # type: ignore[attr-defined]
    exported = read_exported(folders)
    _check_names(tables, exported)
    grouped = {name for group in exported.about.groups for name in group}
    work = work_folder(map(Path, tables.values()), work_dir)
    ids_in = by_party("id_column", id_column, tables, "id")
    forms = csv_forms(tables, separator, encoding)
    data = {
        name: read_party(manifest, Path(tables[name]), ids_in[name], forms[name], leave_out, name in grouped, work)
        for name, (_, manifest) in exported.parties.items()
    }
    ids = joined_ids(data, exported.about, records_of)
    left_out = {party: plain_ids(own.index.difference(ids)) for party, own in data.items()}
    for name in data:  # one after the other: the memory of a table that has been encoded is free again
        data[name] = data[name].only(plain_ids(ids))
    runners = {name: open_program(*half, engine) for name, half in exported.parties.items()}
    server = open_program(*exported.server, engine)
    widths = {name: int(half[1].outputs[0].shape[1]) for name, half in exported.parties.items()}
    values, held = [], []
    for start in range(0, len(ids), batch_size):
        inputs = [*_embeddings(ids[start : start + batch_size], data, runners, widths)]
        held.append(inputs[-1])
        found = server.run(inputs)
        values.append(np.where(held[-1].any(1).reshape(-1, *(1,) * (found.ndim - 1)), found, np.nan))
    for own in data.values():
        own.new.tell()
    about = exported.about
    several = about.targets, about.probabilities
    table = prediction_table(plain_ids(ids), np.concatenate(values), about.classes, *several)
    if about.overlap != "inner" or about.groups:  # as predict, whose batches then say who has which record
        table = with_parties(table, np.concatenate(held), list(data))
    if out is not None:
        tell_left_out(left_out, out)
    return table


def joined_ids(data: Mapping[str, PartyData], about: ServerHalf, records_of: str | None = None) -> "pd.Index[Any]":
    """The sorted ids of the records to predict.

    Raises:
        ConfigurationError: for ids of different kinds, without common ids, and in several tables of a group.
    """
    import pandas as pd  # 0.25 s, where it is used

    tables = {name: pd.DataFrame(index=own.index) for name, own in data.items()}
    first = next(iter(tables))
    for name, table in tables.items():
        if kind_of(table.index) != kind_of(tables[first].index):
            raise ConfigurationError(
                f"ids of party '{name}' are {kind_of(table.index)} but those of party '{first}' are "
                f"{kind_of(tables[first].index)}; write them in the same form in all files"
            )
    refuse_shared_ids(tables, about.groups)
    if records_of is not None and records_of not in tables:
        raise ConfigurationError(
            f"--records_of {records_of} is not a party of the model; {nearest(records_of, tables)}"
        )
    if about.overlap == "inner":
        if records_of is not None:
            raise ConfigurationError(
                "--records_of is for models that were trained with overlap: keep; this model needs all parties for "
                "every record, so leave it out"
            )
        needed = add_singles(about.groups, tables)
    else:
        needed = ((records_of,),) if records_of is not None else (tuple(tables),)
    ids: pd.Index[Any] = pd.Index(common_ids(tables, needed))
    return ids


def _about(manifest: Manifest) -> ServerHalf:
    if not isinstance(manifest.half, ServerHalf):
        raise TypeError(f"'{manifest.name}' is not the half of a server")
    return manifest.half


def _check_names(tables: Mapping[str, str | Path], exported: Exported) -> None:
    """Accept one table for each party."""
    for name in tables:
        if name not in exported.parties:
            raise ConfigurationError(
                f"--tables names '{name}', but no folder is of this party; {nearest(name, exported.parties)}"
            )
    if missing := [name for name in exported.parties if name not in tables]:
        raise ConfigurationError(f"--tables has no file of party '{missing[0]}'; add {missing[0]}=FILE")


def _embeddings(
    ids: "pd.Index[Any]", data: Mapping[str, PartyData], runners: Mapping[str, Runner], widths: Mapping[str, int]
) -> "Iterator[NDArray[Any]]":
    """The inputs of the server: each party's embeddings, zero for records that it lacks, then who has which record."""
    held = []
    for name, own in data.items():
        places = own.places(plain_ids(ids))
        there = places >= 0
        embedding = np.zeros((len(ids), widths[name]), dtype=np.float32)
        if there.any():
            embedding[there] = runners[name].run([own.features(places[there])])
        held.append(there)
        yield embedding
    yield np.stack(held, axis=1)
