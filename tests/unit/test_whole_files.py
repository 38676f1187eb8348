"""A file is the old one or the new one, whatever happens while it is written."""

import os
import stat

import pytest

from lightning_vfl.whole_files import whole_file


def in_a_process(work):
    """Run this in a process of its own, which ends without cleaning up; its exit status."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_new_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "folder" / "one.bin"
    for content, before in ((b"old", None), (b"new", b"old")):
        with whole_file(path) as file:
            file.write(content)
            file.flush()
            assert (path.read_bytes() if path.exists() else None) == before
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["one.bin"]


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "one.bin"
    path.write_bytes(b"old")

    def ends_early():
        with whole_file(path) as file:
            file.write(b"half of the ne")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ends_early()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["one.bin"]


def test_a_killed_process_leaves_the_old_file_and_stops_nobody(tmp_path):
    path = tmp_path / "one.bin"
    path.write_bytes(b"old")

    def killed():
        with whole_file(path) as file:
            file.write(b"half of the ne")
            file.flush()
            os._exit(7)

    assert in_a_process(killed) == 7
    assert path.read_bytes() == b"old"
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["one.bin"]


def test_who_may_read_it(tmp_path):
    path = tmp_path / "secret.bin"
    with whole_file(path, 0o600):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
