"""Groups of parties that share a bottom: one bottom on the union of their records, trained by hand in plain torch."""

import copy
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum, Sum
from lightning_vfl.aggregators.masked_sum import MaskedUpdates
from lightning_vfl.aggregators.secure.recovery import Recovery
from lightning_vfl.datamodules import ContiguousColumns, Groups
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from lightning_vfl.waiting import Ignore, WaitForAll
from tests.further import few, further
from tests.subjects import Blobs, same, trainer
from tests.unit.protocols.test_faulty_rounds import Scripted

MEMBERS = (1, 2, 3)
GROUPS = ((0,), (1, 2), (3, 4, 5))
M, WIDTH, STEPS = 6, 5, 6  # 54 training records in batches of 10
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": partial(torch.optim.Adam, lr=1e-2, eps=1e-3),  # a gradient of nearly zero is no sign
}
masked_sum = partial(MaskedSum, allow_single=True)  # one of the groups has two parties
AGGREGATORS = {
    "Sum": Sum,
    "sum": masked_sum,
    "segments": partial(masked_sum, "segments"),
    "recovery": partial(masked_sum, recovery=Recovery()),
}


def data(members=MEMBERS, **settings):
    return Blobs(Groups(ContiguousColumns(3), members=list(members)), **{"batch_size": 10, **settings})


def grouped(aggregator, optimizer="SGD", **settings):
    torch.manual_seed(0)
    usual = {"active": 0, "bottom": partial(MLP, hidden=[6]), "evaluate": "plain", "allow_invertible_updates": True}
    settings = usual | settings
    return SplitVFL(aggregator, width=WIDTH, seed=0, optimizer=OPTIMIZERS[optimizer], **settings)


def fit(folder, module, script=None, source=None, **settings):
    if script is not None:
        module.faults.add(Scripted(script, silent=settings.pop("silent", True)))
    t = trainer(folder, **{"max_epochs": 2, **settings})
    t.fit(module, datamodule=source or data())
    return t


def built(module):
    """Its networks before training, as they will be; and the records."""
    source = data()
    source.setup("fit")
    module.hparams["party_shapes"], module.hparams["num_classes"] = [list(s) for s in source.party_shapes], 3
    module.hparams["party_groups"] = [list(group) for group in GROUPS]
    module.configure_model()
    return copy.deepcopy([module.bottoms.parties[group[0]] for group in GROUPS]), copy.deepcopy(module.top), source


def by_hand(bottoms, top, source, schedule, optimizer, layout, epochs=2, skip=lambda number: ()):
    """Three bottoms, the union of every group's records, one optimiser; who is skipped does not move."""
    optimizer = optimizer([p for b in bottoms for p in b.parameters()] + list(top.parameters()))
    records, number = source.records("train"), 0
    dtype = next(top.parameters()).dtype
    for epoch in range(epochs):
        for ids, _ in schedule.epoch(epoch):
            ids = torch.from_numpy(ids)
            x, present, away = records.rows(ids), records.present[ids], skip(number)
            joined = []
            for group, bottom in zip(GROUPS, bottoms, strict=True):
                union = sum(torch.where(present[:, m, None], x[m], 0.0) for m in group).to(dtype)
                joined.append(bottom(union))
            if layout == "segments":
                parts = [joined[0][:, g * WIDTH : (g + 1) * WIDTH] + h for g, h in enumerate(joined[1:])]
                parts = [torch.zeros_like(p) if g + 1 in away else p for g, p in enumerate(parts)]
                value = torch.cat(parts, 1)
            else:
                value = sum(h for g, h in enumerate(joined) if g not in away)
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(top(value), records.labels[ids]).backward()
            for group in away:
                for p in bottoms[group].parameters():
                    p.grad = None
            optimizer.step()
            number += 1
    return optimizer


def layout_of(name):
    return "segments" if name == "segments" else "sum"


def assert_same_networks(module, bottoms, top, **tolerance):
    for group, bottom in zip(GROUPS, bottoms, strict=True):
        for party in group:
            for ours, theirs in zip(module.bottoms.parties[party].parameters(), bottom.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, **tolerance)
    for ours, theirs in zip(module.top.parameters(), top.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


class Copies(Callback):
    """The copies of every bottom are equal after each step; what every owner has then is kept."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, *args):
        state = trainer.optimizers[0].state
        for group in GROUPS:
            leading = list(module.bottoms.parties[group[0]].parameters())
            for party in group[1:]:
                own = list(module.bottoms.parties[party].parameters())
                assert all(torch.equal(a, b) and a is not b for a, b in zip(own, leading, strict=True))
                assert not any(p in state for p in own)
        owners = [*(module.bottoms.parties[group[0]] for group in GROUPS), module.top]
        self.seen.append(copy.deepcopy([[(p.detach(), state.get(p, {})) for p in own.parameters()] for own in owners]))

    def moved(self):
        """For each step after the first, the groups that have changed, and 3 for the server."""
        pairs = zip(self.seen, self.seen[1:], strict=False)
        return [[g for g in range(4) if not same(before[g], after[g])] for before, after in pairs]


# ---- training


@pytest.mark.parametrize(
    ("aggregator", "optimizer"),
    [
        pytest.param(a, o, marks=() if (i + j) % 3 == 0 else pytest.mark.slow)
        for i, a in enumerate(AGGREGATORS)
        for j, o in enumerate(OPTIMIZERS)
    ],
)
def test_training_is_that_of_one_bottom_on_the_union_of_a_groups_records(tmp_path, aggregator, optimizer):
    """Masked: up to the quantisation, of embeddings and of updates, whose steps are 6e-8."""
    module = grouped(AGGREGATORS[aggregator](), optimizer)
    bottoms, top, source = built(module)
    start = copy.deepcopy(bottoms)
    fit(tmp_path, module, callbacks=[Copies()])
    schedule = module.schedule(source.records("train"), 10, source.seed)
    by_hand(bottoms, top, source, schedule, OPTIMIZERS[optimizer], layout_of(aggregator))
    assert_same_networks(module, bottoms, top, rtol=0, atol=2e-5)
    for before, after in zip(start, bottoms, strict=True):
        assert max((a - b).abs().max() for a, b in zip(before.parameters(), after.parameters(), strict=True)) > 1e-2


@pytest.mark.parametrize(
    ("optimizer", "batch"),
    [
        *(("SGD", 54), ("SGD with momentum", 10)),
        *(further(*more) for more in (("SGD", 10), ("SGD with momentum", 54), ("Adam", 10), ("Adam", 54))),
    ],
)
def test_in_the_clear_it_is_so_to_the_precision_of_float64(tmp_path, optimizer, batch):
    """Batches of 10 leave 4 records in the end: a party that holds none of them is not missed in its group."""
    module = grouped(Sum(), optimizer)
    bottoms, top, source = built(module)
    bottoms, top = [b.double() for b in bottoms], top.double()
    fit(tmp_path, module, precision="64-true", source=data(batch_size=batch))
    schedule = module.schedule(source.records("train"), batch, source.seed)
    torch.set_default_dtype(torch.float64)
    try:
        by_hand(bottoms, top, source, schedule, OPTIMIZERS[optimizer], "sum")
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_networks(module, bottoms, top, rtol=0, atol=1e-6)  # records and first weights are float32 in both


@pytest.mark.parametrize("optimizer", few(OPTIMIZERS, "Adam"))
def test_absent_groups_take_no_part_and_the_others_learn_as_if_alone(tmp_path, optimizer):
    """Party 4 is announced away in rounds 1 and 2, party 1 is lost in round 7: whole groups, whatever they share."""
    script = {
        2: {"announced": [1, 1, 1, 1, 0, 1]},
        4: {"announced": [1, 1, 1, 1, 0, 1]},
        14: {"sends": [1, 0, 1, 1, 1, 1]},
    }
    module = grouped(masked_sum("segments"), optimizer, waiting=WaitForAll(timeout=1.0))
    bottoms, top, source = built(module)
    watching = Copies()
    fit(tmp_path, module, script, callbacks=[watching])
    schedule = module.schedule(source.records("train"), 10, source.seed)
    away = {1: (2,), 2: (2,), 7: (1,)}
    by_hand(bottoms, top, source, schedule, OPTIMIZERS[optimizer], "segments", skip=lambda n: away.get(n, ()))
    assert_same_networks(module, bottoms, top, rtol=0, atol=2e-5)
    moved = watching.moved()  # the first of these is round 1
    assert [moved[number - 1] for number in (1, 2, 7)] == [[0, 1, 3], [0, 1, 3], [0, 2, 3]]
    assert all(who == [0, 1, 2, 3] for number, who in enumerate(moved, 1) if number not in away)


@pytest.mark.parametrize("aggregator", few(AGGREGATORS, "Sum", "segments"))
@pytest.mark.parametrize("optimizer", [further("SGD with momentum"), "Adam"])
def test_a_group_that_the_answer_does_not_reach_keeps_bottom_and_optimiser_state(tmp_path, aggregator, optimizer):
    """One of three does not hear it: the sum of updates is not complete, so nobody of the group moves."""
    script = {3: {"receives": [1, 1, 1, 1, 0, 1]}, 7: {"receives": [1, 0, 1, 1, 1, 1]}, 9: {"hosts": [0]}}
    allowed = {"allow_embeddings_by_subtraction": True}  # a scripted model may announce absences
    module = grouped(AGGREGATORS[aggregator](), optimizer, waiting=WaitForAll(timeout=1.0), **allowed)
    watching = Copies()
    fit(tmp_path, module, script, max_epochs=1, callbacks=[watching])
    assert watching.moved() == [[0, 1, 3], [0, 1, 2, 3], [0, 2, 3], [], [0, 1, 2, 3]]


def test_copies_are_equal_in_checkpoints_too(tmp_path):
    module = grouped(masked_sum(), "Adam")
    t = fit(tmp_path, module, max_epochs=1)
    t.save_checkpoint(tmp_path / "it.ckpt")
    saved = torch.load(tmp_path / "it.ckpt", weights_only=True)
    for group in GROUPS:
        for party in group[1:]:
            for name, value in module.bottoms.parties[party].state_dict().items():
                first, own = (saved["state_dict"][f"bottoms.parties.{m}.{name}"] for m in (group[0], party))
                assert torch.equal(first, own)
                assert torch.equal(own, value)
    # the optimiser has the parameters of three bottoms and the top, four tensors each and two
    assert len(saved["optimizer_states"][0]["param_groups"][0]["params"]) == 3 * 4 + 2


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize(("optimizer", "steps"), [("Adam", (2, 4)), *(further(o, range(1, STEPS)) for o in OPTIMIZERS)])
def test_a_run_that_was_stopped_after_any_step_goes_on_to_the_same_bits(tmp_path, optimizer, steps):
    script = {4: {"announced": [1, 1, 1, 1, 0, 1]}, 7: {"receives": [1, 0, 1, 1, 1, 1]}}
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    options = {"script": script, "max_epochs": 1, "num_sanity_val_steps": 0, "limit_val_batches": 0}
    whole = grouped(masked_sum("segments"), optimizer, waiting=WaitForAll(timeout=1.0))
    t = fit(tmp_path, whole, callbacks=[saver], enable_checkpointing=True, **options)
    for step in steps:
        again = grouped(masked_sum("segments"), optimizer, waiting=WaitForAll(timeout=1.0))
        again.faults.add(Scripted(script))
        u = trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0, limit_val_batches=0)
        u.fit(again, datamodule=data(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert u.global_step == t.global_step == STEPS
        assert same(dict(again.state_dict()), dict(whole.state_dict()))
        assert same(u.optimizers[0].state_dict(), t.optimizers[0].state_dict())
        assert same(again.books.meter.state_dict(), whole.books.meter.state_dict())
        assert again.standing() == whole.standing()


# ---- books


@pytest.mark.parametrize("aggregator", ["sum", "segments", further("recovery")])
def test_bytes_of_updates_and_of_bottoms_sent_back_have_a_closed_form(tmp_path, aggregator):
    module = grouped(AGGREGATORS[aggregator]())
    fit(tmp_path, module, max_epochs=1)
    sizes = [sum(p.numel() for p in module.bottoms.parties[m].parameters()) for m in range(M)]
    expected = [0] + [STEPS * size * 4 for size in sizes[1:]]
    assert module.books.meter.total("up", "model updates").tolist() == expected
    assert module.books.meter.total("down", "shared bottoms").tolist() == expected
    if aggregator != "segments":  # 3, 3 and 2 columns, 6 hidden units
        assert sizes == [4 * 6 + 35] * 3 + [3 * 6 + 35] * 3


def test_who_learns_nothing_sends_no_update(tmp_path):
    script = {2: {"announced": [1, 1, 1, 1, 0, 1]}, 5: {"receives": [1, 0, 1, 1, 1, 1]}}
    module = grouped(masked_sum("segments"), waiting=WaitForAll(timeout=1.0))
    fit(tmp_path, module, script, max_epochs=1)
    sizes = [sum(p.numel() for p in module.bottoms.parties[m].parameters()) for m in range(M)]
    rounds = [0, STEPS - 1, STEPS - 1, STEPS - 1, STEPS - 1, STEPS - 1]
    expected = [4 * n * size for n, size in zip(rounds, sizes, strict=True)]
    assert module.books.meter.total("up", "model updates").tolist() == expected


def test_parties_alone_send_no_updates(tmp_path):
    module = grouped(masked_sum())
    fit(tmp_path, module, source=Blobs(ContiguousColumns(3), batch_size=10), max_epochs=1)
    assert {"model updates", "shared bottoms"}.isdisjoint(
        module.books.meter.kinds("up") + module.books.meter.kinds("down")
    )


def test_updates_are_masked_whatever_the_server_could_read(tmp_path, monkeypatch):
    """With plain SGD the steps are sent, else the gradients; the sum that the server applies is theirs."""
    tell, join = MaskedUpdates.tell, MaskedUpdates.join
    for optimizer, scale in (("SGD", -0.05), ("Adam", 1.0)):
        module, heard = grouped(masked_sum(), optimizer), []

        def telling(self, updates, view, heard=heard):
            heard.append([updates])
            return tell(self, updates, view)

        def joining(self, message, view, heard=heard):
            assert all(piece.dtype == torch.uint32 for piece in message.pieces)
            heard[-1].append(join(self, message, view))
            return heard[-1][1]

        monkeypatch.setattr(MaskedUpdates, "tell", telling)
        monkeypatch.setattr(MaskedUpdates, "join", joining)
        grads = []

        class Gradients(Callback):
            def on_before_optimizer_step(self, trainer, module, optimizer, grads=grads):
                grads.append(
                    [
                        torch.cat([p.grad.flatten() for p in module.bottoms.parties[g].parameters()]).clone()
                        for g in range(1, 6)
                    ]
                )

        fit(tmp_path, module, max_epochs=1, callbacks=[Gradients()])
        monkeypatch.undo()
        assert [tuple(sorted(updates)) for updates, _ in heard] == [(1, 2), (3, 4, 5)] * STEPS
        for number, own in enumerate(grads):
            for updates, total in heard[2 * number : 2 * number + 2]:
                for party, update in updates.items():
                    torch.testing.assert_close(update, scale * own[party - 1], rtol=1e-6, atol=1e-9)
                assert (total - sum(updates.values())).abs().max() < len(updates) * 8 / 2**27 + 1e-7


# ---- what is refused


def refused(folder, message, aggregator=None, source=None, **settings):
    with pytest.raises(ConfigurationError, match=message):
        fit(folder, grouped(aggregator or masked_sum(), **settings), source=source)


def normed(shape, width):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, width))


@pytest.mark.parametrize("aggregator", [Sum, masked_sum])
def test_batch_norm_in_the_bottoms_of_groups_is_refused(tmp_path, aggregator):
    refused(tmp_path, "BatchNorm1d, which would normalise each party by its own records", aggregator(), bottom=normed)
    for norm in (nn.LazyBatchNorm1d, nn.SyncBatchNorm):
        lazy = norm is nn.LazyBatchNorm1d
        refused(
            tmp_path,
            ", which would normalise each party by its own records",
            aggregator(),
            bottom=lambda s, w, n=norm, z=lazy: nn.Sequential(nn.Linear(s[0], w), n() if z else n(w).eval()),
        )
    fit(tmp_path, grouped(aggregator(), bottom=partial(MLP, hidden=[6]), bottom_of={0: normed}), max_epochs=1)


@pytest.mark.parametrize("follower", [2, 4, 5])
def test_a_bottom_of_its_own_for_a_follower_is_refused(tmp_path, follower):
    refused(
        tmp_path, f"bottom_of names party {follower}, which uses the bottom of its group", bottom_of={follower: MLP}
    )


def test_a_bottom_for_the_first_of_a_group_is_everybodys(tmp_path):
    module = grouped(masked_sum(), bottom_of={3: partial(MLP, hidden=[3])})
    fit(tmp_path, module, max_epochs=1)
    assert {str(module.bottoms.parties[m]) for m in (3, 4, 5)} == {str(MLP((2,), WIDTH, hidden=[3]))}


@pytest.mark.parametrize("active", [1, 2, 5])
def test_an_active_party_within_a_group_of_several_is_refused(tmp_path, active):
    refused(tmp_path, f"active names party {active}, which shares its columns", active=active)


def test_records_that_two_parties_of_a_group_hold_are_refused(tmp_path):
    class Overlapping(Blobs):
        def load(self, names):
            return {
                name: split._replace(present=torch.ones(len(split.ids), M, dtype=torch.bool))
                if hasattr(split, "_replace")
                else type(split)(split.features, split.labels, split.ids, torch.ones(len(split.ids), M).bool())
                for name, split in super().load(names).items()
            }

    class Shared(Groups):
        def held(self, split, records, parties):
            return None

    source = Overlapping(Shared(ContiguousColumns(3), members=list(MEMBERS)), batch_size=10)
    refused(tmp_path, "held by several parties of one group", source=source)


def test_groups_that_are_no_partition_are_refused():
    for groups in ([[0], [1]], [[0, 1], [1, 2]], [[0], [1, 2], [3]]):
        module = grouped(masked_sum(), party_shapes=[(2,)] * 3, num_classes=3, party_groups=groups)
        with pytest.raises(ConfigurationError, match="must name each of the parties 0 to 2 exactly once"):
            module.configure_model()
    module = grouped(masked_sum(), party_shapes=[(2,), (2,), (3,)], num_classes=3, party_groups=[[0], [1, 2]])
    with pytest.raises(ConfigurationError, match="give all parties of a group the same columns"):
        module.configure_model()


def test_a_model_that_was_built_for_other_groups_is_refused(tmp_path):
    module = grouped(masked_sum())
    fit(tmp_path, module, max_epochs=1)
    with pytest.raises(ConfigurationError, match="use the partitioner that it was trained with"):
        trainer(tmp_path).test(module, datamodule=Blobs(Groups(ContiguousColumns(3), members=[2, 1, 3]), batch_size=10))


# ---- evaluation


@pytest.mark.parametrize(
    ("aggregator", "evaluate"),
    [("sum", "protocol"), ("segments", "plain"), further("sum", "plain"), further("segments", "protocol")],
)
def test_evaluation_uses_the_records_of_the_holders_alone(tmp_path, aggregator, evaluate):
    module = grouped(AGGREGATORS[aggregator](), evaluate=evaluate)
    source = data()
    t = fit(tmp_path, module, source=source, max_epochs=1)
    predicted = torch.cat([p.values for p in t.predict(module, datamodule=source)])
    records = source.records("predict")
    ids = torch.arange(len(records))
    x, present = records.rows(ids), records.present[ids]
    with torch.no_grad():
        h = []
        for group in GROUPS:
            union = sum(torch.where(present[:, m, None], x[m], 0.0) for m in group)
            h.append(module.bottoms.parties[group[-1]](union))
        value = h[0] + torch.cat(h[1:], 1) if aggregator == "segments" else sum(h)
        expected = module.objective.predict(module.top(value))
    torch.testing.assert_close(predicted, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("evaluate", ["plain", "protocol"])
@pytest.mark.parametrize("aggregator", [Sum, masked_sum])
def test_forward_of_groups_counts_a_record_once_or_refuses(tmp_path, aggregator, evaluate):
    """Features as the datamodule gives them: zeros in the place of records that somebody else holds."""
    module, source = grouped(aggregator(), evaluate=evaluate), data()
    t = fit(tmp_path, module, source=source, max_epochs=1)
    predicted = torch.cat([p.values for p in t.predict(module, datamodule=source)])
    module.eval()
    try:
        with torch.no_grad():
            forward = module(source.records("predict").rows(torch.arange(len(predicted))))
    except ConfigurationError:
        return
    torch.testing.assert_close(forward, predicted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("evaluate", ["plain", "protocol"])
def test_a_group_of_which_training_left_one_out_is_left_out_of_evaluation_too(tmp_path, evaluate):
    """Ignore never calls party 2, so its whole group has learnt nothing."""
    allowed = {"allow_embeddings_by_subtraction": True}  # a scripted model may announce absences
    module = grouped(masked_sum(), waiting=Ignore(), evaluate=evaluate, **allowed)
    module.faults.add(Scripted({}, silent=False, slow=(2,)))
    t, source = trainer(tmp_path, max_epochs=1), data()
    t.fit(module, datamodule=source)
    assert module.books.meter.total("up", "masked embeddings").bool().tolist() == [True, False, False, True, True, True]
    roll = module.evaluation_roll()
    assert roll.included.tolist() == [True, False, False, True, True, True]
