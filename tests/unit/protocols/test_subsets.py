"""Subsets of the parties in training: against enumeration by hand in plain torch."""

from itertools import combinations
from math import comb

import pytest
import torch
from torch import nn

from lightning_vfl.aggregators import Concat, LocalGaussian, MaskedSum, Max, Mean, PoissonBinomial, Sum
from lightning_vfl.downlinks import MaxNorm
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, Stale, Zeros
from lightning_vfl.protocols import DropParties, EnsembleVFL, Everybody, LaserVFL, TaskSampling
from lightning_vfl.protocols.laser import head_weights
from lightning_vfl.protocols.subsets import sampled_sizes, size_weights
from lightning_vfl.types import Joint, Roll, Roster, RoundNames, Rows, Stage, VerticalBatch
from tests.subjects import Blobs, same, split, trainer

NAMES = RoundNames(0, Stage.FIT, 3)
ROSTER = Roster.singles(4)


def batch_of(rows, present=None, **more):
    return VerticalBatch((torch.zeros(rows, 1),) * 4, torch.arange(rows) % 2, torch.arange(rows), present, **more)


def everyone():
    return Roll.everyone(4)


def lists(present):
    return [tuple(row.nonzero().flatten().tolist()) for row in present]


def test_each_size_has_one_subset_of_that_size_and_every_subset_is_equally_likely():
    rows = 2000
    there = torch.ones(rows, 4, dtype=torch.bool)
    drawn = sampled_sizes(there, NAMES, Rows(torch.arange(rows), 0, rows)).view(4, rows, 4)
    for k in range(1, 5):
        counts = dict.fromkeys(combinations(range(4), k), 0)
        for one in lists(drawn[k - 1]):
            counts[one] += 1  # a subset of another size would raise
        expected = rows / comb(4, k)
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi_square < 30  # five degrees of freedom at most: exceeded once in 1e5 seeds


def test_disjoint_subsets_divide_the_holders_and_every_subset_is_equally_likely():
    rows = 2000
    there = torch.ones(rows, 5, dtype=torch.bool)
    there[rows // 2 :, 2] = False  # half of the records have four holders
    drawn = sampled_sizes(there, NAMES, Rows(torch.arange(rows), 0, rows), "disjoint").view(-1, rows, 5)
    assert len(drawn) == 5 + 2 + 1 + 1 + 1
    for holders, own in (((0, 1, 2, 3, 4), drawn[:, : rows // 2]), ((0, 1, 3, 4), drawn[:, rows // 2 :])):
        copies = iter(own)
        for k in range(1, 6):
            counts = dict.fromkeys(combinations(holders, k), 0)
            blocks = [next(copies) for _ in range(5 // k)]
            assert int(torch.stack(blocks).sum(0).max()) <= 1  # no party is in two of them
            for block in blocks[: len(holders) // k]:
                for one in lists(block):
                    counts[one] += 1  # a subset of another size would raise
            assert not any(block.any() for block in blocks[len(holders) // k :])
            expected = rows / 2 * (len(holders) // k) / max(1, len(counts))
            assert sum((count - expected) ** 2 / expected for count in counts.values()) < 40


def test_all_subsets_are_those_of_the_holders():
    present = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    wide = TaskSampling(each_size="all").rows(batch_of(4, present), NAMES, everyone(), ROSTER)
    drawn, weights = wide.present.view(-1, 4, 4), wide.weights.view(-1, 4)
    for row, holders in enumerate(((0, 1, 3), (2,), (), (0, 1, 2, 3))):
        subsets = [one for k in range(1, len(holders) + 1) for one in combinations(holders, k)]
        found = [one for one in lists(drawn[:, row]) if one]
        assert found == subsets
        there = drawn[:, row].any(1)
        assert weights[there, row].tolist() == pytest.approx([15 / max(1, len(subsets))] * len(subsets))
        assert not weights[~there, row].any()


def test_only_holders_enter_and_a_size_above_their_number_has_weight_zero():
    present = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    wide = TaskSampling().rows(batch_of(3, present), NAMES, everyone(), ROSTER)
    drawn, weights = wide.present.view(4, 3, 4), wide.weights.view(4, 3)
    assert not (drawn & ~present).any()
    assert drawn.sum(2).T.tolist() == [[1, 2, 3, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert weights[:, 0].tolist() == pytest.approx([4 * w / 7 for w in (3, 3, 1, 0)])
    assert weights[:, 1].tolist() == pytest.approx([4.0, 0, 0, 0])
    assert weights[:, 2].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("n", range(1, 5))
def test_the_expected_loss_is_the_mean_over_all_subsets(n):
    """The loss of a subset, times its weight and its probability, summed: by enumeration, for any loss."""
    loss_of = {s: torch.rand(()).item() for k in range(1, n + 1) for s in combinations(range(n), k)}
    weights = size_weights(torch.tensor([n]), 4, "tasks") / 4
    by_size = [sum(loss_of[s] for s in combinations(range(n), k)) / comb(n, k) for k in range(1, n + 1)]
    expected = sum(w.item() * loss for w, loss in zip(weights, by_size, strict=False))
    assert expected == pytest.approx(sum(loss_of.values()) / len(loss_of))
    records = size_weights(torch.tensor([n]), 4, "records") / 4
    assert records.tolist() == pytest.approx([1 / n] * n + [0] * (4 - n))
    sizes = [1, 1, 1, 1, 2, 2, 3, 4]  # of the disjoint subsets of four parties
    disjoint = size_weights(torch.tensor([n]), 4, "tasks", "disjoint") / 8
    for k in range(1, 5):
        own = [w for w, size in zip(disjoint.tolist(), sizes, strict=True) if size == k]
        used = n // k
        assert own[:used] == pytest.approx([weights[k - 1].item() / max(1, used)] * used)
        assert not any(own[used:])


@pytest.mark.parametrize("aggregator", [Mean(), Sum(), Max(), Concat()], ids=repr)
def test_all_subsets_give_the_mean_loss_over_all_subsets(aggregator):
    torch.manual_seed(1)
    module = split(aggregator, subsets=TaskSampling(each_size="all"), party_shapes=[(2,)] * 3, num_classes=3)
    module.configure_model()
    features = tuple(torch.randn(4, 2) for _ in range(3))
    present = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.bool)
    batch = VerticalBatch(features, torch.arange(4) % 3, torch.arange(4), present)
    wide = module.subsets.rows(batch, NAMES, Roll.everyone(3), module.roster)
    found = module.rank_loss(module.run_round(batch, NAMES, Roll.everyone(3), module.missing, wide)[0], wide)
    total = 0.0
    for row in range(4):
        held = present[row].nonzero().flatten().tolist()
        subsets = [one for k in range(1, len(held) + 1) for one in combinations(held, k)]
        for one in subsets:  # every subset as a batch of its own, that nobody else holds
            there = torch.tensor([[m in one for m in range(3)]])
            output = module.output_in_the_clear(
                VerticalBatch(tuple(x[row : row + 1] for x in features), None, torch.arange(1), there)
            )
            total = total + nn.functional.cross_entropy(output, batch.labels[row : row + 1]) / len(subsets) / 4
    torch.testing.assert_close(found, total)


@pytest.mark.parametrize("aggregator", [Mean(), Sum(), Max(), Concat()], ids=repr)
def test_the_loss_is_that_of_each_row_computed_alone(aggregator, tmp_path):
    module = split(aggregator, subsets=TaskSampling(), party_shapes=[(2,)] * 4, num_classes=3)
    module.configure_model()
    features = tuple(torch.randn(5, 2) for _ in range(4))
    batch = VerticalBatch(features, torch.arange(5) % 3, torch.arange(5))
    wide = module.subsets.rows(batch, NAMES, everyone(), ROSTER)
    output, _ = module.run_round(batch, NAMES, everyone(), module.missing, wide)
    found = module.rank_loss(output, wide)
    h = [bottom(x) for bottom, x in zip(module.bottoms.parties, features, strict=True)]
    total = 0.0
    for copy in range(4):
        for row in range(5):
            members = lists(wide.present[copy * 5 + row][None])[0]
            own = torch.stack([h[m][row] for m in members])
            z = {
                "Mean": lambda own: own.mean(0),
                "Sum": lambda own: own.sum(0),
                "Max": lambda own: own.max(0).values,
                "Concat": lambda _, row=row, members=members: torch.cat(
                    [h[m][row] if m in members else torch.zeros(5) for m in range(4)]
                ),
            }[type(aggregator).__name__](own)
            loss = nn.functional.cross_entropy(module.top(z[None]), batch.labels[row][None])
            total = total + loss * comb(4, copy + 1) / 15 / 5
    torch.testing.assert_close(found, total)


def test_dropping_by_record_keeps_somebody_and_has_the_probability():
    rows, present = 4000, None
    drawn = DropParties(0.5, keep=[]).rows(batch_of(rows, present), NAMES, everyone(), ROSTER).present
    assert drawn.any(1).all()
    alone = (0.5**4) / 4  # if all would be left out, one of four stays
    assert drawn.float().mean(0).tolist() == pytest.approx([0.5 + alone] * 4, abs=0.04)
    kept = DropParties(0.9, keep=[2]).rows(batch_of(rows, present), NAMES, everyone(), ROSTER).present
    assert kept[:, 2].all()
    active = DropParties(0.9).rows(batch_of(rows, present), NAMES, everyone(), Roster.singles(4, active=1)).present
    assert active[:, 1].all()


def test_absent_parties_of_the_round_and_of_the_record_never_enter():
    present = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)
    roll = Roll.of(torch.tensor([True, True, True, False]))
    for subsets in (
        DropParties(0.4),
        TaskSampling(),
        TaskSampling(each_size="disjoint"),
        TaskSampling(each_size="all"),
    ):
        drawn = subsets.rows(batch_of(2, present), NAMES, roll, ROSTER).present
        assert not drawn[:, [1, 3]].any()
        assert not drawn.view(-1, 2, 4)[:, 1].any()  # nobody is left


@pytest.mark.parametrize(
    "subsets",
    [DropParties(0.4), TaskSampling(), TaskSampling(each_size="disjoint"), TaskSampling(each_size="all")],
    ids=repr,
)
def test_two_processes_draw_what_one_draws(subsets):
    whole = subsets.rows(batch_of(7), NAMES, everyone(), ROSTER).present.view(-1, 7, 4)
    parts = []
    for start, end in ((0, 4), (4, 7)):
        batch = batch_of(end - start, joint=Joint(start, 7))
        parts.append(subsets.rows(batch, NAMES, everyone(), ROSTER).present.view(-1, end - start, 4))
    assert torch.equal(whole, torch.cat(parts, 1))


@pytest.mark.parametrize("subsets", [Everybody(), DropParties(0.4), TaskSampling()], ids=repr)
def test_subsets_say_whether_they_repeat_records_and_everybody_changes_nothing(subsets):
    batch = batch_of(3)
    rows = subsets.rows(batch, NAMES, everyone(), ROSTER)
    assert subsets.repeats == (len(rows.record_ids) > 3)
    assert (rows is batch) == isinstance(subsets, Everybody)


def test_the_books_are_those_without_subsets(tmp_path):
    subsets = [None, DropParties(0.4), TaskSampling(), TaskSampling(each_size="disjoint")]
    plain, *others = (split() if own is None else split(subsets=own) for own in subsets)
    for module in (plain, *others):
        trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    for module in others:
        assert module.standing() == plain.standing()
        assert same(module.books.meter.state_dict(), plain.books.meter.state_dict())
        assert not same(module.state_dict(), plain.state_dict())


@pytest.mark.parametrize(
    "make", [lambda: split(subsets=TaskSampling(each_size="disjoint")), lambda: LaserVFL(width=5, seed=0)]
)
def test_a_resumed_fit_has_the_same_bits(make, tmp_path):
    def fit(epochs, path=None):
        torch.manual_seed(0)
        module = make()
        fitting = trainer(tmp_path, max_epochs=epochs)
        fitting.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=path)
        return module, fitting

    whole, _ = fit(2)
    _, first = fit(1)
    first.save_checkpoint(tmp_path / "one.ckpt")
    resumed, _ = fit(2, tmp_path / "one.ckpt")
    assert same(whole.state_dict(), resumed.state_dict())


def test_rounds_without_parties_work_where_uploads_are_hidden(tmp_path):
    module = split(MaskedSum(clip=50), subsets=DropParties(0.5, by="round"), allow_embeddings_by_subtraction=True)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    sent = module.books.meter.total("up")
    rounds = module.books.rounds["fit"]
    plain = split(MaskedSum(clip=50))
    trainer(tmp_path, max_epochs=1).fit(plain, datamodule=Blobs(batch_size=10))
    assert plain.books.rounds["fit"] == rounds
    assert (sent < plain.books.meter.total("up")).all()  # a party that is not called sends nothing


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DropParties(1.0), "of at least 0 and below 1; got 1.0"),
        (lambda: DropParties(-0.1), "of at least 0 and below 1; got -0.1"),
        (lambda: DropParties(0.1, by="week"), "'record' or 'round'; got 'week'"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: TaskSampling("size"), "'tasks' or 'records'; got 'size'"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: TaskSampling(each_size="two"), "'one', 'disjoint' or 'all'; got 'two'"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: LaserVFL(MaskedSum()), "use Mean, Sum or Max"),
    ],
)
def test_settings_that_cannot_be(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"subsets": DropParties(0.1, keep=[7])}, "a party of keep must be a whole number from 0 to 2; got 7"),
        ({"aggregator": MaskedSum(), "subsets": TaskSampling()}, "use DropParties with by: round"),
        ({"aggregator": PoissonBinomial(), "subsets": DropParties(0.1)}, "use DropParties with by: round"),
        ({"aggregator": LocalGaussian(), "subsets": TaskSampling()}, "Mean, Sum, Max or Concat"),
        ({"missing": Stale(), "subsets": TaskSampling()}, "use missing: Exclude or Skip"),
        ({"missing": Zeros(), "subsets": DropParties(0.1)}, "use missing: Exclude or Skip"),
        ({"downlink": MaxNorm(), "subsets": TaskSampling()}, "downlinks change one gradient .* TaskSampling computes"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_training(settings, words, tmp_path):
    with pytest.raises(ConfigurationError, match=words):
        trainer(tmp_path).fit(split(**settings), datamodule=Blobs(batch_size=10))


# ---- LASER-VFL


def test_the_weights_of_the_heads_are_the_papers():
    weights = head_weights(torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool))
    assert weights[1, :, 0].tolist() == pytest.approx([1, 3 / 2, 3 / 3, 1 / 4])
    assert weights[2, :, 1].tolist() == pytest.approx([1, 1 / 2, 0, 0])
    assert weights[1, :, 1].tolist() == weights[0, :, 2].tolist() == [0, 0, 0, 0]
    assert weights[:, :, 0].sum().item() == pytest.approx(2**4 - 1)  # every subset counts once


def test_every_subset_of_a_head_contains_its_party():
    module = LaserVFL(width=4, seed=0, party_shapes=[(1,)] * 4, num_classes=2)
    module.configure_model()
    present = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]], dtype=torch.bool)
    drawn = module.subsets(batch_of(2, present), NAMES)
    for head in range(4):
        for size in range(1, 5):
            whole, partly = drawn[head, size - 1]
            assert whole[head]
            assert whole.sum() == size
            if head in (1, 2):
                assert partly[head]
                assert partly.sum() == min(size, 2)
            assert not (partly & ~present[1]).any()


def test_the_loss_of_laser_is_the_sum_of_the_weighted_losses_of_single_rows():
    torch.manual_seed(1)
    module = LaserVFL(width=4, seed=0, party_shapes=[(2,)] * 3, num_classes=3)
    module.configure_model()
    features = tuple(torch.randn(4, 2) for _ in range(3))
    present = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=torch.bool)
    batch = VerticalBatch(features, torch.arange(4) % 3, torch.arange(4), present)
    found = module.step(batch, NAMES).loss
    drawn = module.subsets(batch, NAMES)
    h = [bottom(x) for bottom, x in zip(module.bottoms.parties, features, strict=True)]
    total = 0.0
    for row in range(4):
        held = present[row].nonzero().flatten().tolist()
        for head in held:
            for k in range(1, len(held) + 1):
                members = lists(drawn[head, k - 1, row][None])[0]
                z = torch.stack([h[m][row] for m in members]).mean(0)
                loss = nn.functional.cross_entropy(module.top[head](z[None]), batch.labels[row][None])
                total = total + loss * comb(len(held) - 1, k - 1) / k / 4
    torch.testing.assert_close(found, total)


@pytest.mark.parametrize(("protocol", "sent"), [(LaserVFL, True), (EnsembleVFL, False)])
def test_heads_at_parties_say_what_is_everywhere_and_send_it(protocol, sent):
    module = protocol(width=4, seed=0, party_shapes=[(1,)] * 3, num_classes=2)
    module.configure_model()
    assert "labels are at every party" in module.protection(1)
    assert module.protection(1).endswith("is sent the embeddings of all others") == sent
    legs = [(leg.kind, leg.to, leg.elements.tolist()) for leg in module.training_legs(8) if leg.elements.any()]
    to_both = [2 * 8 * 4] * 3  # numbers that each party sends
    assert legs == ([("embeddings", "peers", to_both), ("gradients", "peers", to_both)] if sent else [])


def test_all_subsets_of_many_parties_are_refused():
    with pytest.raises(ConfigurationError, match=r"511 subsets of 9 parties, .* use each_size: disjoint"):
        TaskSampling(each_size="all").check(Mean(), Exclude(), Roster.singles(9))
    TaskSampling(each_size="all").check(Mean(), Exclude(), Roster.singles(8))


@pytest.mark.parametrize(
    ("subsets", "printed"),
    [
        (DropParties(0.25, keep=[1]), "DropParties(p=0.25, keep=(1,), by='record')"),
        (TaskSampling(each_size="disjoint"), "TaskSampling(weights='tasks', each_size='disjoint')"),
    ],
)
def test_settings_of_subsets_survive_a_checkpoint(subsets, printed, tmp_path):
    module = split(subsets=subsets)
    fitting = trainer(tmp_path, max_epochs=1)
    fitting.fit(module, datamodule=Blobs(batch_size=10))
    fitting.save_checkpoint(tmp_path / "one.ckpt")
    loaded = type(module).load_from_checkpoint(tmp_path / "one.ckpt", weights_only=True)
    assert repr(loaded.subsets) == printed
