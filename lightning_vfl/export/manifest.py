"""The manifest of an exported half of a model: a JSON file beside its programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import file_digest
from pathlib import Path
from typing import Any, Self

from lightning_vfl.errors import ConfigurationError, on_one_line

FORMAT = 1
FILE = "manifest.json"
SERVER = "server"  # the name of the server's half
RECORDS = "records"  # the first side of every input and output: any number of records


class Engine(StrEnum):
    """What runs the programs: ONNX Runtime, or torch."""

    ONNX = "onnx"
    TORCH = "torch"


@dataclass(frozen=True)
class Port:
    """One input or output of a program.

    Args:
        name: its name in the ONNX program.
        shape: ``records``, then the shape for each record.
        dtype: as numpy names it.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class Program:
    """A file with a program, and its hash.

    Args:
        path: the name of the file in the folder of the manifest.
        sha256: the hash of the file, in hexadecimal digits.
    """

    path: str
    sha256: str


class Kind(StrEnum):
    """How embeddings are protected in production."""

    CLEAR = "clear"  # the server reads every embedding
    MASKED = "masked"  # the server reads the sum of the embeddings of all parties
    UNSERVED = "unserved"  # production does not offer the aggregator's protection


class Missing(StrEnum):
    """What a prediction without a party is."""

    SKIP = "skip"  # there is none
    EXCLUDE = "exclude"  # the aggregate of the other parties
    ZEROS = "zeros"  # the aggregate with zeros in place of the party's embedding


@dataclass(frozen=True)
class Protection:
    """How the embeddings of a model are protected in production.

    Args:
        kind: who reads what.
        aggregator: the name of its class.
        consent: whether a party has to agree, with ``evaluate: plain`` in its ``seat.yaml``.
        parties: whose embeddings are summed, if they are masked.
        clip: t, the largest magnitude of a number that is masked.
        levels: R, the number of integers that stand for numbers between -t and t.
        event: what the release of one record costs, as ledgers have it; None: embeddings are not random.
        bounds: what ``clip`` bounds of a random embedding: the norm of a ``record``, or each ``value``.
    """

    kind: Kind
    aggregator: str
    consent: bool = False
    parties: tuple[str, ...] = ()
    clip: float = 0.0
    levels: int = 0
    event: Mapping[str, Any] | None = None
    bounds: str = ""


@dataclass(frozen=True)
class Moments:
    """The mean and the standard deviation of a half's outputs for the records of training.

    Args:
        records: N.
        mean: of each of the D numbers of an output.
        deviation: of each of them; 0: all records have the same number.
    """

    records: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """How a probability becomes a confidence, where the same parties are absent; see ``export.calibration``.

    Args:
        absent: the parties without whom it was fitted.
        slope: of the logarithms of probabilities; above 0.
        offset: of the second of two classes.
        records: of validation, on which it was fitted.
    """

    absent: tuple[str, ...]
    slope: float
    offset: float
    records: int


@dataclass(frozen=True)
class PartyHalf:
    """What a manifest says about a party.

    Args:
        encoders: the plain states of the encoders of its table's columns, in order; None: its features are an array.
        names: the names of the numbers that the encoders make, in the order of the input.
        protection: how its embeddings are protected in production; None: the file is older than this entry.
        network: the name that ledgers have for its bottom; empty: the file is older than this entry.
        sums_since: rounds of training; sums that a ledger has from fewer rounds are of embeddings that have changed.
    """

    encoders: tuple[Mapping[str, Any], ...] | None
    names: tuple[str, ...] = ()
    protection: Protection | None = None
    network: str = ""
    sums_since: int = 0


@dataclass(frozen=True)
class ServerHalf:
    """What a manifest says about the server.

    Args:
        parties: the parties whose embeddings are the inputs, in this order.
        classes: the names of the classes; empty for real values.
        aggregator: the printed form of the aggregator.
        differs: how predictions of ``predict`` may differ from those of the exported program; empty: they do not.
        overlap: ``inner``: all parties hold a record; ``keep``: parties may lack it.
        groups: the groups of parties that hold the same columns for different records.
        targets: the names of the labels, if a record has several.
        probabilities: whether the predictions of several labels are probabilities.
        protection: as in the parties' halves.
        missing: what a prediction without a party is.
        calibration: one for each set of absent parties for which there is a confidence.
    """

    parties: tuple[str, ...]
    classes: tuple[int | str, ...]
    aggregator: str
    differs: str = ""
    overlap: str = "inner"
    groups: tuple[tuple[str, ...], ...] = ()
    targets: tuple[str, ...] = ()
    probabilities: bool = False
    protection: Protection | None = None
    missing: Missing = Missing.SKIP
    calibration: tuple[Calibration, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """What is in the folder of an exported half.

    Args:
        name: of the party, or ``server``.
        model: the sha256 of the checkpoint; halves of one model have the same.
        half: what is specific to a party or to the server.
        inputs: of the programs.
        outputs: of the programs.
        programs: the file for each engine.
        versions: of the packages that wrote the files, and of the operators of ONNX.
        training: the moments of the outputs for the records of training; None: they were not computed.
    """

    name: str
    model: str
    half: PartyHalf | ServerHalf
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    programs: Mapping[Engine, Program]
    versions: Mapping[str, str] = field(default_factory=dict)
    training: Moments | None = None

    def write(self, folder: Path) -> None:
        """Write the file."""
        kind = "party" if isinstance(self.half, PartyHalf) else "server"
        content = {"format": FORMAT, "kind": kind, **asdict(self)}
        (folder / FILE).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file, and check the hashes of the programs.

        Raises:
            ConfigurationError: for a folder without a manifest, another format, and a file that has changed.
        """
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            number = content.pop("format")
        except FileNotFoundError:
            raise ConfigurationError(
                f"{folder} has no {FILE}; give the folders that lightning-vfl export has written"
            ) from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(path, error) from error
        if number != FORMAT:
            raise ConfigurationError(
                f"{path} has format {number}, this version reads format {FORMAT}; export the model again, or install "
                "the version that exported it"
            )
        try:
            manifest = cls(**_restored(content))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(path, error) from error
        for program in manifest.programs.values():
            manifest._check(folder, program)
        return manifest

    def _check(self, folder: Path, program: Program) -> None:
        path = folder / program.path
        if Path(program.path).name != program.path:
            raise ConfigurationError(f"{folder / FILE} names {program.path}, which is in another folder; export again")
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing, which {folder / FILE} names; export the model again")
        if hash_of(path) != program.sha256:
            raise ConfigurationError(
                f"{path} is not the file that was exported: its sha256 is not that of {folder / FILE}; export the "
                "model again"
            )


def hash_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _restored(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Manifest`` from the values of the file."""
    of_kind = {"party": PartyHalf, "server": ServerHalf}[content["kind"]]
    said = {name: _frozen(value) for name, value in content["half"].items()}
    if said.get("protection") is not None:
        about = {name: _frozen(value) for name, value in said["protection"].items()}
        said["protection"] = Protection(**about | {"kind": Kind(about["kind"])})
    if "missing" in said:
        said["missing"] = Missing(said["missing"])
    if "calibration" in said:
        fitted = [{name: _frozen(value) for name, value in one.items()} for one in said["calibration"]]
        said["calibration"] = tuple(Calibration(**one) for one in fitted)
    half = of_kind(**said)
    ports = {
        side: tuple(Port(one["name"], tuple(one["shape"]), one["dtype"]) for one in content[side])
        for side in ("inputs", "outputs")
    }
    programs = {Engine(name): Program(**program) for name, program in content["programs"].items()}
    moments = content.get("training")
    training = None if moments is None else Moments(**{name: _frozen(value) for name, value in moments.items()})
    return (
        {name: value for name, value in content.items() if name != "kind"}
        | ports
        | {
            "half": half,
            "programs": programs,
            "training": training,
        }
    )


def _frozen(value: Any) -> Any:
    """Lists as tuples, as the dataclasses have them; states of encoders stay as they are."""
    return tuple(_frozen(one) for one in value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _unreadable(path: Path, error: Exception) -> ConfigurationError:
    reason = on_one_line(error)
    return ConfigurationError(
        f"{path} is not the manifest of an exported model ({type(error).__name__}: {reason}); export the model again"
    )
