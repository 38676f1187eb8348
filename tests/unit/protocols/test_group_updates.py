"""Updates of groups: what is refused, and whose gradients are sent."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.aggregators import LocalGaussian, MaskedSum, Sum
from lightning_vfl.callbacks.run_summary import summary_lines
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import Linear
from lightning_vfl.protocols.groups.invertible import Exposure, refuse_solvable
from lightning_vfl.rounds.exchange import Exchange, Sides
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.examples import examples
from tests.unit.protocols.test_groups import data, fit, grouped, masked_sum

# ---- what is refused


def exposures():
    sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)
    return st.builds(
        Exposure,
        group=st.just((1, 2, 3)),
        width=st.integers(1, 20),
        parameters=st.integers(1, 60),
        features=st.integers(1, 10),
        records=st.integers(1, 200),
        batches=sizes,
        rounds=st.integers(1, 24),
    )


@given(exposures())
@examples(60)
def test_what_is_refused_is_what_one_update_or_all_may_determine(exposure):
    """Twice as many numbers in records as in updates, and more records in a batch than twice the width."""
    smallest = min(exposure.batches)
    one = smallest > 2 * exposure.width and smallest * exposure.features > 2 * exposure.parameters
    every = exposure.records * exposure.features > 2 * exposure.parameters * exposure.rounds
    if one and every:
        refuse_solvable(exposure)
        return
    with pytest.raises(
        ConfigurationError, match=f"the smallest over {smallest} records.* allow_invertible_updates: true"
    ):
        refuse_solvable(exposure)


def test_a_training_without_an_end_is_refused():
    exposure = Exposure((1, 2, 3), 2, 4, 2, 10**9, [1000], math.inf)
    assert exposure.solvable
    with pytest.raises(ConfigurationError, match="an unlimited number of updates"):
        refuse_solvable(exposure)


def refused(folder, message, aggregator, source=None, **settings):
    module = grouped(aggregator, **{"allow_invertible_updates": False, **settings})
    with pytest.raises(ConfigurationError, match=message):
        fit(folder, module, source=source, max_epochs=1)
    assert module.books.rounds.get("fit", 0) == 0


def test_trainings_that_give_records_away_are_refused_before_a_round(tmp_path):
    linear = {"bottom": Linear}
    refused(
        tmp_path, r"6 planned updates of 20 numbers, the smallest over 4 records, against 54", masked_sum(), **linear
    )
    refused(tmp_path, "reads every embedding of group", Sum())
    refused(tmp_path, "the ε of LocalGaussian does not cover", LocalGaussian(), allow_invertible_updates=True)
    both = {"source": data((3, 3, 3)), "active": None}
    refused(tmp_path, "every group shares a bottom that the server knows", MaskedSum(), **both)


def test_sums_of_enough_records_are_accepted(tmp_path):
    """Width 5, three columns: 20 numbers in the one update of a batch, 54 records of 3 numbers."""
    wide = data((1, 3, 3), batch_size=54)
    module = grouped(MaskedSum(), bottom=Linear, allow_invertible_updates=False, optimizer="Adam")
    t = fit(tmp_path, module, source=wide, max_epochs=1)
    assert module.books.meter.total("up", "model updates").tolist() == [0, *[80] * 3, *[60] * 3]
    assert "fewer numbers in all than their records" in dict(summary_lines(t, module, ("val/",)))["protection"]


# ---- gradients of records that a party does not hold


class Poisoned:
    """A server that answers with numbers that no update survives, in the rows that a party does not hold."""

    def __init__(self, side, held):
        self.side, self.held = side, held

    def decode(self, messages, view):
        return self.side.decode(messages, view)

    def answer(self, grad, aggregate, view):
        sent = self.side.answer(grad, aggregate, view)
        rows = zip(sent.receivers, sent.pieces, strict=True)
        return replace(sent, pieces=tuple(torch.where(self.held[:, m, None], a, torch.nan) for m, a in rows))


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_a_party_is_sent_zeros_in_the_place_of_gradients_of_records_that_it_does_not_hold(layout):
    roster, rows = Roster(((0,), (1, 2, 3)), active=0), Rows(torch.arange(9), 0, 9)
    present = torch.zeros(9, 4, dtype=torch.bool)
    present[:, 0] = True
    present[torch.arange(9), 1 + torch.arange(9) % 3] = True
    aggregator = MaskedSum(layout, execution="equivalent").among(roster)
    honest = Sides.of(aggregator.wire)
    for sides in (honest, honest._replace(server=Poisoned(honest.server, present))):
        h = tuple(torch.randn(9, 4, generator=torch.Generator().manual_seed(m)).requires_grad_() for m in range(4))
        names, roll = RoundNames(0, "fit", 0), Roll.everyone(4)
        parties = PartyView(names, roster, (0, 1, 2, 3), roll.called, rows, None, present)
        server = ServerView(names, roster, rows, roll, (4,) * 4)
        exchange = Exchange(aggregator, Embeddings(h), parties, server, sides=sides)
        value = exchange.run()
        grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(9))
        answers = torch.autograd.grad(value, h, grad)
        for m, answer in enumerate(answers):
            assert torch.equal(answer, torch.where(present[:, m, None], grad, 0.0))
