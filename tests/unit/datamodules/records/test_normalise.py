"""Law: scaling is an affine map that is fitted by each party on its own training rows."""

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import Given, Normaliser, Standardise, StandardiseNumbers, StandardiseParty, Unchanged
from lightning_vfl.errors import ConfigurationError
from tests.further import further

from ..miniature import InMemory, table


def oracle(x: torch.Tensor, train: torch.Tensor) -> torch.Tensor:
    wide = train.double().numpy()
    return torch.from_numpy((x.double().numpy() - wide.mean(0)) / wide.std(0)).float()


def test_standardise_equals_numpy():
    x = table(50, 3).features * torch.tensor([1.0, 100.0, 1e-3]) + torch.tensor([0.0, 1e3, 5.0])
    shift, scale = Standardise().fit(x)
    assert np.array_equal(shift, x.double().numpy().mean(0).astype(np.float32))
    assert np.array_equal(scale, x.double().numpy().std(0).astype(np.float32))


@pytest.mark.parametrize("value", [0.0, 7.0, 0.1, -1e6])
@pytest.mark.parametrize("normaliser", [Standardise(), StandardiseParty()])
def test_constant_columns_become_zero(normaliser, value):
    x = torch.full((33, 2), value)
    shift, scale = normaliser.fit(x)
    assert torch.equal((x - shift) / scale, torch.zeros(33, 2))


def test_standardise_party_uses_one_pair_of_numbers():
    x = table(50, 3).features * 9 + 4
    shift, scale = StandardiseParty().fit(x)
    assert shift.unique().tolist() == [np.float32(x.double().numpy().mean())]
    assert scale.unique().tolist() == [np.float32(x.double().numpy().std())]


@pytest.mark.parametrize("seed", [n if n in (0, 6, 19) else further(n) for n in range(20)])
@pytest.mark.parametrize("normaliser", [Standardise(), StandardiseParty(), Unchanged()])
def test_bytes_are_fitted_like_their_numbers(normaliser, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (300, 40), generator=draw, dtype=torch.uint8)
    x = x * (torch.rand(x.shape, generator=draw) < 0.05 * (seed + 1))
    for own in (x, x[:, 7:20], x[:1, :1]):  # also a slice of more columns, and a single number
        for got, expected in zip(normaliser.fit_bytes(own), normaliser.fit(own.float() / 255), strict=True):
            assert got.dtype == torch.float32
            assert torch.equal(got, expected)


def test_standardise_numbers_leaves_categories_as_they_are():
    numbers, categories = table(50, 3).features * 9 + 4, torch.eye(5).repeat(10, 1)
    categories[:, 3:] = torch.tensor([1.0, 0.0])  # one that all records have, and one that none has
    x = torch.cat([categories, numbers], dim=1)
    for dtype in (torch.float32, torch.float64):
        shift, scale = StandardiseNumbers().fit(x.to(dtype))
        assert shift.dtype == scale.dtype == dtype
        got = ((x.to(dtype) - shift) / scale).float()
        assert torch.equal(got[:, :5], categories)
        torch.testing.assert_close(got[:, 5:], oracle(numbers, numbers), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0])
def test_a_third_value_makes_a_column_one_of_numbers(value):
    x = torch.tensor([[0.0], [1.0], [value]])
    assert [t.tolist() for t in StandardiseNumbers().fit(x)] == [t.tolist() for t in Standardise().fit(x)]


@pytest.mark.parametrize("normaliser", [Standardise(), StandardiseNumbers()])
def test_a_column_alone_is_scaled_as_beside_others_whatever_the_threads(normaliser):
    x = torch.cat([table(70_000, 2).features.double() * 1e3 + 7, torch.eye(2).repeat(35_000, 1).double()], dim=1)
    every = normaliser.fit(x)
    kept, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        alone = [normaliser.fit(column[:, None]) for column in x.T]
        torch.set_num_threads(kept)
        found.append([torch.cat(parts) for parts in zip(*alone, strict=True)])
    for whole, *parts in zip(every, *found, strict=True):
        torch.testing.assert_close(parts[0], whole, rtol=1e-13, atol=1e-13)
        assert all(torch.equal(parts[0], part) for part in parts)


def test_unchanged_is_the_identity():
    x = table(5, 3).features
    shift, scale = Unchanged().fit(x)
    assert torch.equal((x - shift) / scale, x)


class Spy(Normaliser):
    """Remembers what it was fitted on."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def fit(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.append(x.clone())
        return Unchanged().fit(x)


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_fitted_on_each_party_s_training_rows_alone(stage):
    splits = {name: table(12, 5, seed) for seed, name in enumerate(("train", "val", "test", "predict"))}
    data = InMemory(splits)
    data.normaliser = spy = Spy()
    data.setup(stage)
    assert [x.tolist() for x in spy.seen] == [x.tolist() for x in splits["train"].features.split([3, 2], dim=1)]


def test_later_rows_are_scaled_with_the_training_rows_numbers():
    splits = {name: table(12, 5, seed) for seed, name in enumerate(("train", "val"))}
    data = InMemory(splits)
    data.setup("fit")
    for name in ("train", "val"):
        expected = oracle(splits[name].features, splits["train"].features)
        torch.testing.assert_close(data.records(name).features, expected, rtol=1e-5, atol=1e-6)


def test_absent_rows_are_not_fitted_and_stay_zero():
    split = table(12, 4)
    split.present = torch.ones(12, 2, dtype=torch.bool)
    split.present[8:, 1] = False
    split.features[8:, 2:] = 0.0
    data = InMemory({"train": split})
    data.setup("fit")
    own = split.features[:8, 2:].clone()
    features = data.records("train").features
    torch.testing.assert_close(features[:8, 2:], oracle(own, own), rtol=1e-5, atol=1e-6)
    assert torch.equal(features[8:, 2:], torch.zeros(4, 2))


def test_a_party_without_a_training_record_is_refused():
    split = table(12, 4)
    split.present = torch.tensor([[True, False]]).expand(12, 2)
    with pytest.raises(ConfigurationError, match="party 1 holds none of the 12 training records"):
        InMemory({"train": split}).setup("fit")


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 16.0), (-3, -1), (0.0, 1.0)])
def test_given_bounds_become_one_whatever_the_records_are(low, high):
    x = torch.tensor([[low, (low + high) / 2, high]], dtype=torch.float64)
    for rows in (x, 7 - 5 * x.repeat(4, 1)):
        shift, scale = Given(low, high).fit(rows)
        assert ((x - shift) / scale).tolist() == [[-1.0, 0.0, 1.0]]


def test_bytes_are_mapped_from_the_numbers_that_they_stand_for():
    x = torch.tensor([[0, 255, 51]], dtype=torch.uint8)
    shift, scale = Given(0.0, 1.0).fit_bytes(x)
    torch.testing.assert_close((x.float() / 255 - shift) / scale, torch.tensor([[-1.0, 1.0, -0.6]]))


@pytest.mark.parametrize("columns", [("a", "b", "c", "d", "e"), ("e", "c", "a", "d", "b")])
def test_bounds_by_column_leave_the_others_as_they_are(columns):
    split = table(12, 5)
    data = InMemory({"train": split}, columns=columns, normaliser=Given({"b": 0.0, "e": -2.0}, {"b": 10.0, "e": 4.0}))
    data.setup("fit")
    expected = split.features.clone()
    expected[:, columns.index("b")] = (expected[:, columns.index("b")] - 5) / 5
    expected[:, columns.index("e")] = (expected[:, columns.index("e")] - 1) / 3
    torch.testing.assert_close(data.records("train").features, expected)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Given(1.0, 1.0), "finite numbers with low < high; got 1.0 and 1.0"),
        (lambda: Given(0.0, float("inf")), "must be finite numbers"),
        (lambda: Given({"a": 2.0}, {"a": 1.0}), "low and high of column 'a' must be"),
        (lambda: Given(0.0), "numbers for the same column names"),
        (lambda: Given({"a": 0.0}, {"b": 1.0}), "numbers for the same column names"),
        (lambda: Given({"a": 0.0}, 1.0), "numbers for the same column names"),
        (lambda: InMemory({"train": table(12, 4)}, normaliser=Given()), "InMemory has no known bounds"),
        (lambda: Given().fit(torch.zeros(2, 2)), "has no bounds for columns without names"),
    ],
)
def test_what_is_no_pair_of_bounds_is_refused(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


@pytest.mark.parametrize(("columns", "said"), [(("a", "b", "c", "d"), "its columns are a, b, c, d"), ((), "no names")])
def test_bounds_of_columns_that_nobody_has_are_refused(columns, said):
    data = InMemory({"train": table(12, 4)}, columns=columns, normaliser=Given({"z": 0.0}, {"z": 1.0}))
    with pytest.raises(ConfigurationError, match=said):
        data.setup("fit")
