"""Categories as columns of 0 and 1, against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from lightning_vfl.datamodules.records.one_hot import one_hot

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)


@given(st.lists(st.tuples(texts, st.booleans()), min_size=1), st.booleans())
def test_columns_and_categories_equal_scikit_learn_s(records, as_positions):
    values, trained = np.array([text for text, _ in records]), np.array([flag for _, flag in records])
    if not trained.any():
        trained[0] = True
    columns, categories = one_hot(values, np.flatnonzero(trained) if as_positions else trained)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(values[trained, None])
    assert categories == encoder.categories_[0].tolist()
    np.testing.assert_array_equal(columns, encoder.transform(values[:, None]))


def test_no_training_record_gives_no_column():
    columns, categories = one_hot(np.array(["a", "b"]), np.array([False, False]))
    assert columns.shape == (2, 0)
    assert categories == []


@pytest.mark.parametrize("text", ["x", "10"])
def test_one_category(text):
    columns, categories = one_hot(np.full(3, text), np.arange(3))
    assert (columns.tolist(), categories) == ([[1.0]] * 3, [text])
