"""Keys that are given twice, against the pairs that the text was written from."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.configs import RepeatedKey, refuse_repeated_keys

KEYS = st.sampled_from(["a", "b", "<<", "1", "'1'"])
TREES = st.recursive(
    st.just("x"),
    lambda inner: st.lists(st.tuples(KEYS, inner), min_size=1, max_size=3) | st.tuples(inner),
    max_leaves=8,
)


def written(tree):
    """The tree as YAML on one line: a list of pairs is a mapping, a tuple is a sequence."""
    if isinstance(tree, list):
        return "{" + ", ".join(f"{key}: {written(value)}" for key, value in tree) + "}"
    return "[" + ", ".join(map(written, tree)) + "]" if isinstance(tree, tuple) else tree


def repeats(tree):
    """Whether some mapping of the tree has two pairs of one key."""
    if isinstance(tree, list):
        keys = [key for key, _ in tree if key != "<<"]  # merges add up
        return len({*keys}) < len(keys) or any(repeats(value) for _, value in tree)
    return isinstance(tree, tuple) and any(map(repeats, tree))


@given(TREES)
def test_a_key_that_is_given_twice_is_refused_wherever_it_stands(tree):
    if repeats(tree):
        with pytest.raises(RepeatedKey, match="is given twice"):
            refuse_repeated_keys(written(tree))
    else:
        refuse_repeated_keys(written(tree))


def test_the_line_is_that_of_the_second_key():
    with pytest.raises(RepeatedKey) as refused:
        refuse_repeated_keys("model:\n  width: 8\n\nmodel: {}\n")
    assert refused.value.problem == "the key 'model' is given twice"
    assert refused.value.problem_mark.line == 3


def test_aliases_are_no_keys_of_their_own():
    text = "a: &one {x: [*one]}\nb: *one\nc: *one\n"
    refuse_repeated_keys(text)
    assert [*yaml.safe_load(text)] == ["a", "b", "c"]


def test_other_texts_are_told_by_yaml():
    refuse_repeated_keys("")
    with pytest.raises(yaml.YAMLError):
        refuse_repeated_keys("a: [")
