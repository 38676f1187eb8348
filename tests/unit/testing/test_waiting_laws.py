"""Every law of waiting rules finds a rule that breaks it."""

from math import inf

import pytest
import torch

from lightning_vfl.testing import LawBroken, check_waiting_rule, waiting_laws
from lightning_vfl.waiting import WaitForAll, WaitingRule


class Own(WaitingRule):
    """Waits for all called parties; a sound rule, for the others to break."""

    patience = 2.0

    def close(self, arrivals, needed=1):
        return WaitForAll(self.patience).close(arrivals, needed)

    def fewest(self, parties, needed=1):
        return parties


class Early(Own):
    def close(self, arrivals, needed=1):
        who, when = super().close(arrivals, needed)
        return who, when / 2


class Uncalled(Own):
    def close(self, arrivals, needed=1):
        return ~arrivals.isinf(), 9.0


class Drawing(Own):
    def close(self, arrivals, needed=1):
        return torch.zeros(len(arrivals), dtype=torch.bool), float(torch.rand(()))


class Listing(Own):
    def close(self, arrivals, needed=1):
        return [True] * len(arrivals), 9.0


class Unanimous(Own):
    """A party that is later than the others makes all absent."""

    def close(self, arrivals, needed=1):
        who = arrivals.isfinite()
        return who & bool(arrivals[who].unique().numel() < 2), 9.0


class LastFirst(Own):
    def close(self, arrivals, needed=1):
        who = torch.zeros(len(arrivals), dtype=torch.bool)
        there = arrivals.nan_to_num(nan=inf, posinf=inf)
        if there.min() < inf:
            who[len(who) - 1 - int(there.flip(0).argmin())] = True
        return who, 9.0


class Boasting(Own):
    def fewest(self, parties, needed=1):
        return parties + 1


class Impatient(Own):
    def waits_on(self, arrived, needed=1):
        return True

    def close(self, arrivals, needed=1):
        who = arrivals == 0
        return who, 0.0


BROKEN = {
    "included parties have arrived": (Early, Uncalled, Drawing, Listing),
    "a delay of one party excludes no other": (Unanimous,),
    "of equal arrivals the lower number counts first": (LastFirst,),
    "fewest parties are included if all arrive at once": (Boasting,),
    "a rule that waits on closes at its patience": (Impatient,),
}


@pytest.mark.parametrize(("name", "broken"), [(name, one) for name, own in BROKEN.items() for one in own])
def test_a_law_finds_who_breaks_it(name, broken):
    (law,) = [law for law in waiting_laws(broken()) if law.name == name]
    with pytest.raises(LawBroken) as error:
        law()
    assert str(error.value).startswith(f"{broken.__name__} breaks the law '{name}': ")
    assert "\n" not in str(error.value)


def test_every_law_has_a_breaker_and_the_rule_of_the_breakers_is_sound_without_a_fault():
    assert [law.name for law in waiting_laws(Own())] == list(BROKEN)
    check_waiting_rule(Own())
