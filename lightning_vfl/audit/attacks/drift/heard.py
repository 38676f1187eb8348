"""The served steps in a transcript, and the columns that follow from them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.aggregators.readable import Readable, sums_of
from lightning_vfl.audit.attack import NotAttacked, NothingSeen, Seen
from lightning_vfl.audit.attacks.drift.linear import linear
from lightning_vfl.audit.attacks.drift.served import ServedStep, ServedSteps
from lightning_vfl.audit.attacks.drift.smoothed import ADAM_SHARE, seconds_per_iteration, smoothed
from lightning_vfl.audit.transcript import AGGREGATES, Entry, Transcript
from lightning_vfl.networks.depth import HiddenLayer

SECONDS = 60.0  # for the fits of hidden layers
LEAST_ITERATIONS = 100  # of a fit: after fewer, it has told no more than its start
EMPTY = 1e-3  # of the largest singular value, under which a direction has no columns
MOST_NUMBERS = 20_000_000  # of all visits to records in a fit: its run keeps several of each for autograd, 1 GB in all


class Drifted(NamedTuple):
    """What the uploads of a training tell.

    Args:
        ids: (n,) the records.
        columns: (n, d) their columns up to rotation and translation.
        shown: (n, d) what their uploads show as they are, side by side as the columns.
        saw: what was used, in words.
    """

    ids: Tensor
    columns: Tensor
    shown: Tensor
    saw: str


# the solution of a transcript, with its number of entries and the time: several attacks of one audit use it
_SOLVED: WeakKeyDictionary[Transcript, tuple[tuple[int, float], Drifted]] = WeakKeyDictionary()


def drifted(seen: Seen, seconds: float = SECONDS) -> Drifted:
    """The columns behind uploads that drift.

    One transcript is solved once. Do not write to the result.
    The columns of several sums, or of several parties that are read one by one, stand side by side, without the
    attacker's own and without those that an earlier sum has too. Columns behind hidden layers are fitted until the fit
    is complete or its time is over.

    Args:
        seen: what the attacker has.
        seconds: the time for all fits of hidden layers together; linear bottoms need none of it.

    Raises:
        NothingSeen: if the server reads no sum of embeddings.
        NotAttacked: for bottoms, optimisers and messages that the attack cannot use.
    """
    key = len(seen.transcript.entries), seconds
    solved = _SOLVED.get(seen.transcript)
    if solved is None or solved[0] != key:
        solved = _SOLVED[seen.transcript] = key, _solved(seen, seconds)
    return solved[1]


def _solved(seen: Seen, seconds: float) -> Drifted:
    """``drifted``, computed."""
    trainings = list(served_steps(seen))
    if not trainings:
        raise NothingSeen("the server reads no sum of embeddings with the gradients that it sent for them")
    layers = [_layer(seen, upload) for _, upload in trainings]
    fits_left = sum(layer is not None for layer in layers)
    deadline = time.monotonic() + seconds

    solutions = []
    words = []
    for (served, upload), layer in zip(trainings, layers, strict=True):
        if layer is None:
            columns = linear(served)
            how = ""
        else:
            columns, how = _fitted(served, layer, deadline - time.monotonic(), fits_left)
            fits_left -= 1
        solutions.append(columns)
        of = f"party {upload.parties[0]}" if len(upload.parties) == 1 else f"{len(upload.parties)} parties"
        words.append(f"{served.width} of {of}{how}")
    ids = _in_all(solutions)
    parts = _apart(seen, [upload for _, upload in trainings], [columns[ids] for columns in solutions], ids)
    shown = torch.cat([served.shown() for served, _ in trainings], 1)[ids]
    return Drifted(ids, torch.cat(parts, 1), shown, f"uploads and sent gradients (width {', '.join(words)})")


def _in_all(solutions: Sequence[Tensor]) -> Tensor:
    """The records (n,) of which every solution has a row.

    Raises:
        NothingSeen: if there is none.
    """
    complete = ~torch.cat([*solutions], 1).isnan().any(1)
    ids = complete.nonzero().flatten()
    if not len(ids):
        raise NothingSeen("no record is in all sums")
    return ids


def _apart(seen: Seen, uploads: Sequence[Readable], solutions: Sequence[Tensor], ids: Tensor) -> list[Tensor]:
    """The columns of each upload, without the attacker's own and without those that an earlier upload has too."""
    parts = list[Tensor]()
    for place, (upload, columns) in enumerate(zip(uploads, solutions, strict=True)):
        members = set(upload.parties)
        part = columns
        for member in members & set(seen.attacker.parties):
            part = without(part, seen.features[member][ids].flatten(1).double())
        for earlier, columns_before in zip(uploads[:place], parts, strict=True):
            if members & set(earlier.parties):
                part = without(part, columns_before)
        parts.append(part)
    return parts


def _fitted(served: ServedSteps, layer: HiddenLayer, left: float, fits: int) -> tuple[Tensor, str]:
    """The columns of all records as the fit gives them, and what it did in words; after one epoch, uploads as they are.

    Args:
        served: what is fitted.
        layer: of its bottoms.
        left: the seconds that are left for this and all other fits.
        fits: their number; each has an equal share, or more if this is too little for a fit.

    Raises:
        NotAttacked: for a training whose first two epochs are too large.
    """
    numbers_a_visit = len(served.columns) * layer.width + served.width + sum(served.columns)
    visits = torch.zeros(served.records, dtype=torch.int64)
    kept = list[ServedStep]()
    for step in served.steps:
        visits_then = int(visits.sum()) + len(step.ids)
        if visits_then * numbers_a_visit > MOST_NUMBERS:
            break
        visits.index_add_(0, step.ids, torch.ones_like(step.ids))
        kept.append(step)
    all_steps = len(kept) == len(served.steps)
    if int(visits.max()) < 2:
        if not all_steps:
            raise NotAttacked("the fit of a hidden layer would need the uploads of two epochs, which are too many")
        return served.shown(), ", as they are in one epoch"

    part = replace(served, steps=tuple(kept))
    iteration = seconds_per_iteration(part, layer)
    least = LEAST_ITERATIONS * iteration / ADAM_SHARE
    if least > left:
        return served.shown(), f", as they are: a fit takes {least:.0f} s or more"
    seconds = max(left / fits, least)
    fit = smoothed(part, layer, seconds=seconds)
    steps = "all" if all_steps else f"the first {len(kept):,}"
    end = "" if fit.complete else f", ended after {seconds:.0f} s"
    return fit.columns, f", fitted to {steps} steps{end}"


def _layer(seen: Seen, read: Readable) -> HiddenLayer | None:
    """The hidden layer of every bottom behind an upload; None: all are linear.

    Raises:
        NotAttacked: for other bottoms, and for bottoms that differ.
    """
    depths = [seen.depths.get(m) for m in read.parties]
    layers = {depth.hidden for depth in depths if depth is not None}
    if None in depths:
        raise NotAttacked("a bottom is neither linear nor an MLP with one hidden layer of ReLU or tanh")
    if len(layers) > 1:
        raise NotAttacked("the bottoms behind a sum have different layers")
    return layers.pop()


def served_steps(seen: Seen) -> Iterator[tuple[ServedSteps, Readable]]:
    """The steps behind each upload that the server can read."""
    if seen.recipe is None:
        raise NotAttacked("the optimiser is none of SGD, Adam and AdamW, or parties have settings of their own")
    gradients = {
        (entry.round, entry.receiver): entry
        for entry in seen.transcript.find(GRADIENTS, "down")
        if entry.receiver is not None
    }
    if not any(True for _ in seen.transcript.find(GRADIENTS, "down")):
        readable = (True for kind in (EMBEDDINGS, AGGREGATES) for _ in seen.transcript.find(kind))
        if seen.attacker.server and any(readable):
            raise NotAttacked("no gradient is sent from which the attack could start")
        raise NothingSeen("no gradient is sent")

    attackers = seen.attacker.parties
    rule, rate = seen.recipe
    in_the_clear = [entry for entry in seen.transcript.find(EMBEDDINGS, "up") if entry.sender not in attackers]
    aggregates = list(seen.transcript.find(AGGREGATES, "own"))
    senders = sorted({entry.sender for entry in in_the_clear if entry.sender is not None})
    if in_the_clear:
        uploads: Sequence[Readable] = [Readable((sender,), seen.widths[sender]) for sender in senders]
    else:
        uploads = sums_of(seen.aggregator, seen.widths)
    for upload in uploads:
        entries = in_the_clear if upload.outside is None else aggregates
        others = [party for party in upload.parties if party not in attackers]
        steps = tuple(_steps(entries, gradients, upload, others, rate))
        if steps:
            depths = [seen.depths.get(party) for party in upload.parties]
            columns = tuple(0 if depth is None else depth.columns for depth in depths)
            yield ServedSteps(steps, rule, seen.records, columns), upload


def _steps(
    entries: Sequence[Entry],
    gradients: Mapping[tuple[int, int], Entry],
    upload: Readable,
    others: Sequence[int],
    rate: float,
) -> Iterator[ServedStep]:
    """The steps from which all parties of an upload have learnt; ``others`` are those that are no attackers."""
    for entry in entries:
        if upload.outside is None and entry.sender not in upload.parties:
            continue
        answers = [gradients.get((entry.round, party)) for party in others]
        answer = answers[0] if answers else None
        if answer is None or None in answers:
            continue
        if not len(entry.ids) or len(answer.value) != len(entry.ids):
            continue
        value = entry.value.double()
        gradient = answer.value.double()
        if upload.outside is not None:
            value = value[:, upload.outside] / upload.scale
            gradient = gradient[:, upload.inside[0]]
        yield ServedStep(entry.ids, value, gradient, rate)


def without(columns: Tensor, known: Tensor) -> Tensor:
    """(n, d') ``columns`` less those among them that ``known`` (n, k) is also made of.

    Both are linear in columns of the same records. Where a column is in both, some direction of the one equals some
    direction of the other for every record. ``columns`` are up to a rotation, so that the columns that are left are
    orthogonal to these directions. Noise leaves no such direction, and then nothing is taken out.
    """
    one, other = _basis(columns), _basis(known)
    both = torch.cat([one / one.norm(), other / other.norm()], 1)
    _, sizes, directions = torch.linalg.svd(both, full_matrices=False)
    common = directions[sizes < EMPTY * sizes[0], : one.shape[1]]
    shared = torch.linalg.svd(common, full_matrices=False).Vh
    result: Tensor = one - one @ shared.T @ shared
    return result


def _basis(columns: Tensor) -> Tensor:
    """(n, r) the centred columns in their r directions that are not empty."""
    columns = columns - columns.mean(0)
    _, sizes, directions = torch.linalg.svd(columns, full_matrices=False)
    basis: Tensor = columns @ directions[sizes > EMPTY * sizes[0]].T
    return basis
