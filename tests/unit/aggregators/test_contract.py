"""The laws of lightning_vfl.aggregators.base, for every aggregator there is; the laws are in lightning_vfl.testing."""

from collections.abc import Callable
from functools import partial
from inspect import isabstract
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightning_vfl.aggregators as room
from lightning_vfl.aggregators import (
    Accounting,
    Aggregator,
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Max,
    Mean,
    Opening,
    PartySide,
    PoissonBinomial,
    ServerSide,
    Setup,
    SharedBottoms,
    Sum,
    Wire,
)
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.testing import Law, aggregator_laws
from lightning_vfl.testing.rounds import Subject
from lightning_vfl.types import Roll, Roster
from lightning_vfl.wire import Message
from tests.device_laws import another_device_gives_the_same_value

M, B, D = 4, 5, 3
FACTORIES: dict[str, Callable[[], Aggregator]] = {
    "Concat": Concat,
    "Sum": Sum,
    "Mean": Mean,
    "Max": Max,
    "LagrangeCoded": partial(LagrangeCoded, insecure_seeded_secrets=True),
    "LagrangeShared": partial(LagrangeShared, insecure_seeded_secrets=True),
    "LocalGaussian": partial(LocalGaussian, draws="seeded"),
    "LocalGaussian, side by side": lambda: LocalGaussian(inner=Concat(), draws="seeded"),
    "MaskedSum": partial(MaskedSum, allow_single=True, insecure_seeded_secrets=True),
    "MaskedSum, with recovery": partial(MaskedSum, recovery="auto", allow_single=True, insecure_seeded_secrets=True),
    "PoissonBinomial": lambda: PoissonBinomial(
        MaskedSum(allow_single=True, insecure_seeded_secrets=True), clip=8.0, draws="seeded"
    ),
}
SIDE_BY_SIDE = ("Concat", "LocalGaussian, side by side")
IN_THE_CLEAR = [name for name, make in FACTORIES.items() if make().wire is None]
# How far a round may be off ``plain``, in every element: what the docstrings state, for the numbers of this file.
ERROR = {
    "LagrangeCoded": 2.0**-4,  # l_w = 10, four terms below 16 in absolute value of four parties, data on a grid
    "LagrangeShared": 2.0**-17,
    "LocalGaussian": 10 * LocalGaussian().sigma(D, M),
    "LocalGaussian, side by side": 10 * LocalGaussian().sigma(D, M),
    "MaskedSum": M * 2.0**-24,
    "MaskedSum, with recovery": M * 2.0**-24,
    "PoissonBinomial": 10 * (8**2 * M / (4 * 0.25**2 * 16)) ** 0.5,  # ten standard deviations
}
ROLLS = {
    "everyone": [1, 1, 1, 1],
    "one away": [1, 1, 0, 1],
    "two away": [1, 0, 0, 1],
    "one left": [0, 0, 1, 0],
    "nobody": [0, 0, 0, 0],
}
every_aggregator = pytest.mark.parametrize("name", FACTORIES)


def subject(name: str) -> Subject:
    return Subject(FACTORIES[name](), M, D, 0, ERROR.get(name, 0.0), True)


def laws():
    every = {name: aggregator_laws(make(), M, D, 0, ERROR.get(name, 0.0)) for name, make in FACTORIES.items()}
    return [pytest.param(law, id=f"{name}-{law}") for name, own in every.items() for law in own]


@pytest.mark.parametrize("law", laws())
def test_law(law: Law):
    law()


@every_aggregator
def test_another_device_gives_the_same_value(name):
    another_device_gives_the_same_value(subject(name))


def test_every_concrete_aggregator_is_here():
    classes = {name: getattr(room, name) for name in room.__all__}
    concrete = {name for name, own in classes.items() if issubclass(own, Aggregator) and not isabstract(own)}
    assert concrete == {name.partition(",")[0] for name in FACTORIES}
    others = {name for name, own in classes.items() if not isabstract(own)} - concrete
    assert others == {"Heard", "Traits"}


@pytest.mark.parametrize("part", [Wire, PartySide, ServerSide, Setup, Opening, Accounting, SharedBottoms])
def test_all_methods_of_a_part_are_abstract(part):
    """So a part is whole or absent, and no class inherits what it has not thought of; ``read`` alone has a default."""
    public = {name for name in vars(part) if not name.startswith("_")}
    assert public - {"read"} == part.__abstractmethods__


@every_aggregator
@given(st.lists(st.lists(st.booleans(), min_size=M, max_size=M), min_size=B, max_size=B), st.sampled_from(list(ROLLS)))
def test_rows_that_a_party_does_not_hold_do_not_count(name, held, who):
    """Against plain Python, row by row; nor do those of a party that is not there."""
    present = torch.tensor(held)
    if name not in IN_THE_CLEAR:
        if name.startswith("Lagrange"):
            with pytest.raises(ConfigurationError, match="needs every party to hold every record"):
                FACTORIES[name]().wire.refuse_partly_held(present, Roster.singles(M))
        return
    played = subject(name).play(Roll.of(torch.tensor(ROLLS[who], dtype=torch.bool)), present)
    value, contribution = played.exchange().run().tolist(), played.contribution
    for row in range(B):
        there = [m for m in range(M) if held[row][m] and ROLLS[who][m]]
        mine = [contribution.leaves[m][row].tolist() for m in there]
        if name == "Concat":
            expected = [x if m in there else 0.0 for m in range(M) for x in contribution.leaves[m][row].tolist()]
        elif not there:
            expected = [0.0] * D
        else:
            join = {"Sum": sum, "Mean": fmean, "Max": max}[name]
            expected = [join([h[d] for h in mine]) for d in range(D)]
        assert value[row] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@every_aggregator
def test_absent_segments_are_marked(name):
    who, roll = subject(name).partly
    of = subject(name)
    columns = of.aggregator.columns(of.aggregator.widths(of.width, of.roster), roll)
    expected = [bool(x) for x in roll.included for _ in range(D)] if name in SIDE_BY_SIDE else [True] * D
    assert columns.tolist() == expected, who


# ---- two sides


@every_aggregator
def test_decode_is_given_messages_of_plain_tensors_and_a_server_view(name):
    for who, roll in subject(name).rolls.items():
        played, given = subject(name).play(roll), []
        exchange, server = played.exchange(), wire_of(played.aggregator).server_side()

        class Listening:
            read = server.read

            def decode(self, *arguments, given=given, server=server):
                given.append(arguments)
                return server.decode(*arguments)

        exchange.sides = exchange.sides._replace(server=Listening())
        exchange.send()
        ((messages, view),) = given
        assert view is played.server, who
        assert type(messages) is tuple
        for message in (part for m in messages for part in (m, m.alongside) if part is not None):
            assert type(message) is Message
            assert message.to == "server"
            assert not message.relayed
            assert set(message.senders) <= set(roll.included_parties)
            assert all(type(piece) is torch.Tensor for piece in message.pieces)
