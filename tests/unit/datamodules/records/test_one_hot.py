"""Categories as columns of 0 and 1, against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from lightning_vfl.datamodules.records.category_steps import OneHotCategories
from lightning_vfl.datamodules.records.column_encoder import Unseen
from lightning_vfl.datamodules.records.one_hot import as_known, categories_of, one_hot

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)


@given(st.lists(st.tuples(texts, st.booleans()), min_size=1))
def test_columns_and_categories_equal_scikit_learn_s(records):
    values, trained = np.array([text for text, _ in records]), np.array([flag for _, flag in records])
    if not trained.any():
        trained[0] = True
    categories = categories_of(values[trained])
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(values[trained, None])
    assert categories == encoder.categories_[0].tolist()
    np.testing.assert_array_equal(one_hot(values, categories), encoder.transform(values[:, None]))


def test_no_category_gives_no_column():
    assert categories_of(np.array([], dtype=np.str_)) == []
    assert one_hot(np.array(["a", "b"]), []).shape == (2, 0)


@pytest.mark.parametrize("text", ["x", "10"])
def test_one_category(text):
    assert one_hot(np.full(3, text), [text]).tolist() == [[1.0]] * 3


@pytest.mark.parametrize(("trained", "new"), [([1, 2, 3], [2.0, 3.0, 1.0]), ([1.0, 2.0, 3.0], [2, 3, 1])])
def test_whole_numbers_are_the_same_categories_with_and_without_a_decimal_point(trained, new):
    encoder = OneHotCategories(Unseen.ERROR).fit(pd.Series(trained, name="kind"), "shop")
    assert encoder.read(pd.Series(new, name="kind"), "shop").tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_other_texts_are_not_taken_for_one_another():
    for text, known in (("02", "2"), ("v2.0", "v2"), ("2.00", "2"), ("2.5", "2")):
        assert as_known(np.array([text]), [known]).tolist() == [text]
