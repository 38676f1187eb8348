"""Whose embeddings follow from hidden sums of one record over different parties: one sum minus another."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.types import Parties, Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING = 1e-6  # of a projection of vectors of zeros and ones


class SummedSets:
    """Over which parties each record has been summed, by stage.

    The unknowns of a record are the embeddings of the groups of parties. A sum over some of them is a vector of zeros
    and ones. The embedding of a group follows from sums of unchanged embeddings if its unit vector is in their span.

    Guarantee: exact linear algebra over the sets that have been entered.
    Not guaranteed: what colluding parties add; how far training has moved the embeddings between two sums, which is the
        error of what follows.

    Attributes:
        network: a hash of the first weights of a party of a federation; "": not known yet.
        run: of the ledger of the party's seat; "": there is none.
        loads: how often a checkpoint was loaded.
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[Parties, NDArray[np.bool_]]] = {}
        self.network = self.run = ""
        self.loads = 0

    def enter(self, stage: str, parties: Iterable[int], ids: Tensor) -> None:
        """A sum over these parties, for the records at the positions ``ids``."""
        members = tuple(sorted(parties))
        if not members or not len(ids):
            return
        of_stage = self._records.setdefault(str(stage), {})
        summed = of_stage.get(members, np.zeros(0, np.bool_))
        if (lacking := int(ids.max()) + 1 - len(summed)) > 0:
            summed = np.pad(summed, (0, max(lacking, len(summed))))
        summed[ids.cpu().numpy()] = True
        of_stage[members] = summed

    def drop(self, stage: str) -> None:
        """Forget the sums of a stage."""
        self._records.pop(str(stage), None)

    def records(self) -> int:
        """The number of records that have been summed in the stage that has the most."""
        most = 0
        for of_stage in self._records.values():
            places = [np.flatnonzero(summed) for summed in of_stage.values()]
            most = max(most, len(np.unique(np.concatenate(places))))
        return most

    def exposed(self, roster: Roster) -> dict[Parties, int]:
        """By group, the number of records of which its embedding follows from sums, over all stages."""
        counts: dict[Parties, int] = {}
        for of_stage in self._records.values():
            if len(of_stage) < 2:
                continue
            sums = np.array([[float(set(group) <= {*members}) for group in roster.groups] for members in of_stage])
            longest = max(map(len, of_stage.values()))
            seen = np.zeros((longest, len(of_stage)), dtype=np.bool_)
            for number, summed in enumerate(of_stage.values()):
                seen[: len(summed), number] = summed
            patterns, records = np.unique(seen, axis=0, return_counts=True)
            for pattern, count in zip(patterns, records, strict=True):
                for number in _in_span(sums[pattern]) if pattern.sum() > 1 else ():
                    group = roster.groups[number]
                    counts[group] = counts.get(group, 0) + int(count)
        return dict(sorted(counts.items()))

    def state(self) -> dict[str, Any]:
        """Tensors and lists, for a checkpoint."""
        sums = {
            stage: [[list(who), torch.from_numpy(summed)] for who, summed in sets.items()]
            for stage, sets in self._records.items()
        }
        return {"sums": sums, **self.named()}

    def named(self) -> dict[str, Any]:
        """The state without the sums: by which network and ledger they are found."""
        return {"network": self.network, "run": self.run}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        sums = state.get("sums", {})
        self._records = {
            stage: {tuple(who): summed.numpy().copy() for who, summed in sets} for stage, sets in sums.items()
        }
        self.network = str(state.get("network", ""))
        self.run = str(state.get("run", ""))
        self.loads += 1


def _in_span(sums: "NDArray[np.float64]") -> list[int]:
    """The unit vectors that are linear combinations of the rows: the projection onto their span leaves them."""
    projection = np.linalg.pinv(sums) @ sums
    return [int(number) for number in np.flatnonzero(projection.diagonal() > 1 - _ROUNDING)]


def in_words(exposed: Mapping[Parties, int]) -> str | None:
    """What has been given away, for the summary; None: nothing.

    Examples:
        >>> in_words({(2,): 96})
        "party 2's embeddings of 96 records can be computed from sums with and without it, up to what training moved"
    """
    if not exposed:
        return None
    said = []
    for group, records in exposed.items():
        who = f"party {group[0]}'s" if len(group) == 1 else f"the embeddings of group {list(group)}:"
        said.append(f"{who} embeddings of {records:,} records" if len(group) == 1 else f"{who} {records:,} records")
    it = "it" if len(exposed) == 1 else "them"
    return f"{', '.join(said)} can be computed from sums with and without {it}, up to what training moved"
