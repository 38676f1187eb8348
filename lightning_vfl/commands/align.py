"""``lightning-vfl align``: find the records that several parties have in common, without showing the others."""

import shutil
import sys
from argparse import REMAINDER
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.align.files import write_whole
from lightning_vfl.align.fuzzy import Links
from lightning_vfl.align.group import check_installed
from lightning_vfl.align.ids import USUAL, lacking_steps, messages_of, steps_of
from lightning_vfl.align.matching import Rows
from lightning_vfl.align.session import COMPARER, Reveal, Session
from lightning_vfl.align.steps import digest_of, mask_list, match_lists, pass_lists, records_at, take_rows, tell_parties
from lightning_vfl.commands.align_fuzzy import check_fuzzy, is_fuzzy, mask_fuzzy, match_fuzzy, take_fuzzy
from lightning_vfl.commands.align_tables import TableFile, check_out, map_path, write_aligned
from lightning_vfl.commands.alone import AloneCommand, add_csv_form, files_by_party, parse_alone
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.datamodules.records.party_tables import csv_forms
from lightning_vfl.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from lightning_vfl.align.group import Progress

_ABOUT = (
    "Find the records that several parties have in common, without showing the others: every party runs mask, then "
    "pass until all lists are raised; a comparer runs match; every party runs take. local plays all parties here."
)


class AlignCommand(AloneCommand):
    """One step of an alignment, or all of them."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("step", metavar="STEP", help=", ".join(STEPS))
        parser.add_argument("options", nargs=REMAINDER, metavar="...", help="see align STEP --help")

    def work(self, given: Namespace) -> int:
        return self.run_alone([given.step, *(given.options or ())])

    def run_alone(self, arguments: Sequence[str]) -> int:
        return _run_step(arguments)


def _run_step(arguments: Sequence[str]) -> int:
    step, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if step in ("-h", "--help"):
        print(
            "usage: lightning-vfl align STEP [options]\n\n",
            _ABOUT,
            "\n\nsteps:",
            *(f"\n  {name:6} {about}" for name, (about, _, _) in STEPS.items()),
            sep="",
        )
        return 0
    if step not in STEPS:
        raise UsageError(f"align needs a step; got '{step}'; {nearest(step, STEPS)}")
    about, add_options, run = STEPS[step]
    try:
        return run(parse_alone(f"align {step}", about, add_options, rest))
    except OSError as error:
        raise ConfigurationError(f"{error}; correct the path") from error


def _add_session(parser: ArgumentParser) -> None:
    parser.add_argument("--session", default="align", help="tells two alignments of the same parties apart")
    parser.add_argument(
        "--id-column",
        nargs="+",
        default=["id"],
        metavar="COLUMN",
        help="column of the ids, or PARTY=COLUMN; several are tried in turn; columns joined by + are one key "
        "(first+last+born)",
    )
    parser.add_argument(
        "--normalise",
        nargs="*",
        metavar="STEP",
        help="make ids equal that are written differently: nfkc strip casefold (all three if none is given), zeros "
        "(007 is 7); default: ids are compared as they are",
    )
    parser.add_argument(
        "--reveal",
        type=Literal["intersection", "label-party", "size"],
        default="intersection",
        help="what parties learn: which of their records all have, or the label party has, or the number alone",
    )
    parser.add_argument("--label-party", help="the party with the labels, for --reveal label-party")
    parser.add_argument("--pad-to", type=int, help="length of a list: random points hide how many records there are")
    add_csv_form(parser)


def _session(given: Namespace, parties: Sequence[str], keys: list[list[str]]) -> Session:
    words = given.normalise
    steps = () if words is None else steps_of(words or USUAL)
    arity = tuple(len(columns) for columns in keys)
    return Session(given.session, tuple(parties), arity, steps, Reveal(given.reveal), given.label_party)


def _table_file(given: Namespace, path: Path, party: str, parties: Collection[str]) -> TableFile:
    """A party's table, with its own columns of the ids (``PARTY=COLUMN``), separator and encoding."""
    named = {one for one in parties for word in given.id_column if word.startswith(f"{one}=")}
    own = [word.partition("=")[2] for word in given.id_column if word.startswith(f"{party}=")]
    words = own or [word for word in given.id_column if word.partition("=")[0] not in named] or ["id"]
    return TableFile(path, party, tuple(words), csv_forms({*parties, party}, given.separator, given.encoding)[party])


def _add_mask(parser: ArgumentParser) -> None:
    parser.add_argument("--party", required=True, help="this party")
    parser.add_argument("--parties", required=True, help="all parties, the same order everywhere: bank,shop")
    parser.add_argument("--table", required=True, help="this party's CSV or Parquet file")
    parser.add_argument("--out", default="out", help="folder of this party's files")
    parser.add_argument(
        "--fuzzy",
        metavar="FILE",
        help="compare texts with typing errors: file of a secret that the other party has too, and the comparer not",
    )
    _add_session(parser)


def _mask(given: Namespace) -> int:
    parties = [name.strip() for name in given.parties.split(",")]
    file = _table_file(given, Path(given.table), given.party, parties)
    if given.fuzzy is None:
        return _mask_file(given, parties, file, Path(given.out), tell=True)
    path = _mask_fuzzy(given, parties, file, Path(given.out), Path(given.fuzzy))
    print(f"{path}: give it to the comparer alone, as {path.name}; whoever has it and the secret can guess the texts")
    return 0


def _mask_fuzzy(given: Namespace, parties: Sequence[str], file: TableFile, out: Path, key_file: Path) -> Path:
    given.normalise = given.normalise or list(USUAL)
    session = _session(given, parties, file.keys())
    session.number(file.party)
    check_fuzzy(session, given.pad_to)
    out.mkdir(parents=True, exist_ok=True)
    return mask_fuzzy(out, session, file, key_file)


def _mask_file(given: Namespace, parties: Sequence[str], file: TableFile, out: Path, tell: bool) -> int:
    check_installed()
    Session(given.session, tuple(parties)).number(file.party)  # before a large table is read
    keys = file.keys()
    session = _session(given, parties, keys)
    messages = messages_of(file.texts(keys), session.normalise, file.party)
    path, made = mask_list(out, session, file.party, messages, file.told(), _bar, given.pad_to)
    if tell:
        print(f"{out / file.party}.key: secret, mode 0600; keep it on this host, and give it to nobody")
        print(f"{path}: {len(made.points):,} places; give it to {made.receiver}, as {path.name}")
    return 0


def _add_pass(parser: ArgumentParser) -> None:
    parser.add_argument("--party", required=True, help="this party")
    parser.add_argument("--in", default="out", help="folder of this party's files, and of lists it was given")


def _pass(given: Namespace) -> int:
    done = pass_lists(Path(given["in"]), given.party, _bar)
    for path, receiver in done.written.items():
        print(f"{path}: give it to {'the comparer' if receiver == COMPARER else receiver}, as {path.name}")
    for owner, sender in done.awaited.items():
        print(f"the list of {owner} has not come yet, {sender} gives it; then run this command again")
    if not done.written:
        raise ConfigurationError(f"{given['in']} has no list for {given.party} yet (*.for-{given.party}.points)")
    return 0


def _add_match(parser: ArgumentParser) -> None:
    parser.add_argument("--in", default="out", help="folder of the lists of all parties")
    parser.add_argument("--count", action="store_true", help="tell the numbers alone, and write nothing")
    _add_threshold(parser)


def _add_threshold(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--threshold", type=float, default=0.85, help="of --fuzzy: the smallest similarity of a pair, from 0 to 1"
    )


def _match(given: Namespace) -> int:
    folder = Path(given["in"])
    if is_fuzzy(folder):
        links, paths = match_fuzzy(folder, given.threshold, tell_parties=not given.count)
        _print_links(links)
    else:
        found, places = match_lists(folder)
        if _print_size(found, places):
            print(
                "that is less than half of the shortest list; if the parties expect more, let them compare how they "
                "write ids (0501 or 501, blanks, capital letters), and mask again in a new folder with --normalise"
            )
        paths = [] if given.count else tell_parties(folder, found)
    for path in paths:
        print(f"{path}: give it to {path.stem}")
    return 0


def _print_links(links: Links) -> None:
    below = int((links.similarity < 1).sum())
    print(f"{len(links.first):,} pairs of records, {below:,} of them with differences")


def _print_size(found: Mapping[str, Rows], places: Mapping[str, int]) -> bool:
    """Print how many records are in common, of how many; returns whether that is less than half of the shortest list.

    Args:
        found: what each party is told.
        places: the length of each party's list.
    """
    session = next(iter(found.values())).session
    if session.reveal is not Reveal.LABEL_PARTY:
        compared = {", ".join(found): (next(iter(found.values())).size, [*found])}
    else:
        label = str(session.label_party)
        compared = {
            f"{party} and {label}": (told.size, [party, label]) for party, told in found.items() if party != label
        }
    few = False
    for who, (size, parties) in compared.items():
        lengths = [places[party] for party in parties]
        print(f"{size:,} records in common of {who}; their lists have {' and '.join(f'{n:,}' for n in lengths)} places")
        few |= 2 * size < min(lengths)
    return few


def _add_take(parser: ArgumentParser) -> None:
    parser.add_argument("--party", required=True, help="this party")
    parser.add_argument("--in", default="out", help="folder of this party's files, and of the comparer's rows")
    parser.add_argument("--out", required=True, help="the aligned table to write, .csv or .parquet")
    parser.add_argument("--table", help="this party's table, if it has moved since mask")
    parser.add_argument(
        "--similarity", action="store_true", help="of --fuzzy: write a column similarity, for sample_weight"
    )
    parser.add_argument("--id-name", default="id", help="column of the common numbers; the same everywhere")


def _take(given: Namespace) -> int:
    out = Path(given.out)
    check_out(out)
    folder = Path(given["in"])
    if is_fuzzy(folder, given.party):
        taken: str | None = f"{take_fuzzy(folder, given.party, out, given.table, given.id_name, given.similarity):,}"
    elif given.similarity:
        raise ConfigurationError("exact ids have no similarity; leave out --similarity, or mask with --fuzzy")
    else:
        taken = _take_file(folder, given.party, out, given.table, given.id_name)
    if taken is not None:
        print(f"{out}: {taken} records; read by CSVTables")
        print(f"{map_path(out)}: their ids, mode 0600; keep it on this host")
    return 0


def _take_file(folder: Path, party: str, out: Path, moved: str | None, id_name: str) -> str | None:
    """How many records the aligned table has, of how many; None: the session reveals the size alone."""
    secret, about, told = take_rows(folder, party)
    if told.session.reveal is Reveal.SIZE:
        print(
            f"{told.size:,} of {secret.records:,} records in common; --reveal size tells nothing else, so no table is "
            "written"
        )
        return None
    try:
        file = TableFile.of(about, party, moved)
    except (KeyError, TypeError):
        raise ConfigurationError(
            f"{folder} has a key of {party} without a table; begin again in a new folder"
        ) from None
    keys = file.keys()
    messages = messages_of(file.texts(keys), secret.session.normalise, party)
    if digest_of(messages) != about.get("sha256"):
        raise ConfigurationError(
            f"the ids of {file.path} have changed since mask; give the same file, or begin again in a new folder"
        )
    records, rows = records_at(secret, told)
    table, ids = file.aligned(records, rows, keys, id_name, as_text=out.suffix == ".csv")
    write_aligned(table, ids, out)
    return f"{len(table):,} of {secret.records:,}"


def _add_local(parser: ArgumentParser) -> None:
    parser.add_argument("--tables", nargs="+", required=True, metavar="PARTY=FILE", help="all tables")
    parser.add_argument("--out", default="aligned", help="folder of the aligned tables")
    parser.add_argument("--format", type=Literal["parquet", "csv"], default="parquet", help="of the aligned tables")
    parser.add_argument("--id-name", default="id", help="column of the common numbers")
    parser.add_argument("--fuzzy", action="store_true", help="compare texts with typing errors, of two parties")
    parser.add_argument("--similarity", metavar="PARTY", help="of --fuzzy: whose table has a column similarity")
    _add_threshold(parser)
    _add_session(parser)


def _local(given: Namespace) -> int:
    tables = files_by_party(given.tables)
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=".align-", dir=out))
    try:
        files = {party: _table_file(given, path, party, tables) for party, path in tables.items()}
        if given.fuzzy:
            return _local_fuzzy(given, files, work, out)
        for file in files.values():
            _mask_file(given, list(tables), file, work, tell=False)
        for _ in range(len(tables) - 1):
            for party in tables:
                pass_lists(work, party, _bar)
        found, places = match_lists(work)
        if _print_size(found, places):
            tables_of_ids = [file.texts(file.keys()) for file in files.values()]
            now = next(iter(found.values())).session.normalise
            more, steps = lacking_steps(tables_of_ids, now)
            if more:
                print(f"{more:,} more ids would be in common with --normalise {' '.join(steps_of([*now, *steps]))}")
        tell_parties(work, found)
        for party in tables:
            target = out / f"{party}.{given.format}"
            if _take_file(work, party, target, None, given.id_name) is not None:
                print(target)
    finally:
        shutil.rmtree(work)
    return 0


def _local_fuzzy(given: Namespace, files: Mapping[str, TableFile], work: Path, out: Path) -> int:
    if given.similarity not in (None, *files):
        raise ConfigurationError(f"--similarity {given.similarity}: {nearest(given.similarity, files)}")
    key_file = work / "linkage.key"
    write_whole(key_file, token_bytes(32), 0o600)
    for file in files.values():
        _mask_fuzzy(given, list(files), file, work, key_file)
    links, _ = match_fuzzy(work, given.threshold)
    _print_links(links)
    for party in files:
        target = out / f"{party}.{given.format}"
        take_fuzzy(work, party, target, None, given.id_name, party == given.similarity)
        print(target)
    return 0


STEPS: dict[str, tuple[str, Callable[[Any], None], Callable[[Namespace], int]]] = {
    "mask": ("Make this party's key, and the masked list of its ids.", _add_mask, _mask),
    "pass": ("Raise the lists of other parties to this party's key.", _add_pass, _pass),
    "match": ("Compare the lists of all parties, without data and without a key.", _add_match, _match),
    "take": ("Write this party's table of the common records, in the common order.", _add_take, _take),
    "local": ("Play all steps of all parties on this machine, for trying.", _add_local, _local),
}


@contextmanager
def _bar(title: str, points: int) -> Iterator["Progress"]:
    if not sys.stderr.isatty():  # the bar would not be shown, and its import takes 0.05 s
        yield lambda points: None
        return
    from tqdm import tqdm

    with tqdm(total=points, desc=title, unit=" points", leave=False) as bar:
        yield bar.update
