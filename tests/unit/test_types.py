"""A stage equals its word, and is printed, hashed, named and saved as the word."""

import io
import json

import torch

from lightning_vfl.protocols.books import Books
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.streams import key_of
from lightning_vfl.types import RoundNames, Stage


def test_a_stage_stands_for_its_word_everywhere():
    words = ["fit", "sanity check", "validation", "test", "predict"]
    assert list(Stage) == words
    for stage, word in zip(Stage, words, strict=True):
        assert (str(stage), repr(stage), f"{stage} products") == (word, repr(word), f"{word} products")
        assert hash(stage) == hash(word)
        assert type(str(stage)) is str
        assert key_of(3, "rounding", stage, 7) == key_of(3, "rounding", word, 7)
        assert json.dumps({stage: 1}) == json.dumps({word: 1})
        assert repr(RoundNames(0, stage, 1)) == f"RoundNames(seed=0, stage='{word}', round=1)"


def test_the_books_keep_words_that_a_checkpoint_may_hold():
    books = Books(VirtualClock())
    books.next_round(Stage.FIT)
    books.enter_opening((), Stage.VALIDATION, 4)
    file = io.BytesIO()
    torch.save(books.state(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert (state["rounds"], state["opened"]) == ({"fit": 1}, {"validation": 4})
    assert {type(key) for kept in ("rounds", "opened") for key in state[kept]} == {str}
