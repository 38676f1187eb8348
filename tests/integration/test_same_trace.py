"""The same seed gives the same faults to every protocol and to every process."""

import pandas as pd

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.callbacks import Crashes, PartyDropout, Stragglers, TraceRecorder
from lightning_vfl.missing import Stale
from lightning_vfl.waiting import Deadline
from tests.subjects import Blobs, split, trainer


def injectors():
    return [
        Stragglers(),
        PartyDropout(0.4, 0.3, announced=False),
        Crashes("guests", 0.3, 0.5),
        Crashes("connections", 0.1, 0.5),
    ]


def recorded(folder, name, module):
    path = folder / f"{name}.csv"
    recorder = TraceRecorder(str(path))
    trainer(folder, callbacks=[*injectors(), recorder]).fit(module, datamodule=Blobs(batch_size=10))
    return pd.read_csv(path)


def test_different_protocols_meet_the_identical_trace(tmp_path):
    waits = split(Mean(), waiting=Deadline(0.2))
    reuses = split(Concat(), waiting=Deadline(0.5), missing=Stale())
    hurries = AsyncVFL(Mean(), width=5, seed=0)
    tables = [recorded(tmp_path, str(n), module) for n, module in enumerate((waits, reuses, hurries))]
    shortest = min(len(table) for table in tables)
    assert shortest >= 3 * 2 * 12  # parties, requests a round, rounds
    assert not tables[0]["up"].all()
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table[:shortest], tables[0][:shortest], check_exact=True)


def test_another_seed_meets_another(tmp_path):
    modules = [SplitVFL(Mean(), width=5, seed=seed, waiting=Deadline(0.2)) for seed in (0, 1)]
    one, other = (recorded(tmp_path, str(module.seed), module) for module in modules)
    assert len(one) == len(other)
    assert not one.equals(other)
