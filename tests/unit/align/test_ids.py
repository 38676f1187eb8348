"""Ids become messages that are equal exactly if the ids are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.align.ids import USUAL, Step, messages_of, normalised, steps_of
from lightning_vfl.errors import ConfigurationError

CHARACTERS = st.sampled_from("aAß ﬁ①0７7\t\u0301eİſ\0,")  # those on which the steps work
CELLS = st.lists(st.text(CHARACTERS, min_size=1, max_size=4), min_size=2, max_size=2)


@given(CELLS, CELLS)
def test_composite_ids_are_equal_only_if_all_texts_are(one, other):
    first, second = (messages_of([[[text] for text in texts]], (), "bank")[0] for texts in (one, other))
    assert (first == second) == (one == other)


@given(st.text(CHARACTERS, max_size=20))
def test_steps_done_twice_are_steps_done_once(text):
    for steps in (USUAL, tuple(Step), (Step.STRIP,), (Step.ZEROS,)):
        once = normalised(text, steps)
        assert normalised(once, steps) == once


@pytest.mark.parametrize(
    ("text", "steps", "same"),
    [
        (" a\t b ", "strip", "a b"),
        ("Straße", "casefold", "strasse"),
        ("ﬁ①", "nfkc", "fi1"),
        ("000", "zeros", "0"),
        ("007", "zeros", "7"),
        ("007a", "zeros", "007a"),
        ("-07", "zeros", "-07"),
        ("٠٧", "zeros", "٠٧"),
        ("007", "nfkc strip casefold", "007"),
        ("007\n", "zeros", "007\n"),
    ],
)
def test_steps(text, steps, same):
    assert normalised(text, steps_of(steps.split())) == same


def test_a_step_that_is_unknown_is_named():
    with pytest.raises(ConfigurationError, match=r"there is no step 'stripp'; did you mean strip\?"):
        steps_of(["stripp"])


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ([[["a", "b", "a", "b", "b"]]], "duplicate ids of bank: 2, in 5 records; keep one"),
        ([[["a", None]]], "records of bank without an id: 1; add ids"),
        ([[["a", "", None]]], "records of bank without an id: "),
        ([[["A", "a"]]], None),
        ([[["a", "b"]], [["x", "x"]]], "duplicate values of key 2 of bank: 1, in 2 records"),
        ([[["a", None]], [[None, None]]], "records of bank without an id: "),
        ([[[]]], "the table of bank has no record"),
    ],
)
def test_bad_ids_are_counted(columns, line):
    if line is None:
        assert len(messages_of(columns, (), "bank")) == 2
        with pytest.raises(ConfigurationError, match="duplicate ids of bank after casefold: 1, in 2 records"):
            messages_of(columns, (Step.CASEFOLD,), "bank")
        return
    with pytest.raises(ConfigurationError, match=line):
        messages_of(columns, (), "bank")


def test_a_record_may_lack_one_of_several_keys_and_a_part_of_a_key_is_none():
    rows = messages_of([[["a", "b"], [None, "x"]], [["m", None]]], (), "bank")
    assert [[message is None for message in row] for row in rows] == [[True, False], [False, True]]


def test_a_lone_surrogate_is_a_text_like_others():
    assert messages_of([[["\ud800"]]], (), "bank") != messages_of([[["\ud801"]]], (), "bank")
