"""The server's half in production: embeddings of the parties that answered become predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.calibration import by_class, calibrated
from lightning_vfl.export.engines import Runner, open_program
from lightning_vfl.export.manifest import Engine, Kind, Manifest, Missing, ServerHalf
from lightning_vfl.serving.masks import unmasked
from lightning_vfl.serving.messages import Embeddings
from lightning_vfl.serving.party_half import served

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Joined:
    """The predictions of a batch.

    Args:
        server: the server's half that has predicted.
        values: (B, C) or (B,), as the server's program gives them; None: nothing was predicted.
        predicted: (B,) bool, the records that have a prediction.
        unknown: (B,) bool, the records that have none because parties lack them.
        withheld: (B,) bool, the records that have none because a party does not answer for them.
        known: (B, M) bool, which party took part with which record.
        absent: the parties that did not answer.
    """

    server: "ServedServer"
    values: "NDArray[np.float32] | None"
    predicted: "NDArray[np.bool_]"
    unknown: "NDArray[np.bool_]"
    withheld: "NDArray[np.bool_]"
    known: "NDArray[np.bool_]"
    absent: tuple[str, ...]


class ServedServer:
    """Predictions from embeddings.

    Args:
        folder: of the server's exported half.
        engine: what runs the program.

    Raises:
        ConfigurationError: for a folder that is not a server's half, and a protection that is not offered.
    """

    def __init__(self, folder: Path, engine: Engine = Engine.ONNX) -> None:
        self.manifest = Manifest.read(folder)
        if not isinstance(self.manifest.half, ServerHalf):
            raise ConfigurationError(f"{folder} is the half of a party; give it to lightning-vfl endpoint")
        self.half = self.manifest.half
        self.protection = served(folder, self.half.protection)
        self.parties = self.half.parties
        self._program: Runner = open_program(folder, self.manifest, engine)
        # which parties take part where a calibration holds
        self._calibrations = [
            (np.array([name not in one.absent for name in self.parties]), one) for one in self.half.calibration
        ]
        self._widths = [int(port.shape[1]) for port in self.manifest.inputs[:-1]]

    @property
    def width(self) -> int:
        """The numbers of a prediction."""
        return prod(int(side) for side in self.manifest.outputs[0].shape[1:])

    @property
    def needs_all(self) -> bool:
        """Whether there are no predictions without a party."""
        return self.half.missing is Missing.SKIP

    def fits(self, party: str, answer: Embeddings, rows: int) -> bool:
        """Whether an answer has the shape and the type that the model needs, and finite numbers."""
        dtype = np.uint32 if self.protection.kind is Kind.MASKED else np.float32
        width = self._widths[self.parties.index(party)]
        alike = answer.values.dtype == dtype and answer.values.shape == (rows, width)
        return alike and bool(np.isfinite(answer.values).all())

    def join(self, answers: Mapping[str, Embeddings], rows: int, absent: tuple[str, ...]) -> Joined:
        """The predictions of a batch.

        Args:
            answers: party -> its embeddings.
            rows: records of the batch.
            absent: the parties that are not there, or have not answered in time.
        """
        known = np.zeros((rows, len(self.parties)), np.bool_)
        possible = np.ones_like(known)
        withheld = np.zeros(rows, np.bool_)
        for m, name in enumerate(self.parties):
            if name in answers:
                known[:, m] = answers[name].known
                possible[:, m] = answers[name].known | answers[name].withheld
                withheld |= answers[name].withheld
        unknown = self._lacking(possible)
        predicted = ~unknown & ~withheld & known.any(1)
        if not answers or (absent and self.needs_all) or not predicted.any():
            return Joined(self, None, np.zeros(rows, np.bool_), unknown, withheld, known, absent)
        values = self._program.run(self._inputs(answers, known, absent, rows))
        return Joined(self, values, predicted, unknown, withheld, known, absent)

    def _inputs(
        self, answers: Mapping[str, Embeddings], known: "NDArray[np.bool_]", absent: Sequence[str], rows: int
    ) -> "list[NDArray[Any]]":
        if self.protection.kind is Kind.MASKED:  # the sum takes the place of the first addend, beside zeros
            total = unmasked([answers[name].values for name in self.parties], self.protection)
            others = [np.zeros_like(total) for _ in self.parties[1:]]
            return [total, *others, np.ones_like(known)]
        embeddings = []
        for name, width in zip(self.parties, self._widths, strict=True):
            embeddings.append(answers[name].values if name in answers else np.zeros((rows, width), np.float32))
        present = known.copy()
        if self.half.missing is Missing.ZEROS:
            present[:, [self.parties.index(name) for name in absent]] = True
        return [*embeddings, present]

    def _lacking(self, possible: "NDArray[np.bool_]") -> "NDArray[np.bool_]":
        """(B,) bool, the records that cannot be predicted, whatever the parties have that did not answer.

        Args:
            possible: (B, M) bool, whether the party has the record, or has not said.
        """
        if self.half.overlap != "inner":
            return np.asarray(~possible.any(1))
        grouped = {name for group in self.half.groups for name in group}
        needed = [[m] for m, name in enumerate(self.parties) if name not in grouped]
        needed += [[self.parties.index(name) for name in group if name in self.parties] for group in self.half.groups]
        lacking = np.zeros(len(possible), np.bool_)
        for members in needed:
            lacking |= ~possible[:, members].any(1)
        return lacking

    def rows(self, ids: Sequence[int | str], joined: Joined, part: slice) -> list[dict[str, Any]]:
        """One entry for each record: id, prediction, decision, and confidence if one is calibrated; None: none."""
        half = self.half
        predicted = joined.predicted[part].tolist()
        values = None if joined.values is None else joined.values[part]
        confidences = self._confidences(joined, part) if self._calibrations else None
        entries = []
        for row, one in enumerate(ids):
            entry: dict[str, Any] = {"id": one}
            entry |= self._entry(values[row] if values is not None and predicted[row] else None)
            if confidences is not None:
                entry["confidence"] = confidences[row]
            if half.overlap != "inner" or half.groups:
                names = zip(self.parties, joined.known[part][row].tolist(), strict=True)
                entry["parties"] = [name for name, there in names if there]
            entries.append(entry)
        return entries

    def _confidences(self, joined: Joined, part: slice) -> list[float | None]:
        """For each record how often such a decision is right; None where no calibration is for its parties."""
        found: list[float | None] = [None] * len(joined.predicted[part])
        if joined.values is None:
            return found
        known, predicted = joined.known[part], joined.predicted[part]
        for there, one in self._calibrations:
            rows = np.flatnonzero(predicted & (known == there).all(1))
            if len(rows):
                values = joined.values[part][rows]
                given = by_class(values)
                decided = (values >= 0.5).astype(int) if values.ndim == 1 else values.argmax(1)
                chances = calibrated(given, one.slope, one.offset)[np.arange(len(rows)), decided]
                for row, chance in zip(rows.tolist(), chances.tolist(), strict=True):
                    found[row] = chance
        return found

    def _entry(self, value: Any) -> dict[str, Any]:
        half = self.half
        if half.targets:
            numbers = [None] * len(half.targets) if value is None else value.tolist()
            by_target = dict(zip(half.targets, numbers, strict=True))
            if not half.probabilities:
                return {"value": by_target}
            decided = {name: None if number is None else int(number >= 0.5) for name, number in by_target.items()}
            return {"probability": by_target, "decision": decided}
        if not half.classes:
            return {"value": None if value is None else float(value)}
        if value is None:
            return {"probability": None, "decision": None}
        if value.ndim == 0:
            return {"probability": float(value), "decision": half.classes[int(value >= 0.5)]}
        by_class = {str(name): number for name, number in zip(half.classes, value.tolist(), strict=True)}
        return {"probability": by_class, "decision": half.classes[int(value.argmax())]}
