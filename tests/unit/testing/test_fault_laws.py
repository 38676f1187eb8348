"""Every law of fault models finds a model that breaks it."""

from dataclasses import replace

import pytest
import torch

from lightning_vfl.simulation import FaultModel, RoundOutcome
from lightning_vfl.testing import LawBroken, check_fault_model, fault_laws


class Late(FaultModel):
    """A sound model, for the others to break."""

    def changes(self, request, roster, seed):
        return {"delay": torch.full((roster.parties,), float(request + seed), dtype=torch.float64)}

    def sample(self, request, roster, seed):
        return replace(RoundOutcome.nothing(roster), **self.changes(request, roster, seed))


class Backwards(Late):
    def changes(self, request, roster, seed):
        return {"delay": torch.full((roster.parties,), float(3 - request), dtype=torch.float64)}


class Short(Late):
    def changes(self, request, roster, seed):
        return {"delay": torch.zeros(roster.parties)}


class Counting(Late):
    def __init__(self):
        self.calls = 0

    def changes(self, request, roster, seed):
        self.calls += 1
        return {"delay": torch.full((roster.parties,), float(self.calls), dtype=torch.float64)}


class Drawing(Late):
    def changes(self, request, roster, seed):
        return {"delay": torch.rand(roster.parties, dtype=torch.float64)}


class Learning(Late):
    """The stragglers are those that were late."""

    def __init__(self):
        self.late = 0

    def changes(self, request, roster, seed):
        self.late += request
        return {}

    def stragglers(self, roster, seed):
        return torch.arange(roster.parties) < self.late + 1


class Writing(Late):
    def sample(self, request, roster, seed):
        outcome = RoundOutcome.nothing(roster)
        outcome.delay[0] = 5.0
        return outcome


class OtherHosts(Late):
    def hosts(self, request, roster, seed):
        return torch.zeros(roster.hosts, dtype=torch.bool)


class Lossy(Late):
    def changes(self, request, roster, seed):
        return {"sends": torch.full((roster.parties,), request != 7)}


class Unreachable(Late):
    silent = True
    tells_hosts_apart = False

    def changes(self, request, roster, seed):
        return {"links": torch.full((roster.parties, roster.hosts), request != 7)}


BROKEN = {
    "the shared outcome is not changed": (Writing,),
    "outcomes have their shapes units and ranges": (Short, Backwards),
    "sampling is pure": (Counting, Drawing, Learning),
    "hosts are those of a sample": (OtherHosts,),
    "silent is what the outcomes do": (Lossy, Unreachable),
}


@pytest.mark.parametrize(("name", "broken"), [(name, one) for name, own in BROKEN.items() for one in own])
def test_a_law_finds_who_breaks_it(name, broken):
    (law,) = [law for law in fault_laws(broken()) if law.name == name]
    with pytest.raises(LawBroken) as error:
        law()
    assert str(error.value).startswith(f"{broken.__name__} breaks the law '{name}': ")
    assert "\n" not in str(error.value)


def test_every_law_has_a_breaker_and_the_model_of_the_breakers_is_sound_without_a_fault():
    assert [law.name for law in fault_laws(Late())] == list(BROKEN)
    check_fault_model(Late())


def test_the_message_has_the_numbers():
    with pytest.raises(LawBroken, match=r"sends of request 7 may be False, but silent is False; return True from"):
        check_fault_model(Lossy())
    with pytest.raises(LawBroken, match=r"delay at request 4 is \[-1.0, -1.0, -1.0, -1.0\]; use finite numbers >= 0"):
        check_fault_model(Backwards())
