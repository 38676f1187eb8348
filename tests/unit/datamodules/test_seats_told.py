"""A process of a federation reads its table twice, and tells once what it does with it."""

from collections import Counter

import pytest

from .test_seats import PARTIES, arranged, federation


@pytest.mark.parametrize(("label_party", "labels_at"), [("labels", None), ("bank", 0)])
def test_each_process_tells_once_what_it_reads(tmp_path, label_party, labels_at, told):
    paths, settings = arranged(tmp_path, "auto", False, label_party)
    federation(tmp_path, paths, labels_at, **settings)
    times = Counter(told)
    assert sum("joined records" in text for text in times) >= len(PARTIES)
    assert max(times.values()) == 1
