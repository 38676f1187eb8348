"""The commands take parties by the names of the data, and tell of them by these names."""

import pandas as pd
import pytest

from lightning_vfl.absence.asked import parse
from lightning_vfl.absence.measure import Measured
from lightning_vfl.absence.report import show_absent
from lightning_vfl.commands.audit import _numbered
from lightning_vfl.datamodules import Digits, VerticalDataModule
from lightning_vfl.datamodules.party_number import party_number
from lightning_vfl.errors import ConfigurationError


class Named(Digits):
    """Digits whose four parties have names."""

    @property
    def party_names(self):
        return ("bank", "shop", "clinic", "lab")


@pytest.mark.parametrize(
    ("given", "numbers"),
    [("party:shop", "party:1"), ("server+party:lab", "server+party:3"), ("party:2+party:bank", "party:2+party:0")],
)
def test_attackers_may_be_named(given, numbers):
    assert _numbered(given, Named()) == numbers


@pytest.mark.parametrize("given", ["server", "party:7", "guest", "party:", "party"])
def test_other_words_are_left_to_the_attacker(given):
    assert _numbered(given, Named()) == given


def test_absent_parties_may_be_named_and_numbered_and_are_counted_once():
    asked = parse("[[lab],[shop,1],[1]]", lambda name: party_number(name, Named().party_names))
    assert asked.absent == ((3,), (1,))


@pytest.mark.parametrize(("text", "names"), [("[[bank]]", None), ("[[no]]", len), ("[[1.5]]", len), ("[[]]", len)])
def test_what_is_no_party_is_refused_in_one_line(text, names):
    """YAML reads the name ``no`` as a truth value; without names of parties, no word is a party."""
    with pytest.raises(ConfigurationError, match="--absent takes all, probabilities such as") as raised:
        parse(text, names)
    assert "\n" not in str(raised.value)


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(ConfigurationError, match="no party 'shp'; did you mean shop"):
        party_number("shp", Named().party_names)


@pytest.mark.parametrize(("data", "text"), [(Named, "shop, lab"), (Digits, "party 1, party 3")])
def test_the_table_tells_of_names(data: type[VerticalDataModule], text, capsys):
    row = {"what": "subset", "absent": "1 3", "number": 2.0, "p": float("nan"), "metric": "test/accuracy"}
    row |= {"value": 0.5, "half_width": 0.0, "subsets": 1, "records": 9, "left_out": 0}
    measured = Measured(pd.DataFrame([row]), exact=True)
    show_absent(measured, data().party_names)
    assert text in capsys.readouterr().out
