"""Law: a batch is one gather, and what each party gets equals naive indexing of its own columns."""

import pickle
from math import prod

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import VerticalRecords
from lightning_vfl.datamodules.records.feature_stores import ColumnsInMemory
from lightning_vfl.datamodules.records.number_files import NumberFile
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.datamodules.records.work_folders import WorkFolder
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


def stored(table, folder):
    """The same table in a file, of which at most two records are read before it is mapped anew."""
    file = NumberFile(WorkFolder(folder), "table", np.float32, table.shape[1:])
    for block in torch.split(table, 7):
        file.put(block.numpy())
    return file.mapped(at_most=2)


@pytest.mark.parametrize("in_file", [False, True])
def test_records_at_places_of_a_table_in_memory_and_in_a_file(in_file, tmp_path):
    places = torch.tensor([19, 3, 3, 0, 11])
    table = stored(RECORDS.table, tmp_path) if in_file else RECORDS.table
    records = VerticalRecords(table, SHAPES, LABELS[places], np.arange(5), places=places)
    for chosen in (torch.tensor([4, 0, 4]), torch.arange(5)):
        for party, own in enumerate(OWN):
            expected = torch.stack([own[places[i]] for i in chosen.tolist()])
            assert torch.equal(records.rows(chosen)[party], expected)
            assert torch.equal(records.features_of(party, chosen), expected)
            assert torch.equal(records.only(chosen.numpy()).rows(torch.arange(len(chosen)))[party], expected)
    assert torch.equal(records.features, torch.cat([own[places].flatten(1) for own in OWN], 1))
    assert torch.equal(pickle.loads(pickle.dumps(records)).features, records.features)


def test_columns_that_are_put_one_by_one_are_turned_into_records(tmp_path):
    table = torch.arange(37.0 * 50).reshape(50, 37)  # more than two lots of columns
    memory, file = ColumnsInMemory((50, 37)), NumberFile(WorkFolder(tmp_path), "columns", np.float32, (50,))
    for column in table.T.double().numpy():
        memory.put(column)
        file.put(column)
    assert torch.equal(memory.turned(), table)
    assert np.array_equal(file.turned().rows(np.arange(50)), table)


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
