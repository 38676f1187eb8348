"""Law: a batch is one gather, and what each party gets equals naive indexing of its own columns."""

from math import prod

import numpy as np
import torch

from lightning_vfl.datamodules import VerticalRecords
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.types import Joint

N, SHAPES = 20, ((3,), (1, 2, 4), (1,))
OWN = [torch.arange(N * prod(s), dtype=torch.float32).reshape(N, *s) + 1000 * m for m, s in enumerate(SHAPES)]
LABELS = torch.arange(N) % 3
PRESENT = torch.arange(3 * N).reshape(N, 3) % 4 > 0
RECORDS = VerticalRecords(torch.cat([x.flatten(1) for x in OWN], 1), SHAPES, LABELS, np.arange(N) + 100, PRESENT)
IDS = torch.tensor([7, 0, 19, 7])


def test_rows_equal_naive_indexing():
    assert len(RECORDS) == N
    for got, own in zip(RECORDS.rows(IDS), OWN, strict=True):
        assert torch.equal(got, torch.stack([own[i] for i in IDS.tolist()]))


def test_parties_are_views_of_one_gathered_tensor():
    rows = RECORDS.rows(IDS)
    assert len({part.untyped_storage().data_ptr() for part in rows}) == 1
    assert rows[0].untyped_storage().nbytes() == len(IDS) * sum(RECORDS.widths) * 4


def test_no_rows_keep_their_shapes():
    assert [tuple(part.shape) for part in RECORDS.rows(IDS[:0])] == [(0, 3), (0, 1, 2, 4), (0, 1)]


def test_a_batch_carries_labels_presence_and_the_request():
    batch = RECORDS[Request(IDS, None, Joint(0, 4, (0, 1)))]
    assert batch.labels.tolist() == [LABELS[i].item() for i in IDS]
    assert batch.present.tolist() == [PRESENT[i].tolist() for i in IDS]
    assert torch.equal(batch.record_ids, IDS)
    assert batch.joint == Joint(0, 4, (0, 1))
    assert batch.event is None


def test_a_column_of_ids_for_every_participant():
    ids = torch.tensor([[7, 0, 19, 3], [0, 5, 5, 3]])
    batch = RECORDS[Request(ids, None, None)]
    for party, own in enumerate(OWN):
        assert torch.equal(batch.features[party], torch.stack([own[i] for i in ids[:, party].tolist()]))
    assert torch.equal(batch.record_ids, ids)
    assert (batch.labels, batch.present, batch.event, batch.joint) == (None,) * 4


def test_labels_and_presence_may_be_absent():
    batch = VerticalRecords(RECORDS.features, SHAPES, None, np.arange(N))[Request(IDS, None, None)]
    assert batch.labels is None
    assert batch.present is None
