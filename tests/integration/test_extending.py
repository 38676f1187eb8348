"""The code printed in docs/extending.md, run as printed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.subjects import Blobs, trainer

PAGE = (Path(__file__).parents[2] / "docs/extending.md").read_text()
BLOCKS = dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def printed(block, name):
    space = {"__name__": f"printed_{block}"}
    exec(compile(BLOCKS[block], f"extending.md:{block}", "exec"), space)
    return space[name]


def test_every_block_of_the_page_is_run_and_short():
    assert len(re.findall("```python", PAGE)) == len(BLOCKS) == 5
    assert all(code.count("\n") < 40 for code in BLOCKS.values())


@pytest.mark.parametrize("trim", [0, 1])
def test_the_aggregator(tmp_path, trim):
    made = printed("aggregator", "TrimmedMean")(trim)
    h = tuple(torch.full((2, 3), float(x)) for x in (1, 2, 90))
    assert made.plain(h, Roll.everyone(3))[0, 0] == (2.0 if trim else 31.0)
    module = SplitVFL(made, width=5, seed=0)
    t = trainer(tmp_path, max_epochs=15)
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert float(t.callback_metrics["val/accuracy"]) > 0.8
    assert module.books.meter.total("up").tolist() == [15 * 54 * 5 * 4] * 3


def test_the_masked_sum(tmp_path):
    """It is the sum of the signs, in 8 bits a number, and it trains."""
    made = printed("masked", "MaskedVote")()
    h = tuple(torch.randn(4, 5, generator=torch.Generator().manual_seed(m)).requires_grad_() for m in range(3))
    roster, rows, names = Roster.singles(3), Rows(torch.arange(4), 0, 4), RoundNames(0, "fit", 0)
    bound, roll = made.among(roster), Roll.everyone(3)
    view = PartyView(names, roster, (0, 1, 2), roll.called, rows)
    view = replace(view, memory=open_round(bound.opening, bound.opening.empty_memory(view), view))
    exchange = Exchange(bound, Embeddings(h), view, ServerView(names, roster, rows, roll, (5,) * 3))
    value = exchange.run()
    assert torch.equal(value, torch.stack(h).sign().sum(0))
    assert torch.equal(value, bound.wire.clear(Embeddings(h), view, roll).value)
    assert all(torch.equal(g, torch.ones(4, 5)) for g in torch.autograd.grad(value.sum(), h))
    module = SplitVFL(made, width=5, seed=0)
    t = trainer(tmp_path, max_epochs=15)
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert float(t.callback_metrics["val/accuracy"]) > 0.8
    assert module.books.meter.total("up").tolist() == [15 * 54 * 5] * 3


def test_the_wire(tmp_path):
    made = printed("wire", "RoundedMean")()
    module = SplitVFL(made, width=5, seed=0)
    t = trainer(tmp_path, max_epochs=15)
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert float(t.callback_metrics["val/accuracy"]) > 0.8
    assert module.books.meter.total("up").tolist() == [15 * 54 * 5 * 4] * 3
    h = tuple(torch.full((2, 5), x) for x in (0.03, 0.04, 1.0))
    roster, rows, roll = Roster.singles(3), Rows(torch.arange(2), 0, 2), Roll.everyone(3)
    views = RoundNames(0, "fit", 0), roster
    view, server = PartyView(*views, (0, 1, 2), roll.called, rows), ServerView(*views, rows, roll, (5,) * 3)
    value = Exchange(made, Embeddings(h), view, server).run()
    assert torch.equal(value, torch.full((2, 5), (0.0 + 1 / 16 + 1.0) / 3))


def test_the_protocol(tmp_path):
    module = printed("protocol", "Committee")(Mean(), width=5, seed=0)
    t = trainer(tmp_path, max_epochs=15)
    data = Blobs(batch_size=10)
    t.fit(module, datamodule=data)
    assert t.test(module, datamodule=data, verbose=False)[0]["test/accuracy"] > 0.8
    assert module.books.rounds["fit"] == 15 * 6
    assert module.books.meter.total("up").tolist() == [15 * 54 * 5 * 4] * 3
    assert module.books.meter.total("down").tolist() == module.books.meter.total("up").tolist()
    assert module.standing()["progress/passes"] == 15 * 6 / 5  # a pass has 5 whole batches
    assert module.clock.seconds > 0


def test_the_fault(tmp_path):
    module = SplitVFL(Mean(), width=5, seed=0)
    injector = FaultInjector(printed("fault", "Weekends")([1]))
    trainer(tmp_path, max_epochs=7, callbacks=[injector]).fit(module, datamodule=Blobs(batch_size=9))
    assert module.books.rounds["fit"] == 7 * 6
    rounds = [7 * 6, 7 * 6 * 5 // 7, 7 * 6]
    assert module.books.meter.total("up").tolist() == [n * 9 * 5 * 4 for n in rounds]


def test_the_first_page_of_the_site_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/index.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    space = {"__name__": "index"}
    exec(compile(code, "index.md", "exec"), space)
    assert space["trainer"].global_step > 0
