import os
import sys

from lightning_vfl.study import ready


def test_a_worker_ends_with_its_parent_and_has_imported_what_runs_need(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(ready, "end_with_parent", lambda *given: told.append(given))
    (tmp_path / "needed_by_runs.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    ready.get_ready(os.getpid(), "lock", "needed_by_runs")
    assert told == [(os.getpid(), "lock")]
    assert sys.modules.pop("needed_by_runs").VALUE == 3
