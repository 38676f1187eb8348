"""Every message of every aggregator, spoilt: refused with its sender's name, or without any effect."""

from collections import Counter
from inspect import isabstract

import pytest

import lightning_vfl.aggregators as room
from lightning_vfl.aggregators import Aggregator
from tests.further import further

from .mutations import SUBJECTS, UNNOTICEABLE, fuzzed


def test_every_concrete_aggregator_is_here():
    classes = {name: getattr(room, name) for name in room.__all__}
    concrete = {name for name, own in classes.items() if issubclass(own, Aggregator) and not isabstract(own)}
    assert concrete == {name.partition(",")[0] for name in SUBJECTS}


# "MaskedSum, recovery and ids" has all that "with recovery" has
@pytest.mark.parametrize("name", [further(n) if n == "MaskedSum, with recovery" else n for n in SUBJECTS])
def test_a_spoilt_message_is_refused_by_name_or_changes_nothing(name):
    found = list(fuzzed(name))
    bad = [(kind, what, became) for kind, what, became in found if became not in ("refused", "harmless")]
    assert [one for one in bad if one[1].removeprefix("alongside: ") not in UNNOTICEABLE] == []
    counts = Counter(became for _, _, became in found)
    assert counts["refused"] > 25  # the mutations reach the receivers
    assert counts["harmless"] < counts["refused"] / 10
