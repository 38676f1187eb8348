"""A checkpoint is the old one or the new one, whenever the process is killed."""

import errno
import os

import pytest
import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.io import TorchCheckpointIO

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.loading import WholeCheckpoints
from tests.subjects import Blobs, same, split, trainer
from tests.unit.test_whole_files import in_a_process


def test_a_process_that_is_killed_while_it_writes_leaves_the_checkpoint_of_before(tmp_path):
    path, t = tmp_path / "last.ckpt", trainer(tmp_path, max_epochs=1)
    t.fit(split(), datamodule=Blobs(batch_size=6))
    t.save_checkpoint(path)
    before = torch.load(path, weights_only=True)

    def killed():
        os.fsync = lambda _: os._exit(7)  # all is written, nothing is renamed
        t.fit_loop.epoch_progress.current.completed += 1
        t.save_checkpoint(path)

    assert in_a_process(killed) == 7
    assert same(torch.load(path, weights_only=True)["state_dict"], before["state_dict"])
    trainer(tmp_path, max_epochs=2).fit(split(), datamodule=Blobs(batch_size=6), ckpt_path=path)


def test_a_checkpoint_is_written_in_its_own_folder(tmp_path, monkeypatch):
    """A move from the folder of temporary files would be a copy, where that is another file system."""
    monkeypatch.setattr("tempfile.mkstemp", lambda *_, **__: pytest.fail("a temporary file elsewhere"))
    t = trainer(tmp_path, max_epochs=1)
    t.fit(split(), datamodule=Blobs(batch_size=6))
    t.save_checkpoint(tmp_path / "new" / "one.ckpt")
    assert os.listdir(tmp_path / "new") == ["one.ckpt"]
    assert (tmp_path / "new" / "one.ckpt").stat().st_mode & 0o777 == 0o600  # its owner's alone
    assert WholeCheckpoints().load_checkpoint(tmp_path / "new" / "one.ckpt", weights_only=True)["global_step"] == 9
    t.strategy.remove_checkpoint(tmp_path / "new" / "one.ckpt")
    assert os.listdir(tmp_path / "new") == []


def test_a_full_disk_is_one_line_and_spoils_nothing(tmp_path, monkeypatch):
    path = tmp_path / "one.ckpt"
    files = WholeCheckpoints()
    files.save_checkpoint({"step": 1}, path)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigurationError, match=r"one.ckpt cannot be written \(No space left on device\); make room"):
        files.save_checkpoint({"step": 2}, path)
    assert files.load_checkpoint(path, weights_only=True) == {"step": 1}
    assert os.listdir(tmp_path) == ["one.ckpt"]


class Own(CheckpointIO):
    """Keeps nothing."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.path = path

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        return {}

    def remove_checkpoint(self, path):
        return


def test_another_way_to_write_checkpoints_is_kept(tmp_path):
    own = Own()
    t = trainer(tmp_path, max_epochs=1, plugins=[own])
    t.fit(split(), datamodule=Blobs(batch_size=6))
    t.save_checkpoint(tmp_path / "one.ckpt")
    assert t.strategy.checkpoint_io is own
    assert own.path == tmp_path / "one.ckpt"
    assert not list(tmp_path.glob("*.ckpt"))


def test_options_of_a_storage_are_told_to_lightning(tmp_path):
    with pytest.raises(TypeError, match="storage_options"):
        WholeCheckpoints().save_checkpoint({}, tmp_path / "one.ckpt", storage_options={})
    assert isinstance(trainer(tmp_path).strategy.checkpoint_io, TorchCheckpointIO)
