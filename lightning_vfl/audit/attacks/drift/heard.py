"""The served steps in a transcript, and the columns that follow from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.aggregators.readable import Readable, sums_of
from lightning_vfl.audit.attack import NothingSeen, Seen
from lightning_vfl.audit.attacks.drift.linear import linear
from lightning_vfl.audit.attacks.drift.served import ServedStep, ServedSteps
from lightning_vfl.audit.transcript import AGGREGATES

if TYPE_CHECKING:
    from lightning_vfl.audit.transcript import Entry, Transcript


# the solution of a transcript, with its number of entries: several attacks of one audit use it
_SOLVED: "WeakKeyDictionary[Transcript, tuple[int, tuple[Tensor, Tensor, str]]]" = WeakKeyDictionary()


def drifted(seen: Seen) -> tuple[Tensor, Tensor, str]:
    """Records (n,), their columns (n, d) up to rotation and translation, and what was used, in words.

    One transcript is solved once. Do not write to the result.
    The columns of several sums, or of several parties that are read one by one, stand side by side.

    Raises:
        NothingSeen: if no gradients are sent, the server reads no sum, or a bottom has a hidden layer.
    """
    entries = len(seen.transcript.entries)
    count, solution = _SOLVED.get(seen.transcript, (-1, None))
    if solution is None or count != entries:
        solution = _solved(seen)
        _SOLVED[seen.transcript] = entries, solution
    return solution


def _solved(seen: Seen) -> tuple[Tensor, Tensor, str]:
    """``drifted``, computed."""
    if seen.recipe is None:
        raise NothingSeen("the optimiser is none of SGD, Adam and AdamW")
    found, words = [], []
    for served, upload in served_steps(seen):
        found.append(linear(served))
        of = "party " + str(upload.parties[0]) if len(upload.parties) == 1 else f"{len(upload.parties)} parties"
        words.append(f"{served.width} of {of}")
    if not found:
        raise NothingSeen("the server reads no sum of embeddings with the gradients that it sent for them")
    columns = torch.cat(found, 1)
    ids = (~columns.isnan().any(1)).nonzero().flatten()
    if not len(ids):
        raise NothingSeen("no record is in all sums")
    return ids, columns[ids], f"uploads and sent gradients (width {', '.join(words)})"


def served_steps(seen: Seen) -> Iterator[tuple[ServedSteps, Readable]]:
    """The steps behind each upload that the server can read."""
    if seen.recipe is None:
        return
    if not any(True for _ in seen.transcript.find(GRADIENTS, "down")):
        raise NothingSeen("no gradient is sent")
    gradients: dict[tuple[int, int], Entry] = {}
    for entry in seen.transcript.find(GRADIENTS, "down"):
        if entry.receiver is not None:
            gradients[entry.round, entry.receiver] = entry
    clear = list(seen.transcript.find(EMBEDDINGS, "up"))
    rule, rate = seen.recipe
    if clear:
        read: Sequence[Readable] = [
            Readable((m,), seen.widths[m]) for m in sorted({e.sender for e in clear if e.sender is not None})
        ]
    else:
        read = sums_of(seen.aggregator, seen.widths)
    for upload in read:
        if any(seen.basis.get(m) is None for m in upload.parties):
            raise NothingSeen("a bottom has a hidden layer")
        entries = clear if upload.outside is None else list(seen.transcript.find(AGGREGATES, "own"))
        steps = tuple(_steps(entries, gradients, upload, rate))
        if steps:
            columns = tuple(seen.basis[m] or 0 for m in upload.parties)
            yield ServedSteps(steps, rule, seen.records, columns), upload


def _steps(
    entries: "Sequence[Entry]", gradients: "Mapping[tuple[int, int], Entry]", upload: Readable, rate: float
) -> Iterator[ServedStep]:
    """The steps from which all parties of an upload have learnt."""
    for entry in entries:
        answers = [gradients.get((entry.round, m)) for m in upload.parties]
        if upload.outside is None and entry.sender not in upload.parties:
            continue
        answer = answers[0]
        if answer is None or None in answers or not len(entry.ids) or len(answer.value) != len(entry.ids):
            continue
        value, gradient = entry.value.double(), answer.value.double()
        if upload.outside is not None:
            value, gradient = value[:, upload.outside] / upload.scale, gradient[:, upload.inside[0]]
        yield ServedStep(entry.ids, value, gradient, rate)
