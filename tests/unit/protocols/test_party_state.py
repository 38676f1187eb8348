"""The declared state of parties: it is resumed, it changes with the party's own rounds alone, or it is refused."""

import runpy
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_vfl import CascadeVFL, SplitVFL
from lightning_vfl.aggregators import Mean, PartyState
from lightning_vfl.callbacks import PartyDropout
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Stale
from lightning_vfl.rounds.kept_state import KeptState
from lightning_vfl.wire import RoundState
from tests.subjects import Blobs, same, split, trainer

TopK = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "own_compression.py"))["TopK"]


def fit(folder, ckpt_path=None, saver=None, aggregator=None, **settings):
    module = split(aggregator or TopK(2), dropout=True, allow_embeddings_by_subtraction=True, **settings)
    callbacks = [PartyDropout(0.3, 0.3), *([saver] if saver else [])]
    t = trainer(folder, max_epochs=3, callbacks=callbacks, enable_checkpointing=saver is not None)
    t.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=ckpt_path)
    return module, t


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    saver = ModelCheckpoint(
        tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False, monitor=None
    )
    whole, t = fit(tmp_path, saver=saver)
    assert all(table["error"].any() for table in whole.kept.tables.values())
    for step in (4, 14):
        path = tmp_path / f"step={step}.ckpt"
        resumed, again = fit(tmp_path, path)
        assert same(whole.state_dict(), resumed.state_dict())
        assert same(whole.memory.state(), resumed.memory.state())
        assert same(t.optimizers[0].state_dict(), again.optimizers[0].state_dict())
    content = torch.load(path, weights_only=True)
    assert content["lightning_vfl"]["memory"].keys() == {"0", "1", "2"}
    content["lightning_vfl"]["memory"] = {}  # without the state, the run would go on otherwise
    torch.save(content, path)
    assert not same(whole.state_dict(), fit(tmp_path, path)[0].state_dict())


def test_the_compressed_uploads_train_and_are_counted(tmp_path):
    module = SplitVFL(TopK(2), width=5, seed=0)
    t = trainer(tmp_path, max_epochs=15)
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert float(t.callback_metrics["val/accuracy"]) > 0.8
    assert module.books.meter.total("up").tolist() == [15 * 54 * (2 * 2 + 4)] * 3


def test_evaluation_changes_no_state(tmp_path):
    module, t = fit(tmp_path, evaluate="protocol")
    before = {m: table["error"].clone() for m, table in module.kept.tables.items()}
    t.test(module, datamodule=Blobs(batch_size=10), verbose=False)
    assert all(torch.equal(table["error"], before[m]) for m, table in module.kept.tables.items())


class Other(PartyState):
    def empty(self, records, width):
        return {"error": torch.zeros(records, 1)}


def test_a_state_of_another_form_is_refused():
    kept, other = KeptState(TopK(2).party_state), KeptState(Other())
    kept.prepare(3, [2], torch.device("cpu"))
    other.prepare(3, [2], torch.device("cpu"))
    with pytest.raises(
        ConfigurationError, match=r"keeps the state {'error': \(3, 1\)} of party 0, .* {'error': \(3, 2"
    ):
        kept.load(other.state())


def test_a_round_changes_the_state_when_it_is_over_and_only_for_the_included():
    tables = {m: {"error": torch.zeros(4, 2), "count": torch.zeros(())} for m in (0, 1)}
    state, rows = RoundState(tables), torch.tensor([3, 1])
    for m in (0, 1):
        state.write(m, "error", torch.ones(2, 2), rows)
        state.write(m, "count", torch.tensor(5.0))
        state.read(m, "error").fill_(7.0)
        assert not state.read(m, "error", rows).any()
    state.settle(torch.tensor([True, False]))
    assert tables[0]["error"].tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert float(tables[0]["count"]) == 5.0
    assert not tables[1]["error"].any()
    state.settle(torch.tensor([True, True]))  # nothing is left over
    assert not tables[1]["error"].any()
    with pytest.raises(ValueError, match=r"the state 'error' of party 0 has the shape \(2, 2\); got \(2, 3\)"):
        state.write(0, "error", torch.ones(2, 3), rows)


class WithoutAWire(Mean):
    party_state = Other()


def test_what_cannot_keep_a_state_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="WithoutAWire declares a party_state, but no messages are sent"):
        fit(tmp_path, aggregator=WithoutAWire())
    with pytest.raises(ConfigurationError, match="TopK keeps a state for each party, which cascade events"):
        CascadeVFL(TopK())
    with pytest.raises(ConfigurationError, match="Stale replaces single embeddings, but TopK hides"):
        fit(tmp_path, missing=Stale())
    monkeypatch.setattr(SplitVFL, "joint", True)
    module = split(TopK(2))
    module.build_for(Blobs())
    with pytest.raises(ConfigurationError, match=r"TopK keeps a state for each record, .*; train in one process"):
        module._refuse_state("TopK")
