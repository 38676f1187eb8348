"""Crashes in decoupled training, iteration by iteration: who keeps what, and which request a fault belongs to."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_vfl.datamodules import LimitedOverlap
from lightning_vfl.simulation import Crashes
from lightning_vfl.simulation.faults import FaultModel, Faults, RoundOutcome
from tests.subjects import Blobs, same
from tests.unit.protocols.decoupled.decoupled_by_hand import (
    GUESTS,
    OPTIMIZER,
    STEPS,
    B,
    N,
    by_hand,
    decoupled,
    fit,
    tables_of,
    weights_of,
)

EVERYTHING = (Crashes("connections", 0.4, 0.3), Crashes("hosts", 0.4, 0.4), Crashes("guests", 0.4, 0.4))


def parts(module: Any) -> dict[str, list[torch.nn.Parameter]]:
    named = {f"guest {m}": [module.bottoms.parties[m], module.guest_partners.parties[m]] for m in range(GUESTS)}
    named |= {f"host {h}": [module.hosts.parties[h], module.host_partners.parties[h]] for h in range(module.host_count)}
    named["owner"] = [module.top]
    return {who: [p for network in networks for p in network.parameters()] for who, networks in named.items()}


class Diary(Callback):
    """Everybody's parameters, optimiser state and table after every iteration."""

    def __init__(self) -> None:
        self.pages: list[dict[str, Any]] = []
        self.tables: list[torch.Tensor] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.on_train_batch_end(trainer, module)

    def on_train_batch_end(self, trainer: Any, module: Any, *more: Any) -> None:
        state = trainer.optimizers[0].state
        page = {who: [(p.detach(), dict(state.get(p, {}))) for p in own] for who, own in parts(module).items()}
        self.pages.append(copy.deepcopy(page))
        self.tables.append(tables_of(module).clone())


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """AdamW: a gradient of zeros would move parameters, and count a step."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4, weight_decay=0.1, fused=True)

    diary = Diary()
    module = decoupled(guest_epochs=6, communicate_every=2, replay_epochs=1, optimizer=make)
    folder = tmp_path_factory.mktemp("crashed")
    run = fit(folder, module, faults=EVERYTHING, callbacks=[diary], limit_val_batches=0)
    return run, by_hand(run), diary


def test_who_does_not_learn_keeps_parameters_and_optimiser_state_to_the_bit(crashed):
    _, oracle, diary = crashed
    seen = set()
    for learnt, before, after in zip(oracle.learnt, diary.pages, diary.pages[1:], strict=False):
        for who in after:
            kept = [same(a, b) for a, b in zip(before[who], after[who], strict=True)]
            assert not any(kept) if who in learnt else all(kept), (who, learnt)
            seen.add((who.split()[0], who in learnt))
    assert seen == {(kind, learns) for kind in ("guest", "host", "owner") for learns in (True, False)}


def test_nobody_learns_in_somebody_elses_phase(crashed):
    run, _, diary = crashed
    assert len(diary.pages) == len(run.batches) + 1 == 8 * STEPS + 1
    for (epoch, _), before, after in zip(run.batches, diary.pages, diary.pages[1:], strict=False):
        moved = {who.split()[0] for who in after if not same(before[who], after[who])}
        assert moved <= ({"guest", "host"} if epoch < 6 else {"host"} if epoch < 7 else {"owner"})
        assert ("owner" in moved) == (epoch == 7)


def test_a_host_that_is_down_writes_nothing_and_one_that_is_up_what_gets_through(crashed):
    run, _, diary = crashed
    faults, roster = Faults(0), run.module.roster
    for model in EVERYTHING:
        faults.add(model)
    widths, communications, lost = run.module.embedding_widths, 0, 0
    for t, (epoch, ids) in enumerate(run.batches):
        before, after = diary.tables[t], diary.tables[t + 1]
        changed = torch.stack([slot.any(2) for slot in (before != after).split(widths, 2)], 2)
        if epoch >= 6 or epoch % 2 == 0:
            assert not changed.any()
            continue
        outcome, links = faults.at(t, roster), faults.at(communications, roster).links
        communications += 1
        written = (outcome.hosts.unsqueeze(1) & links.T & outcome.sends).unsqueeze(1)  # (H, 1, M)
        batch = torch.zeros(N, dtype=torch.bool)
        batch[ids] = True
        assert torch.equal(changed, written & batch.view(1, -1, 1))
        lost += int((~written).sum())
    assert communications == run.module.counts.communications == 3 * STEPS
    assert 0 < lost < communications * 3 * GUESTS


class Once(FaultModel):
    """One thing fails, at one request."""

    def __init__(self, request: int, **failing: Any) -> None:
        self.request, self.failing = request, failing

    def sample(self, request: int, roster: Any, seed: int) -> RoundOutcome:
        outcome = RoundOutcome.nothing(roster)
        if request != self.request:
            return outcome
        changed = {}
        for name, place in self.failing.items():
            changed[name] = getattr(outcome, name).clone()
            changed[name][place] = False
        return replace(outcome, **changed)


def test_a_connections_request_is_a_communication_round(tmp_path):
    """Guests send in epochs 1 and 3; link (1, 0) fails in round 4, the second batch of epoch 3, not in iteration 4."""
    module = decoupled(guest_epochs=4, communicate_every=2, width=4)
    run = fit(tmp_path, module, faults=(Once(4, links=(1, 0)),), limit_val_batches=0)
    tables = tables_of(module)
    differ = (tables[0] != tables[1]).view(N, GUESTS, 4).any(2)
    assert torch.equal(tables[1], tables[2])
    epoch, ids = run.batches[3 * STEPS + 1]
    assert epoch == 3
    assert set(differ[:, 1].nonzero().flatten().tolist()) == set(ids.tolist())
    assert not differ[:, [0, 2]].any()
    assert (tables[0].view(N, GUESTS, 4)[ids, 1] != 0).all()  # the latest of that record stands in


def test_a_hosts_request_is_an_iteration(tmp_path):
    """Host 2 is down in iteration 4, the second batch of epoch 1; of those records it keeps what epoch 0 said."""
    module = decoupled(guest_epochs=2)
    run = fit(tmp_path, module, faults=(Once(4, hosts=2),), limit_val_batches=0)
    tables = tables_of(module)
    differ = (tables[0] != tables[2]).any(1)
    assert set(differ.nonzero().flatten().tolist()) == set(run.batches[STEPS + 1][1].tolist())
    assert torch.equal(tables[0], tables[1])


def test_the_owners_phase_knows_no_faults(tmp_path):
    weights = []
    for first in (0, 1):
        module = decoupled(guest_epochs=1)
        models = tuple(Once(t, sends=(0,), hosts=(1,), links=(0, 1)) for t in range(STEPS, 3 * STEPS) if first)
        fit(tmp_path, module, faults=models, limit_val_batches=0, max_epochs=3)
        weights.append(module.state_dict())
        assert module.books.given_up == 0
    assert same(*weights)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_host_has_not_been_told_of_does_not_teach_it(tmp_path, overlap):
    """Nothing ever arrives at host 0, which keeps its bits; with guest 1 cut off, hosts go by what the others say."""

    class CutOff(FaultModel):
        def sample(self, request, roster, seed):
            outcome = RoundOutcome.nothing(roster)
            links = outcome.links.clone()
            links[:, 0] = False
            links[1, 1] = False
            return replace(outcome, links=links)

    data = Blobs(LimitedOverlap(aligned=24) if overlap else None, batch_size=B)
    module = decoupled(guest_epochs=2, replay_epochs=1)
    run = fit(tmp_path, module, data, (CutOff(),), limit_val_batches=0)
    kept = {name for name, value in weights_of(module).items() if torch.equal(value, run.start[name])}
    assert kept == {name for name in run.start if name.startswith(("hosts.parties.0.", "host_partners.parties.0."))}
    tables = tables_of(module).view(3, N, GUESTS, 4)
    assert not tables[0].any()
    assert not tables[1, :, 1].any()
    assert tables[2].any(2).any(1).all() if not overlap else tables[2].any()


def test_nobody_alive_is_a_round_given_up(tmp_path):
    class Nobody(FaultModel):
        def sample(self, request, roster, seed):
            outcome = RoundOutcome.nothing(roster)
            return replace(outcome, sends=~outcome.sends, hosts=~outcome.hosts)

    module = decoupled(guest_epochs=2, optimizer=OPTIMIZER)
    run = fit(tmp_path, module, faults=(Nobody(),), limit_val_batches=0)
    assert module.books.given_up == 2 * STEPS
    assert {n for n, v in weights_of(module).items() if not torch.equal(v, run.start[n])} <= {
        n for n in run.start if n.startswith("top.")
    }
    assert module.books.meter.total("up", "embeddings").tolist() == [0] * GUESTS
    assert module.books.mini_batches == 0
    assert module.counts.communications == 2 * STEPS  # rounds are counted, whoever takes part
