"""Laws of the steps of columns: as scikit-learn on the training rows, the same for a cell whatever stands beside it."""

import json
from datetime import date
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, QuantileTransformer

from lightning_vfl.datamodules.records.auto_steps import ColumnKind, choose_steps
from lightning_vfl.datamodules.records.column_encoders import encoder_of
from lightning_vfl.datamodules.records.step_chain import STEPS, fit_chain
from lightning_vfl.datamodules.records.step_settings import read_steps
from lightning_vfl.errors import ConfigurationError

RNG = np.random.default_rng(0)
NUMBERS = pd.Series(np.where(RNG.random(60) < 0.2, np.nan, RNG.normal(50, 20, 60).round(1)), name="x")
CITIES = pd.Series(RNG.choice(["Oslo", "Paris", "Rome", "Bern"], 60, p=[0.5, 0.3, 0.15, 0.05]), name="x")
GAPS = CITIES.where(RNG.random(60) > 0.2)
DATES = pd.Series(pd.date_range("2023-11-30", periods=60, freq="31h").strftime("%Y-%m-%d %H:%M"), name="x")
LOG = FunctionTransformer(lambda x: np.sign(x) * np.log1p(np.abs(x)))
one_hot = partial(OneHotEncoder, sparse_output=False, handle_unknown="ignore")
CASES = {  # steps, column, scikit-learn's
    "mean": ({"impute": "mean"}, NUMBERS, SimpleImputer()),
    "median": ({"impute": "median", "indicator": True}, NUMBERS, SimpleImputer(strategy="median", add_indicator=True)),
    "frequent": ({"impute": "most_frequent"}, NUMBERS, SimpleImputer(strategy="most_frequent")),
    "constant": ({"impute": "constant", "value": -1}, NUMBERS, SimpleImputer(strategy="constant", fill_value=-1)),
    "log": ([{"impute": "median"}, "log"], NUMBERS, make_pipeline(SimpleImputer(strategy="median"), LOG)),
    "quantile": (
        [{"impute": "median"}, {"quantile": {"output": "normal", "quantiles": 9}}],
        NUMBERS,
        make_pipeline(
            SimpleImputer(strategy="median"), QuantileTransformer(n_quantiles=9, output_distribution="normal")
        ),
    ),
    "one-hot": ({"one_hot": "ignore"}, CITIES, one_hot()),
    "few": ({"one_hot": {"most": 3}}, CITIES, one_hot(max_categories=3)),
    "ordinal": ("ordinal", CITIES, OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)),
    "order": ({"ordinal": ["Rome", "Oslo", "Bern", "Paris"]}, CITIES, OrdinalEncoder(
        categories=[["Rome", "Oslo", "Bern", "Paris"]])),
    "text": (
        [{"impute": "most_frequent"}, {"one_hot": "error"}],
        GAPS,
        make_pipeline(SimpleImputer(strategy="most_frequent"), one_hot()),
    ),
    "gap": (
        [{"impute": "constant", "value": "?"}, {"one_hot": {"unseen": "ignore"}}],
        GAPS,
        make_pipeline(SimpleImputer(strategy="constant", fill_value="?"), one_hot()),
    ),
}  # fmt: skip
TRAIN = np.arange(60) % 3 > 0


def fitted(steps, column):
    counts = lambda bins, number: np.bincount(bins[::2], minlength=number)  # noqa: E731
    return fit_chain(read_steps(steps, "column 'x'"), column, "bank", counts=counts)


@pytest.mark.parametrize("name", CASES)
def test_it_is_scikit_learn_s_fitted_to_the_training_rows(name):
    steps, column, oracle = CASES[name]
    found = fitted(steps, column[TRAIN]).encode(column, "bank")
    table = (
        column.to_frame().astype(object if column.dtype != float else float).where(column.notna().to_frame(), np.nan)
    )
    np.testing.assert_allclose(found, oracle.fit(table[TRAIN].to_numpy()).transform(table.to_numpy()), rtol=1e-12)


def test_parts_of_dates_are_those_of_the_standard_library():
    parts = ["year", "quarter", "month", "day", "weekday", "day_of_year", "hour", "days"]
    chain = fitted({"date": parts}, DATES[TRAIN])
    assert chain.names == tuple(f"x.{part}" for part in parts)
    for text, row in zip(DATES, chain.encode(DATES, "bank"), strict=True):
        d = pd.Timestamp(text).to_pydatetime()
        of_year, days = d.timetuple().tm_yday, (d - pd.Timestamp(0).to_pydatetime()).days
        quarter, hour = (d.month + 2) // 3, d.hour + d.minute / 60
        assert row.tolist() == [d.year, quarter, d.month, d.day, d.weekday(), of_year, hour, days]


@pytest.mark.skipif(pd.to_datetime(["2024-01-01"]).unit == "ns", reason="pandas 2 counts nanoseconds")
@pytest.mark.parametrize("stored", [True, False])
def test_dates_of_any_year_are_read(stored):
    """A nanosecond counter ends in 2262, and 9999-12-31 is often written for 'never'."""
    texts = ["9999-12-31", "1200-02-29", "0001-01-01", "2024-06-01"]
    column = pd.Series(np.array(texts, dtype="datetime64[s]") if stored else texts, name="x")
    dates = [date.fromisoformat(text) for text in texts]
    found = fitted({"date": ["days", "year", "weekday"]}, column).encode(column, "bank").tolist()
    assert found == [[(d - date(1970, 1, 1)).days, d.year, d.weekday()] for d in dates]


def test_a_date_that_does_not_fit_beside_nanoseconds_is_told():
    chain = fitted("date", pd.Series(["2020-01-01T10:00:00.123456789"], name="x"))
    column = pd.Series(["2020-01-01T10:00:00.123456789", "9999-12-31"], name="x")
    with pytest.raises(ConfigurationError, match=r"ISO8601 and of the years 1678 to 2261, first '9999-12-31' of recor"):
        chain.encode(column, "bank")


AGAIN = {name: case[:2] for name, case in CASES.items()} | {
    "woe": ({"woe": {"bins": 5, "monotone": True}}, NUMBERS),
    "dates": ([{"date": ["days", "month"]}, {"impute": "median", "indicator": True}], DATES.where(TRAIN)),
    "booleans": (["boolean", {"impute": "most_frequent"}], pd.Series(["True", None, "no"] * 20, name="x")),
    "mixed": ([{"numbers": "missing"}, {"impute": "median"}], pd.Series(["1.5", "?", "3"] * 20, name="x")),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_cell_gives_the_same_numbers_alone_and_after_a_way_through_json(name):
    steps, column = AGAIN[name]
    chain = fitted(steps, column[TRAIN])
    whole = chain.encode(column, "bank")
    again = encoder_of(json.loads(json.dumps(chain.state())))
    assert again == chain
    assert again.names == chain.names
    assert len(chain.names) == whole.shape[1]
    alone = np.vstack([again.encode(column[i : i + 1], "bank") for i in range(0, 60, 4)])
    assert alone.tobytes() == whole[::4].tobytes()


def test_every_step_is_tested_here():
    chains = [fitted(*case) for case in AGAIN.values()]
    assert {type(step) for chain in chains for step in chain.steps} == set(STEPS)


def test_other_categories_have_a_column_of_their_own_or_a_number():
    new = pd.Series(["Oslo", "Berlin"], name="x")
    assert fitted("one_hot", CITIES).encode(new, "bank").tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert fitted({"one_hot": {"unseen": "ignore"}}, CITIES).encode(new, "bank").tolist()[1] == [0] * 4
    assert fitted("ordinal", CITIES).encode(new, "bank").tolist() == [[1], [-1]]
    missing = fitted([{"ordinal": {"unseen": "ignore"}}, {"impute": "median"}], CITIES)
    assert missing.encode(new, "bank").tolist() == [[1], [np.median(missing.encode(CITIES, "bank"))]]
    with pytest.raises(ConfigurationError, match=r"1 records of party 'bank' .* 'x' that no .*: Berlin \(1\); correct"):
        fitted({"one_hot": "error"}, CITIES).encode(new, "bank")


def test_codes_are_whole_numbers_also_beside_missing_ones():
    chain = fitted([{"impute": "constant", "value": "none"}, "one_hot"], pd.Series([1.0, 2.5, np.nan], name="x"))
    assert chain.names == ("x=1", "x=2.5", "x=none", "x=(other)")


REFUSED = {
    "a mistyped step": ({"imputee": "median"}, "has the unknown step 'imputee'; did you mean impute?"),
    "a mistyped choice": ({"impute": "medain"}, "impute: strategy 'medain' is unknown; did you mean median or mean?"),
    "a mistyped setting": ({"one_hot": {"unsen": "own"}}, "one_hot has no setting 'unsen'; did you mean unseen?"),
    "a mistyped part": ({"date": ["monht"]}, "date has no part 'monht'; did you mean month?"),
    "no step": ([], "is an empty list; name steps, or use auto or drop"),
    "a number as a step": (3, "has 3 as a step; use one of impute, numbers"),
    "two readers": (["one_hot", "ordinal"], "has one_hot and ordinal, which both read its cells; keep one"),
    "two in one": ({"one_hot": None, "log": None}, "has one_hot and log in one step; write - before each"),
    "numbers before texts": (["log", "one_hot"], "has log before one_hot, which reads its cells; put it behind"),
    "a mean of texts": ([{"impute": "mean"}, "one_hot"], "impute: mean takes numbers; use most_frequent or constant"),
    "no constant": ({"impute": "constant"}, "impute: constant needs a value; for example"),
    "a text among numbers": ({"impute": "constant", "value": "?"}, "impute needs a number among numbers; got '?'"),
    "a word for a truth": ({"impute": "mean", "indicator": "yes"}, "needs true or false for indicator; got 'yes'"),
    "no strategy": ("impute", "impute needs a strategy, such as {impute: most_frequent}"),
    "a setting of log": ({"log": 2}, "log takes no setting; got 2; write log"),
    "too few quantiles": ({"quantile": {"quantiles": 1}}, "quantiles must be at least 2; got 1"),
    "most and ignore": ({"one_hot": {"most": 5, "unseen": "ignore"}}, "give most at least 2, with unseen: own"),
    "two imputations": ([{"impute": "mean"}, {"impute": "mean"}], "has impute twice; keep one of them"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_steps_are_refused_in_one_line(name):
    steps, message = REFUSED[name]
    with pytest.raises(ConfigurationError) as error:
        read_steps(steps, "column 'x' of party 'bank'")
    assert str(error.value).startswith("preprocess of column 'x' of party 'bank'")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_columns_of_an_unknown_kind_are_refused():
    with pytest.raises(ConfigurationError, match="unknown kind 'one_hot'; train again"):
        encoder_of({"kind": "one_hot", "column": "x"})


WRONG = {
    "text": ("numbers", ["1", "two"], "values of column 'x' of party 'bank' are not numbers, first 'two' of record 1"),
    "infinite": ("numbers", ["1", "inf"], "1 values of column 'x' of party 'bank' are infinite"),
    "missing": ("numbers", ["1", None], "are missing, first 'nan' of record 1; fill them in, or use preprocess"),
    "a gap": (
        "one_hot",
        ["1", None],
        "are missing, first 'nan' of record 1; fill them in, or use",
    ),
    "no truth": ("boolean", ["true", "perhaps"], "are neither true nor false, first 'perhaps' of record 1"),
    "no date": ({"date": {"format": "%Y"}}, ["2024", "12.1"], "are no dates of the form %Y, first '12.1' of record 1"),
    "ambiguous": ("date", ["01/02/2024", "03/04/2024"], "can be read as %d/%m/%Y and as %m/%d/%Y; give one of them"),
    "no form": ("date", ["soon", "later"], "are in no known form or in several, first"),
    "nothing": ([{"impute": "mean"}], [None, None], "has no value in any training record, so impute: mean has nothing"),
    "nothing in text": ([{"impute": "most_frequent"}, "one_hot"], [None, None], "impute: most_frequent has nothing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_cells_of_another_kind_are_refused(name):
    steps, cells, message = WRONG[name]
    column = pd.Series(cells, name="x", dtype="str")
    with pytest.raises(ConfigurationError) as error:
        fitted(steps, column).encode(column, "bank")
    assert message in str(error.value)


AUTO = {
    "numbers": (["1", "2.5", None] * 9, ColumnKind.NUMBERS, "numbers, impute median + indicator"),
    "whole": (list(range(27)), ColumnKind.NUMBERS, "numbers, impute median"),
    "booleans": ([True, False, None] * 9, ColumnKind.BOOLEAN,
                 "true is 1, false is 0, impute most_frequent + indicator"),
    "yes": (["yes", "No", "no"] * 9, ColumnKind.BOOLEAN, "true is 1, false is 0, impute most_frequent"),
    "dates": (["2024-01-31", "2023-12-01", None] * 9, ColumnKind.DATE,
              "days, month, weekday (ISO8601), impute median + indicator"),
    "times": (list(pd.date_range("2024-01-01", periods=9, freq="7h")), ColumnKind.DATE,
              "days, month, weekday, hour, impute median"),
    "german": (["31.12.2024", "01.02.2024"], ColumnKind.DATE, "days, month, weekday (%d.%m.%Y), impute median"),
    "mixed": (["1", "2", "3", "4", "?"] * 5, ColumnKind.MIXED, "numbers, text is missing, impute median + indicator"),
    "texts": (["a", "b", None], ColumnKind.CATEGORIES,
              "impute constant (missing), one-hot of 3 categories, others share one"),
    "many": ([f"t{i % 40}" for i in range(400)], ColumnKind.CATEGORIES,
             "impute constant (missing), one-hot of 29 categories, others share one"),
    "names": ([f"name {i}" for i in range(90)], ColumnKind.IDENTIFIER, None),
    "nothing": ([None] * 5, ColumnKind.EMPTY, None),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTO)
def test_steps_are_chosen_by_the_training_rows(name):
    cells, kind, what = AUTO[name]
    column = pd.Series(cells, name="x")
    chosen = choose_steps(column)
    assert chosen.kind is kind
    if what is None:
        assert chosen.steps is None
        assert chosen.note.startswith("left out: ")
        return
    chain = fit_chain(chosen.steps, column, "bank")
    assert chain.describe() == what
    assert np.isfinite(chain.encode(pd.Series([cells[0], None], name="x", dtype=object), "bank")).all()
