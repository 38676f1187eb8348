"""Laws: what is streamed is bit for bit what memory would hold, and nothing of it stays."""

import pickle
from fractions import Fraction
from itertools import chain
from math import sqrt

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import StreamedRecords, VerticalRecords
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.datamodules.records.streamed_records import Columns, match_moments
from lightning_vfl.types import Event, Joint

N, F, SHAPES = 12, 10, ((3,), (1, 2, 2), (1,))
BYTES = torch.from_numpy(np.random.Generator(np.random.PCG64(1)).integers(0, 256, (20, F), dtype=np.uint8))
PLACES = torch.tensor([4, 19, 0, 7, 3, 11, 2, 18, 5, 9, 10, 1])  # of the records in the source
POSITIONS = torch.tensor([9, 0, 4, 2, 1, 3, 8, 7])
COLUMNS = Columns(POSITIONS, torch.linspace(0.1, 0.9, 8), torch.linspace(0.5, 3.0, 8))
LABELS = torch.arange(N) % 3
HOLDERS = torch.arange(N) % 2
PRESENT = torch.arange(3 * N).reshape(N, 3) % 4 > 0
IDS = torch.tensor([7, 0, 11, 7])


class Table:
    """A source that counts what is read."""

    def __init__(self) -> None:
        self.read_at: list[list[int]] = []

    def __len__(self) -> int:
        return len(BYTES)

    def read(self, places: torch.Tensor) -> torch.Tensor:
        self.read_at.append(places.tolist())
        return BYTES[places]


def streamed(present=None) -> StreamedRecords:
    return StreamedRecords(Table(), PLACES, COLUMNS, SHAPES, LABELS, np.arange(N) + 100, present, HOLDERS)


def in_memory(present=None) -> VerticalRecords:
    features = (BYTES[PLACES].float() / 255)[:, POSITIONS].sub(COLUMNS.shift).div(COLUMNS.scale)
    if present is not None:
        features[~present.repeat_interleave(torch.tensor([3, 4, 1]), dim=1)] = 0.0
    return VerticalRecords(features, SHAPES, LABELS, np.arange(N) + 100, present, HOLDERS)


def same(a, b) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
def test_rows_are_those_that_memory_would_hold(present):
    got, expected = streamed(present), in_memory(present)
    assert len(got) == N
    assert same(got.rows(IDS), expected.rows(IDS))
    assert same(got.rows(IDS[:0]), expected.rows(IDS[:0]))
    for party in range(3):
        assert torch.equal(got.features_of(party, IDS), expected.features_of(party, IDS))
    assert len({part.untyped_storage().data_ptr() for part in got.rows(IDS)}) == 1


@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
@pytest.mark.parametrize("ids", [IDS, torch.tensor([[7, 0, 11, 3], [0, 5, 5, 3]])], ids=["joint", "own"])
def test_batches_are_those_that_memory_would_hold(ids, present):
    request = Request(ids, Event(1, 2, 3, 0.0, 1.0, ()), Joint(0, 4, (0, 1)))
    got, expected = streamed(present)[request], in_memory(present)[request]
    assert same(got.features, expected.features)
    for a, b in zip(got[1:], expected[1:], strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
def test_only_some_records(present):
    chosen = np.array([2, 3, 9])
    got, expected = streamed(present).only(chosen), in_memory(present).only(chosen)
    ids = torch.tensor([2, 0])
    assert same(got.rows(ids), expected.rows(ids))
    assert got.ids.tolist() == expected.ids.tolist() == [102, 103, 109]
    assert torch.equal(got.labels, expected.labels)
    assert torch.equal(got.label_holders, HOLDERS[chosen])
    assert (got.present is None) == (expected.present is None)
    assert present is None or torch.equal(got.present, PRESENT[chosen])
    everybody = torch.where(torch.arange(N)[:, None] == 3, True, PRESENT)
    assert streamed(everybody).only(np.array([3])).present is None


def test_records_are_read_when_they_are_asked_for_and_only_then():
    records = streamed()
    assert records.source.read_at == []
    records.rows(IDS)
    records.features_of(2, IDS[:2])
    records.only(np.array([1, 5])).rows(torch.tensor([1]))
    assert records.source.read_at == [[18, 4, 1, 18], [18, 4], [11]]


def test_records_go_to_worker_processes():
    assert same(pickle.loads(pickle.dumps(streamed(PRESENT))).rows(IDS), streamed(PRESENT).rows(IDS))


def exactly(rows: list[int], column: int) -> tuple[float, float]:
    """Mean and deviation in exact arithmetic."""
    values = [Fraction(int(BYTES[row, column]), 255) for row in rows]
    mean = sum(values) / len(values)
    return float(mean), sqrt(sum((value - mean) ** 2 for value in values) / len(values))


@pytest.mark.parametrize("at_once", [1, 5, 32])
def test_two_records_have_the_mean_and_the_deviation_of_many(at_once, monkeypatch):
    monkeypatch.setattr("lightning_vfl.datamodules.records.streamed_records._AT_ONCE", at_once)
    owners = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    source = Table()
    two = match_moments(source, PLACES, POSITIONS, owners, PRESENT)
    assert list(chain.from_iterable(source.read_at)) == PLACES.tolist()
    for column, (position, owner) in enumerate(zip(POSITIONS.tolist(), owners.tolist(), strict=True)):
        mean, deviation = exactly(PLACES[PRESENT[:, owner]].tolist(), position)
        assert two[:, column].mean().item() == pytest.approx(mean, rel=1e-14)
        assert two[:, column].std(correction=0).item() == pytest.approx(deviation, rel=1e-12)


def test_what_never_varies_has_no_deviation():
    class Constant(Table):
        def read(self, places: torch.Tensor) -> torch.Tensor:
            return torch.full((len(places), F), 77, dtype=torch.uint8)

    two = match_moments(
        Constant(), PLACES, POSITIONS, torch.zeros(8, dtype=torch.int64), torch.ones(N, 1, dtype=torch.bool)
    )
    assert torch.equal(two[0], two[1])
    assert two[0].unique().tolist() == [77 / 255]
