"""Why one head was behind LASER's heads with most parties absent: one change at a time, on MNIST in 4 strips.

Each row changes one thing of task sampling with one subset of each size: what the top is told, the weights of the
subsets, the width of the top, the learning rate or the number of epochs. The setting is that of the study ``mnist`` of
``benchmarks.absent``, whose table has the rows with more subsets.

    python -m benchmarks.absent_causes [--out DIR] [--seeds 3] [--methods NAMES]

Data sets are read from ``$LIGHTNING_VFL_DATA``.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.absent import METHODS, STUDIES, Options, runs, store
from lightning_vfl import SplitVFL
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, RoundNames, VerticalBatch


class ToldVFL(SplitVFL):
    """SplitVFL whose top is told who is there: a learned vector of each party that is there is added to its input.

    In front of the top's first linear layer this is the same as presence indicators joined to the aggregate, and the
    same as learned vectors for absent parties.
    """

    there: Tensor

    def build(self) -> None:
        super().build()
        self.tell = nn.Linear(self.roster.parties, self.top_width(), bias=False)

    def run_round(
        self,
        batch: VerticalBatch,
        names: RoundNames,
        roll: Roll,
        policy: MissingPolicy,
        at_server: VerticalBatch | None = None,
    ) -> tuple[Tensor, Exchange]:
        rows = at_server or batch
        self.there = roll.holders(rows.record_ids, rows.present)
        return super().run_round(batch, names, roll, policy, at_server)

    def output_of(
        self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None, columns: Tensor | None = None
    ) -> Tensor:
        self.there = roll.holders(h[0], present)
        return super().output_of(h, roll, present, columns)

    def join(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        told: Tensor = self.tell(self.there.to(value.dtype))
        return super().join(value, columns) + told

    def owners(self) -> Iterator[nn.Module]:
        yield from self.bottoms.parties
        yield nn.ModuleList([self.top, self.tell])


ONE = METHODS["task sampling"]
CAUSES: dict[str, Options] = {
    "told who is there": (*ONE, "--model=benchmarks.absent_causes.ToldVFL"),
    "weights of records": (*ONE, "--model.subsets.weights=records"),
    "top of 256 units": (*ONE, "--model.top.hidden=[256]"),
    "twice the learning rate": (*ONE, "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.002"),
    "twice the epochs": (*ONE, "--trainer.max_epochs=14"),
    "LASER heads, twice the epochs": (*METHODS["LASER heads"], "--trainer.max_epochs=14"),
}


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("docs/results/tables"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=[*CAUSES])
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = runs("causes", STUDIES["mnist"][0], CAUSES, given.seeds, given.methods)
    store(rows, given.out / "absent_causes.csv", given.methods, [*CAUSES])


if __name__ == "__main__":
    main()
