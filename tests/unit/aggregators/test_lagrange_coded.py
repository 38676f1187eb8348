"""FedVS against Python's integers, fractions, float64 autograd and enumeration on tiny fields."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import floor, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from lightning_vfl.aggregators import LagrangeCoded, Mean
from lightning_vfl.aggregators.coded import data_shares
from lightning_vfl.aggregators.coded.products import ProductParty
from lightning_vfl.crypto import Keystream
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.field import DecodingError, PrimeField
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.rounds.exchange import Exchange, ExpandedRecords, set_up
from lightning_vfl.streams import stream
from lightning_vfl.testing.rounds import Upload
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import LinearForms, Message, PartyView, ServerView
from tests.examples import examples
from tests.further import further
from tests.unit.aggregators.sides import decoded, first_leg, second_leg

FIELDS = [PrimeField(), PrimeField(2**61 - 1)]
SEED = 5
WIDTH = 3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Thousands of tiny products: threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- the harness: parties with polynomial bottoms, records in memory, set-up, and rounds of any records


class Table:
    """Records as a protocol asks for them."""

    present = None

    def __init__(self, features: list[Tensor]) -> None:
        self.features = features

    def __len__(self) -> int:
        return len(self.features[0])

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        return tuple(x[ids] for x in self.features)

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        return self.features[party][ids]


class Parties:
    """M parties of ragged widths and degrees, N records, and the same weights for whatever aggregator."""

    def __init__(self, widths, degrees, records, seed=0, dim=WIDTH, stage="fit"):
        draw = torch.Generator().manual_seed(seed)
        bottoms = [PolynomialNetwork((w,), dim, degree) for w, degree in zip(widths, degrees, strict=True)]
        for bottom in bottoms:
            torch.nn.init.uniform_(bottom.weight, -1.0, 1.0, generator=draw)
        self.table = Table([torch.randn(records, w, generator=draw) for w in widths])
        self.bank, self.roster, self.stage, self.dim = PartyBank(bottoms), Roster.singles(len(widths)), stage, dim
        self.records = ExpandedRecords(self.table, self.bank, torch.device("cpu"))
        self.parties = tuple(range(len(widths)))
        self.weights = [bottom.weight for bottom in bottoms]
        self.basis = tuple(len(weight) for weight in self.weights)
        self.everyone = Roll.everyone(len(widths)).called

    def __len__(self):
        return len(self.parties)

    def expanded(self, ids):
        return tuple(bottom.expand(x) for bottom, x in zip(self.bank.parties, self.table.rows(ids), strict=True))

    def agreed(self, aggregator):
        weights = enumerate(w.detach() for w in self.weights)
        setup = aggregator.setup
        return setup.settle([setup.propose(self.records, m, w, self.roster) for m, w in weights])

    def view(self, parties=None, called=None, ids=None, number=0, memory=None, agreed=None):
        ids = torch.empty(0, dtype=torch.int64) if ids is None else ids
        return PartyView(
            RoundNames(SEED, self.stage, number),
            self.roster,
            self.parties if parties is None else tuple(parties),
            self.everyone if called is None else called,
            Rows(ids, 0, len(ids)),
            memory,
            None,
            agreed or {},
        )

    def prepare(self, aggregator, agreed=None):
        return set_up(aggregator.setup, self.records, self.basis, self.view(agreed=agreed or self.agreed(aggregator)))

    def exchange(
        self, aggregator, ids, included=None, responders=None, called=None, number=0, memory=None, agreed=None
    ):
        """A round of these records; lists of party numbers, None: everybody."""
        included, responders, called = (
            self.everyone if who is None else mask(who, len(self)) for who in (included, responders, called)
        )
        nobody = torch.zeros_like(included)
        roll = Roll(called, included, responders, nobody)
        agreed = agreed or self.agreed(aggregator)
        view = self.view(called=called, ids=ids, number=number, agreed=agreed)
        view = replace(view, memory=self.prepare(aggregator, agreed) if memory is None else memory)
        widths = (self.dim,) * len(self)
        server = ServerView(view.names, self.roster, view.rows, roll, widths, None, len(self.table), agreed)
        return Exchange(aggregator, LinearForms(tuple(self.weights), self.expanded(ids)), view, server)

    def uploads(self, aggregator, ids, who=None, included=None, number=0):
        """What these parties send to the server, and the server's view."""
        exchange = self.exchange(aggregator, ids, included, number=number)
        upload = Upload(aggregator, exchange.contribution, exchange.parties)
        message = heard(upload.first, exchange.server.roll.included)
        answering = self.parties if who is None else tuple(who)
        return upload.then(exchange.server.roll.included, message, answering), exchange.server


def mask(who, parties):
    return torch.tensor([party in set(who) for party in range(parties)])


def heard(message, senders):
    kept = [i for i, sender in enumerate(message.senders) if senders[sender]]
    return Message(
        message.kind,
        message.to,
        tuple(message.senders[i] for i in kept),
        tuple(message.pieces[i] for i in kept),
        None if message.alongside is None else heard(message.alongside, senders),
    )


def some(records, seed=0, n=None):
    """Distinct records in no order."""
    order = torch.randperm(records, generator=torch.Generator().manual_seed(seed))
    return order[:n]


# ---- the oracle: fractions, Python's integers, and the definition of the draws


def powers(x: Tensor, degree: int) -> list[list[float]]:
    """Powers 1..D as float32 products, and the constant."""
    first = x.numpy()
    out = [first]
    for _ in range(degree - 1):
        out.append(out[-1] * first)
    rows: list[list[float]] = np.concatenate([*out, np.ones_like(first[:, :1])], axis=1).tolist()
    return rows


def rounded_data(parties, party, ids, l_x):
    degree = parties.bank.parties[party].degree
    half = Fraction(1, 2)
    return [
        [floor(Fraction(v) * 2**l_x + half) for v in row] for row in powers(parties.table.features[party][ids], degree)
    ]


def rounded_weights(parties, party, l_w, number):
    """To the integer above with the probability of the fraction: 53 bits of the round's named words decide."""
    weight = parties.weights[party].tolist()
    words = stream(SEED, "weights", parties.stage, number, party).random_raw(len(weight) * parties.dim)
    drawn = iter(Fraction(int(word) >> 11, 2**53) for word in words)
    scaled = [[Fraction(v) * 2**l_w for v in row] for row in weight]
    return [[floor(v) + int(next(drawn) < v - floor(v)) for v in row] for row in scaled]


def exact(parties, aggregator, ids, included, number=0):
    """The integer sums, (B, D)."""
    l_w = parties.agreed(aggregator)["l_w"]
    total = np.zeros((len(ids), parties.dim), dtype=object)
    for party in included:
        x = np.array(rounded_data(parties, party, ids, aggregator.l_x), dtype=object)
        total = total + x @ np.array(rounded_weights(parties, party, l_w, number), dtype=object)
    return total.tolist(), aggregator.l_x + l_w


def as_mean(sums, bits, parties):
    """The double next to the sum, scaled and divided, as float32."""
    return torch.tensor([[float(np.float32(float(s) * 2.0**-bits / parties)) for s in row] for row in sums])


# ---- exact sums, whoever answers


def configuration(number):
    """One of many: sizes, field, T, K, A, subsets, record ids, all drawn at random."""
    draw = np.random.Generator(np.random.PCG64(number))
    m = int(draw.integers(2, 10))
    privacy = int(draw.integers(0, min(3, (m - 1) // 2) + 1))
    wrong = int(draw.integers(0, (m - 2 * privacy - 1) // 2 + 1)) if draw.random() < 0.4 else 0
    blocks = int(draw.integers(1, (m - 2 * wrong - 1) // 2 + 1 - privacy + 1))
    aggregator_of = {
        "blocks": blocks,
        "privacy": privacy,
        "wrong": wrong,
        "rerandomise": bool(draw.integers(2)),
        "field": FIELDS[int(draw.integers(2))],
        "l_x": int(draw.integers(0, 10)),
        "scale": "auto" if draw.random() < 0.7 else int(draw.integers(0, 12)),
    }
    records = int(draw.integers(1, 30))
    stage = "fit" if draw.random() < 0.7 else "test"
    widths, degrees = draw.integers(1, 4, m).tolist(), draw.integers(1, 4, m).tolist()
    parties = Parties(widths, degrees, records, number, int(draw.integers(1, 4)), stage)
    included = sorted(draw.permutation(m)[: draw.integers(1, m + 1)].tolist())
    called = sorted({*included, *draw.permutation(m)[: draw.integers(0, m + 1)].tolist()})
    needed = 2 * (blocks + privacy - 1) + 1 + 2 * wrong
    responders = draw.permutation(m)[: draw.integers(needed, m + 1)].tolist()
    ids = torch.from_numpy(draw.permutation(records)[: draw.integers(1, records + 1)])
    roll = {"included": included, "called": called, "responders": responders, "number": int(draw.integers(100))}
    return aggregator_of, parties, ids, roll


@pytest.mark.parametrize("start", [0, *(further(n) for n in range(10, 160, 10))])
def test_coded_is_equivalent_is_the_integer_sum_bit_for_bit(start):
    """Whatever the subset S of the parties, the subset that answers, the field and the records."""
    for number in range(start, start + 10):
        options, parties, ids, roll = configuration(number)
        coded = LagrangeCoded(**options)
        exchange = parties.exchange(coded, ids, **roll)
        decoded = exchange.send()
        equivalent = LagrangeCoded(**options, execution="equivalent")
        again = parties.exchange(equivalent, ids, **roll).send()
        sums, bits = exact(parties, coded, ids, roll["included"], roll["number"])
        wanted = as_mean(sums, bits, len(roll["included"]))
        assert torch.equal(decoded.value, wanted), (number, options)
        assert torch.equal(again.value, wanted), (number, options)
        clear = coded.wire.clear(exchange.contribution, exchange.parties, exchange.server.roll)
        assert torch.equal(clear.value, wanted), (number, options)
        assert decoded.corrected == ()


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("rerandomise", [True, False])
def test_every_subset_of_r_uploads_gives_the_same_tensor_and_one_fewer_raises(field, rerandomise):
    """All 21 subsets of 5 out of 7, in rising and falling order."""
    parties = Parties([2, 1, 3, 1, 2, 1, 1], [1, 2, 1, 3, 1, 1, 2], 11)
    aggregator = LagrangeCoded(blocks=2, privacy=1, rerandomise=rerandomise, field=field)
    ids = some(11, n=6)
    message, server = parties.uploads(aggregator, ids)
    sums, bits = exact(parties, aggregator, ids, parties.parties)
    wanted = as_mean(sums, bits, 7)
    for who in combinations(range(7), 5):
        for order in (who, who[::-1]):
            arrived = Message("products", "server", order, tuple(message.pieces[j] for j in order))
            assert torch.equal(decoded(aggregator, (arrived,), server).value, wanted)
    for who in combinations(range(7), 4):
        arrived = Message("products", "server", who, tuple(message.pieces[j] for j in who))
        with pytest.raises(
            MalformedMessage, match=r"4 of 5 needed 'products' have come, and those of parties \d, \d, \d have"
        ):
            decoded(aggregator, (arrived,), server)


@pytest.mark.parametrize("ids", [some(1), some(5), some(7), torch.tensor([3, 0, 3, 3])], ids=lambda ids: f"{len(ids)}")
def test_padding_more_blocks_than_records_and_a_record_that_is_asked_for_twice_change_nothing(ids):
    parties = Parties([1, 2, 1, 1, 2, 1, 1], [2] + [1] * 6, max(len(ids), 5))
    aggregator = LagrangeCoded(blocks=3, privacy=1)
    value = parties.exchange(aggregator, ids).send().value
    assert torch.equal(value, as_mean(*exact(parties, aggregator, ids, range(7)), 7))


@pytest.mark.parametrize("rerandomise", [True, False])
@pytest.mark.parametrize("execution", ["coded", "equivalent"])
def test_a_process_without_rows_takes_part_with_nothing(execution, rerandomise):
    """The last joint batch may be smaller than the number of processes that share it."""
    parties = Parties([1, 2, 1, 1, 1], [2, 1, 1, 1, 1], 7)
    aggregator = LagrangeCoded(blocks=2, privacy=1, execution=execution, rerandomise=rerandomise)
    for included in (range(5), [0, 3, 4]):
        none = parties.exchange(aggregator, torch.empty(0, dtype=torch.int64), included).run()
        assert none.shape == (0, WIDTH)
        assert not any(grad.any() for grad in torch.autograd.grad(none.sum(), parties.weights))


def test_the_late_answer_nothing_and_what_has_not_arrived_is_not_used(monkeypatch):
    """No value would tell: any R answers give the same, and every party's hiding vanishes where it is decoded."""
    parties, seen, multiply = Parties([1] * 7, [1] * 7, 8), [], ProductParty._multiply

    def watched(self, received, included, view):
        seen.append((received, view.parties))
        return multiply(self, received, included, view)

    monkeypatch.setattr(ProductParty, "_multiply", watched)
    aggregator = LagrangeCoded(blocks=2, privacy=1)
    for included, responders in (([0, 2, 3, 4, 6], [0, 2, 3, 4, 6]), (range(7), [6, 1, 5, 4, 2]), (range(6), range(7))):
        parties.exchange(aggregator, torch.arange(8), included, responders).send()
        received, answering = seen.pop()
        assert received.senders == received.alongside.senders == tuple(included)
        assert len(received.pieces) == len(received.alongside.pieces) == len(tuple(included))
        assert set(answering) <= set(responders)
        assert len(answering) == 5


def test_records_that_share_a_coded_row_cost_one():
    """The cheap batch: a coded row of K records is one row of every upload."""
    parties = Parties([1] * 5, [1] * 5, 10)
    aggregator = LagrangeCoded(blocks=2, privacy=1)
    table = aggregator.setup.arrangement(10, 5, SEED, "fit").at(0, 5)
    aligned, server = parties.uploads(aggregator, table[:3].flatten())
    assert {piece.shape for piece in aligned.pieces} == {(3, WIDTH)}
    scattered, _ = parties.uploads(aggregator, table[:, 0].flatten())
    assert {piece.shape for piece in scattered.pieces} == {(5, WIDTH)}
    assert decoded(aggregator, (aligned,), server).value.shape == (6, WIDTH)


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_against_the_plain_mean_within_the_stated_error(field):
    """|x̃ - x||w| + |x̃||w̃ - w| over all terms, |x̃ - x| at most half a unit and |w̃ - w| less than one."""
    for number in range(8):
        parties = Parties([3, 1, 2, 4, 2], [1, 3, 2, 1, 1], 9, number)
        l_x, l_w = 6, 12
        aggregator = LagrangeCoded(blocks=1, privacy=1, l_x=l_x, scale=l_w, field=field)
        ids = some(9, number)
        included = [0, 2, 3, 4] if number % 2 else [0, 1, 2, 3, 4]
        value = parties.exchange(aggregator, ids, included, number=number).send().value.double()
        h, bound = [], torch.zeros(9, WIDTH, dtype=torch.float64)
        for party in included:
            x, w = parties.expanded(ids)[party].double(), parties.weights[party].detach().double()
            rounded = torch.tensor(rounded_data(parties, party, ids, l_x)).double() * 2.0**-l_x
            h.append(x @ w)
            bound += 2.0 ** -(l_x + 1) * w.abs().sum(0) + 2.0**-l_w * rounded.abs().sum(1, keepdim=True)
        wanted = torch.stack(h).mean(0)
        plain = aggregator.plain(tuple(h), Roll.everyone(len(h)))
        assert torch.equal(plain, Mean().plain(tuple(h), Roll.everyone(len(h))))
        torch.testing.assert_close(plain, wanted)
        error = (value - wanted).abs()
        assert (error <= bound / len(included) + wanted.abs() * 2.0**-23).all()
        assert error.max() > 0


# ---- rounding of weights


def test_the_rounding_of_weights_is_unbiased_over_rounds():
    """The mean over 100 rounds against the same data with the weights themselves; Hoeffding, one in 10^6."""
    parties = Parties([2, 1, 3], [1, 2, 1], 4, dim=32)
    with torch.no_grad():
        for weight in parties.weights:  # all columns alike: a round gives 32 draws of each weight
            weight.copy_(weight[:, :1].expand_as(weight))
    l_x, l_w, rounds = 4, 2, 100
    aggregator = LagrangeCoded(blocks=1, privacy=1, l_x=l_x, scale=l_w, execution="equivalent")
    ids = torch.arange(4)
    memory, values = parties.prepare(aggregator), []
    for number in range(rounds):
        values.append(parties.exchange(aggregator, ids, number=number, memory=memory).send().value.double())
    mean = torch.stack(values).mean((0, 2))
    assert len({tuple(value[0].tolist()) for value in values}) == rounds
    wanted, spread = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for party in range(3):
        x = torch.tensor(rounded_data(parties, party, ids, l_x)).double() * 2.0**-l_x
        wanted += x @ parties.weights[party][:, 0].detach().double() / 3
        spread += ((x * 2.0**-l_w / 3) ** 2).sum(1)
    assert ((mean - wanted).abs() < (spread * log(2e6) / (2 * rounds * 32)).sqrt() + 1e-7).all()


def test_draws_differ_between_rounds_parties_and_stages_and_never_between_runs():
    """Coins for 96 weights of each of three equal parties, seen through the sums of one party at a time."""
    parties = Parties([2] * 3, [1] * 3, 4, dim=32)
    for weight, x in zip(parties.weights, parties.table.features, strict=True):
        with torch.no_grad():
            weight.fill_(0.5)
        x.copy_(parties.table.features[0])
    aggregator = LagrangeCoded(blocks=1, privacy=1, scale=0, execution="equivalent")
    values = []
    for stage, number, party in product(("fit", "validation"), (0, 1), range(3)):
        parties.stage = stage
        value, again = (parties.exchange(aggregator, torch.arange(4), [party], number=number).send() for _ in "ab")
        assert torch.equal(value.value, again.value)
        values.append(tuple(value.value.flatten().tolist()))
    assert len(set(values)) == len(values) == 12


# ---- nothing wraps around


def forms(parties, short):
    """Parties given as integers (x rows, weight rows); data up to ``short`` nearer to 0, which are rounded to these."""
    weights = tuple(torch.tensor(w, dtype=torch.float64) for _, w in parties)
    basis = (torch.tensor(x, dtype=torch.float64) for x, _ in parties)
    return LinearForms(weights, tuple(x - x.sign() * short for x in basis))


def reach(x, w):
    """max |X||W| in Python's integers."""
    columns = list(zip(*w, strict=True))
    return max(sum(abs(a * b) for a, b in zip(row, column, strict=True)) for row in x for column in columns)


def passes(aggregator, parties, short=0.0):
    m, agreed = len(parties), {"l_w": 0}
    ids = torch.arange(len(parties[0][0]))
    view = PartyView(
        RoundNames(0, Stage.FIT, 0),
        Roster.singles(m),
        tuple(range(m)),
        Roll.everyone(m).called,
        Rows(ids, 0, len(ids)),
        None,
    )
    try:
        aggregator.wire.clear(forms(parties, short), replace(view, agreed=agreed), Roll.everyone(m))
    except ConfigurationError as error:
        assert "overflow" in str(error)  # noqa: PT017  # the reason matters only when there is one
        return False
    return True


@st.composite
def near_the_bound(draw, field):
    """Parties with signs and several rows and columns; one of them within a few units of (p - 1) / (2 |S|)."""
    m, rows, columns = draw(st.integers(2, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    bound, chosen = field.half // m, draw(st.integers(0, m - 1))
    parties = []
    for party in range(m):
        width = draw(st.integers(1, 4))
        x = [[draw(st.integers(-3, 3)) for _ in range(width)] for _ in range(rows)]
        w = [[draw(st.integers(-(2**16), 2**16)) for _ in range(columns)] for _ in range(width)]
        if party == chosen:
            x[0][0] = draw(st.sampled_from([-1, 1]))
            used = sum(abs(a * row[0]) for a, row in zip(x[0][1:], w[1:], strict=True))
            delta = draw(st.sampled_from([-3, -1, 0, 1, 2, 3, 2**12, -(2**12)]))
            w[0][0] = draw(st.sampled_from([-1, 1])) * int(float(bound + delta - used))
        parties.append((x, w))
    return parties


@examples(100)
@given(near_the_bound(PrimeField()), st.sampled_from([0.0, 0.25, 0.499]))
def test_a_sum_passes_exactly_if_every_party_is_within_the_bound(parties, short):
    """The quick look lets nothing through that Python's integers refuse, and refuses nothing that they let through."""
    field = PrimeField()
    aggregator = LagrangeCoded(privacy=0, l_x=0, scale=0, field=field)
    fits = all(reach(x, w) <= field.half // len(parties) for x, w in parties)
    assert passes(aggregator, parties, short) == fits


@pytest.mark.parametrize("field", FIELDS[1:], ids=str)
@given(data=st.data())
def test_above_2_to_the_53_a_sum_never_passes_too_late(field, data):
    parties = data.draw(near_the_bound(field))
    aggregator = LagrangeCoded(privacy=0, l_x=0, scale=0, field=field)
    largest, bound = max(reach(x, w) for x, w in parties), field.half // len(parties)
    if passes(aggregator, parties, data.draw(st.sampled_from([0.0, 0.25, 0.499]))):
        assert largest <= bound
    else:
        assert largest * (1 + Fraction(1, 10**12)) > bound


@pytest.mark.parametrize("execution", ["coded", "equivalent"])
def test_an_overflow_names_the_party_the_scales_the_bound_and_what_fits(execution, monkeypatch):
    """Weights have grown; nothing is drawn for a message then, and with the setting that it names, the round runs."""
    parties = Parties([2, 3, 2], [1, 2, 1], 8)
    with torch.no_grad():
        parties.weights[1].mul_(100)
    aggregator = LagrangeCoded(blocks=1, privacy=1, l_x=8, execution=execution)
    exchange = parties.exchange(aggregator, torch.arange(8), agreed={"l_w": 18})
    with monkeypatch.context() as patch:
        patch.setattr(Keystream, "words", lambda self, n: pytest.fail("a secret was drawn"))
        bound = (2**30 - 1) // 3
        message = rf"party 1: l_x = 8 and l_w = 18 overflow: .* = {bound} for p = {2**31 - 1} and \|S\| = 3; use l_w = "
        with pytest.raises(ConfigurationError, match=message) as caught:
            exchange.send()
    named = int(str(caught.value).split("use l_w = ")[1].split(" ")[0])
    assert named < 18
    for number in range(10):
        parties.exchange(aggregator, torch.arange(8), number=number, agreed={"l_w": named}).send()


def test_a_party_that_is_not_called_does_not_stop_the_round():
    parties = Parties([2, 1, 1, 1], [1] * 4, 5)
    aggregator = LagrangeCoded(blocks=1, privacy=1, scale=16)
    agreed, memory, who = parties.agreed(aggregator), parties.prepare(aggregator), [0, 1, 2]
    settled = {"memory": memory, "agreed": agreed}
    with torch.no_grad():
        parties.weights[3].mul_(1e3)
    with pytest.raises(ConfigurationError, match=r"party 3: .* overflow"):
        parties.exchange(aggregator, torch.arange(5), **settled).send()
    value = parties.exchange(aggregator, torch.arange(5), who, who, who, **settled).send().value
    with torch.no_grad():
        parties.weights[3].mul_(1e-3)
    assert torch.equal(value, as_mean(*exact(parties, aggregator, torch.arange(5), who), 3))


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("headroom", [further(1.0), 4.0, further(16.0)])
def test_an_agreed_scale_leaves_its_headroom_and_one_bit_more_would_not(field, headroom):
    parties = Parties([3, 1, 2, 2], [1, 3, 2, 1], 20)
    aggregator = LagrangeCoded(blocks=1, privacy=1, l_x=8, headroom=headroom, field=field)
    l_w = parties.agreed(aggregator)["l_w"]
    assert type(l_w) is int
    reaches = []
    for party in range(4):
        x = [[abs(v) for v in row] for row in rounded_data(parties, party, torch.arange(20), 8)]
        least = Fraction(torch.tensor(len(parties.weights[party]) ** -0.5 / 4).item())  # of weights that begin smaller
        w = [
            [max(abs(Fraction(v)), least) * Fraction(headroom) for v in row] for row in parties.weights[party].tolist()
        ]
        reaches.append((reach(x, w), max(sum(row) for row in x), max(v for row in w for v in row)))
    fits = [
        all(
            most * 2**bits + rows <= field.half // 4 and largest * 2**bits + 1 <= field.half
            for most, rows, largest in reaches
        )
        for bits in (l_w, l_w + 1)
    ]
    assert fits == [True, l_w == 60]
    settled = {"memory": parties.prepare(aggregator), "agreed": {"l_w": l_w}}
    with torch.no_grad():
        for weight in parties.weights:
            weight.mul_(headroom * (1 - 1e-6))
    for number in range(5):
        parties.exchange(aggregator, torch.arange(20), number=number, **settled).send()


def test_a_scale_of_ones_own_is_agreed_to_up_to_what_fits_at_the_beginning():
    parties = Parties([3, 1, 2, 2], [1, 3, 2, 1], 20)
    most = parties.agreed(LagrangeCoded(headroom=1.0))["l_w"]
    assert parties.agreed(LagrangeCoded(scale=most)) == {"l_w": most}
    with pytest.raises(ConfigurationError, match=f"scale: {most + 1} overflows .* use scale: auto, {most} or less"):
        parties.agreed(LagrangeCoded(scale=most + 1))
    parties.exchange(LagrangeCoded(scale=most), torch.arange(20)).send()


def test_every_record_counts_for_the_agreed_scale_also_beyond_those_that_are_looked_at_together():
    parties = Parties([1, 1, 1], [1] * 3, 8200)
    before = parties.agreed(LagrangeCoded())["l_w"]
    parties.table.features[2][8199] = 1000.0
    assert parties.agreed(LagrangeCoded())["l_w"] <= before - 6
    assert parties.agreed(LagrangeCoded(scale=9)) == {"l_w": 9}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"l_x": 28}, "no l_w fits: data with l_x = 28 and a headroom of 16"),
        ({"headroom": 1e9, "l_x": 10}, "no l_w fits: data with l_x = 10 and a headroom of 1e"),
        ({"l_x": 40}, "l_x = 40 takes .* use l_x = "),
    ],
)
def test_data_that_do_not_fit_the_field_are_refused_before_training(settings, words):
    parties = Parties([2, 2, 2], [2, 1, 1], 10)
    with pytest.raises(ConfigurationError, match=words):
        parties.agreed(LagrangeCoded(blocks=1, privacy=1, **settings))


# ---- gradients


@pytest.mark.parametrize("execution", ["coded", "equivalent"])
@pytest.mark.parametrize("included", [[0, 1, 2, 3, 4], [0, 2, 3], [4]])
def test_gradients_are_those_of_autograd_on_the_rounded_data(execution, included):
    """(1/|S|) X̃ᵀ dL/dz in float64, the rounding of weights passed straight through; others get exactly zero."""
    parties = Parties([3, 1, 2, 4, 1], [1, 3, 2, 1, 1], 12)
    aggregator = LagrangeCoded(blocks=1, privacy=1, l_x=3, execution=execution)
    ids = some(12, 1, 7)
    g = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(2))
    value = parties.exchange(aggregator, ids, included).run()
    got = torch.autograd.grad(value, parties.weights, g)
    doubles = [w.detach().double().requires_grad_() for w in parties.weights]
    joined = sum(
        torch.tensor(rounded_data(parties, m, ids, 3)).double() * 2.0**-3 @ doubles[m] for m in included
    ) / len(included)
    wanted = torch.autograd.grad(joined, doubles, g.double(), allow_unused=True)
    for party, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.dtype == torch.float32
        if party in included:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
        else:
            assert theirs is None
            assert not ours.any()


# ---- what the server and the parties see


def scripted(monkeypatch, draws):
    """The operating system's words replaced by these field elements, one list a draw of masks, in order."""
    queue = [np.asarray(draw, dtype=np.uint32).flatten() for draw in draws]

    def words(self, n):
        drawn = queue.pop(0)
        assert (len(drawn) + 1) // 2 == n
        return np.append(drawn, np.zeros(len(drawn) % 2, np.uint32)).view(np.uint64)

    monkeypatch.setattr(Keystream, "words", words)
    return queue


class Given:
    """Expanded records as a test gives them: one list of rows a party."""

    def __init__(self, *basis):
        self.columns = [torch.tensor(x, dtype=torch.float32) for x in basis]

    def __len__(self):
        return len(self.columns[0])

    def basis(self, party, ids):
        return self.columns[party][ids]


def seen(monkeypatch, aggregator, basis, weights, included, draws):
    """All M uploads, (M, |B|, D), of a round over all records, with these masks; records stand in order."""
    m, records = len(basis), Given(*basis)
    ids, called = torch.arange(len(records)), mask(included, m)
    queue = scripted(monkeypatch, draws)
    view = PartyView(
        RoundNames(0, Stage.TEST, 0),
        Roster.singles(m),
        tuple(range(m)),
        called,
        Rows(ids, 0, len(ids)),
        None,
        None,
        {"l_w": 0},
    )
    view = replace(view, memory=set_up(aggregator.setup, records, tuple(x.shape[1] for x in records.columns), view))
    contribution = LinearForms(tuple(torch.tensor(w, dtype=torch.float32) for w in weights), tuple(records.columns))
    upload = Upload(aggregator, contribution, view)
    assert upload.first.senders == tuple(included)
    uploads = upload.then(called, upload.first).pieces
    assert not queue
    return torch.stack(uploads)


def lagrange(points, j, x, p):
    """The polynomial that is 1 at point j and 0 at the others, at x."""
    out = 1
    for other in points:
        if other != points[j]:
            out = out * (x - other) * pow(points[j] - other, -1, p)
    return out % p


TINY = 11
E1 = ([[1, 0], [1, 0]], [1, 0])  # rows of X are blocks, columns are features; the block sums of both are (1, 1)
E2 = ([[1, 0], [0, 1]], [1, 1])
MASKS = list(product(range(TINY), repeat=2))


def as_parties(x, rows):
    """Two features at parties 0 and 1 of five, the same coded row again and again; the others hold zeros."""
    return [[[x[block][feature]] for _ in range(rows) for block in range(2)] for feature in range(2)] + [
        [[0]] * (2 * rows)
    ] * 3


def written_out(x, w, z, v, alpha):
    """F(α) · G(α) mod 11 from the formulas: K = 2, T = 1, two features."""
    beta, total = (1, 2, 3), 0
    for feature in range(2):
        f = sum(
            value * lagrange(beta, k, alpha, TINY) for k, value in enumerate((x[0][feature], x[1][feature], z[feature]))
        )
        g = sum(value * lagrange(beta, k, alpha, TINY) for k, value in enumerate((w[feature], w[feature], v[feature])))
        total += f * g
    return total % TINY


def without_hiding(monkeypatch, example):
    """Uploads under all 11^4 masks: coded rows run through those of the data, columns through those of the weights."""
    x, w = example
    aggregator = LagrangeCoded(blocks=2, privacy=1, rerandomise=False, field=PrimeField(TINY), l_x=0, scale=0)
    data = [[z[feature] for z in MASKS] for feature in range(2)] + [[0] * len(MASKS)] * 3
    drawn = [[v[feature] for v in MASKS] for feature in range(2)]
    weights = [[[w[feature]] * len(MASKS)] for feature in range(2)] + [[[0] * len(MASKS)]] * 3
    return seen(monkeypatch, aggregator, as_parties(x, len(MASKS)), weights, [0, 1], [*data, drawn])


@pytest.mark.parametrize(
    ("example", "every"), [further(E1, 1), further(E2, 1), (E2, 5)], ids=["aligned", "crossed", "some crossed"]
)
def test_uploads_are_those_of_the_formulas(monkeypatch, example, every):
    """For all 14,641 masks, or every fifth, in Python's integers; the block sums are 1 and 1 whatever the masks."""
    uploads = without_hiding(monkeypatch, example)
    for j in range(5):
        wanted = [[written_out(*example, z, v, 4 + j) for v in MASKS] for z in MASKS[::every]]
        assert uploads[j][::every].tolist() == wanted
    points = (4, 5, 6, 7, 8)
    for block in (1, 2):
        decoded = sum(lagrange(points, j, block, TINY) * uploads[j] for j in range(5)) % TINY
        assert (decoded == 1).all()


def distribution(uploads):
    return Counter(map(tuple, uploads.flatten(1).T.tolist()))


def distance(one, other):
    """Total variation of two distributions given as counts of equally many cases."""
    total = sum(one.values())
    assert total == sum(other.values())
    return sum(abs(one[view] - other[view]) for view in one.keys() | other.keys()) / (2 * total)


def test_without_hiding_the_uploads_tell_equal_sums_apart(monkeypatch):
    one, other = (distribution(without_hiding(monkeypatch, example)) for example in (E1, E2))
    assert distance(one, other) == pytest.approx(0.91, abs=0.005)


@pytest.mark.parametrize("example", [E1, E2], ids=["aligned", "crossed"])
@pytest.mark.parametrize("v", [(0, 0), (3, 7), (10, 1)])
def test_with_hiding_the_uploads_are_uniform_over_all_that_give_the_sums(monkeypatch, example, v):
    """For every mask of the data: the 11^3 free values of one party give each of the 11^3 consistent views once."""
    x, w = example
    aggregator = LagrangeCoded(blocks=2, privacy=1, field=PrimeField(TINY), l_x=0, scale=0)
    free = np.array(list(product(range(TINY), repeat=3))).T  # (R - K, 11^3)
    data = [[z[feature] for z in MASKS] for feature in range(2)] + [[0] * len(MASKS)] * 3
    drawn = [[v[feature]] * free.shape[1] for feature in range(2)]
    rows = len(MASKS)
    zeros = np.zeros((3, 2 * rows, free.shape[1]), dtype=np.int64)
    zeros[:, :rows] = free[:, None]
    zeros[:, rows:] = np.array([5, 0, 9])[:, None, None]  # the other party's, whatever they are
    weights = [[[w[feature]] * free.shape[1]] for feature in range(2)] + [[[0] * free.shape[1]]] * 3
    uploads = seen(monkeypatch, aggregator, as_parties(x, rows), weights, [0, 1], [*data, drawn, zeros]).numpy()
    consistent = {
        tuple((1 + (a - 1) * (a - 2) * (q[0] + q[1] * a + q[2] * a * a)) % TINY for a in range(4, 9))
        for q in product(range(TINY), repeat=3)
    }
    assert len(consistent) == TINY**3
    place = TINY ** np.arange(5)
    wanted = np.sort(np.array(sorted(consistent)) @ place)
    views = np.einsum("jrd,j->rd", uploads, place)
    assert (np.sort(views, axis=1) == wanted).all()


def scalar(monkeypatch, x, w, p, rerandomise):
    """K = 1, one feature: all uploads under all masks, p^2 without hiding and p^4 with it."""
    aggregator = LagrangeCoded(blocks=1, privacy=1, rerandomise=rerandomise, field=PrimeField(p), l_x=0, scale=0)
    free = list(product(range(p), repeat=3 if rerandomise else 1))  # weights' mask, then the R - K = 2 free values
    draws = [list(range(p)), [0] * p, [0] * p, [f[0] for f in free]]
    if rerandomise:
        draws.append([[[f[i] for f in free]] * p for i in (1, 2)])
    basis = [[[x]] * p, [[0]] * p, [[0]] * p]
    weights = [[[w] * len(free)], [[0] * len(free)], [[0] * len(free)]]
    return distribution(seen(monkeypatch, aggregator, basis, weights, [0], draws))


def test_a_scalar_with_a_sum_other_than_zero_shows_nothing_even_without_hiding(monkeypatch):
    for sums in (1, 2, 4, -4):
        pairs = [(x, w) for x in range(-5, 6) for w in range(-5, 6) if x * w == sums]
        first, *others = (scalar(monkeypatch, *pair, TINY, False) for pair in pairs)
        assert len(pairs) >= 2
        assert all(distance(first, other) == 0 for other in others)


def test_a_scalar_with_the_sum_zero_needs_hiding(monkeypatch):
    """Nothing at all against zero data or zero weights, which the uploads' polynomial shows by its factors."""
    for rerandomise in (False, True):
        nothing, *others = (scalar(monkeypatch, x, w, 7, rerandomise) for x, w in ((0, 0), (0, 1), (2, 0)))
        for other in others:
            assert (distance(nothing, other) == 0) == rerandomise
            assert distance(nothing, other) > 0.1 or rerandomise
    for view in (nothing, *others):  # all p^4 masks: each of the p^2 views that decode to zero equally often
        assert len(view) == 7**2
        assert set(view.values()) == {7**2}


@pytest.mark.parametrize("privacy", [1, 2])
def test_t_pieces_of_every_message_are_equally_distributed_whatever_is_shared(privacy):
    """Smoke, not proof: seeded secrets, joint cells of the T pieces' leading bits, threshold 1e-6."""
    for scale in (0.0, 1.0):
        parties = Parties([40] * 7, [1] * 7, 200, dim=40)
        with torch.no_grad():
            for weight, x in zip(parties.weights, parties.table.features, strict=True):
                weight.mul_(scale), x.mul_(scale)
        aggregator = LagrangeCoded(blocks=1, privacy=privacy, insecure_seeded_secrets=True)
        exchange = parties.exchange(aggregator, torch.arange(200))
        models = first_leg(aggregator, exchange.contribution, exchange.parties)
        data = next(iter(aggregator.setup.offer(parties.records, exchange.parties.memory, exchange.parties))).pieces[0]
        bits = 4 // privacy
        for piece in (models.pieces[3], models.alongside.pieces[3], data):
            for who in combinations((0, 3, 6), privacy):
                cells = sum((piece[j].flatten() >> (31 - bits)) << (bits * i) for i, j in enumerate(who))
                assert chisquare(np.bincount(cells.numpy(), minlength=16)).pvalue > 1e-6


def test_masks_are_fresh_in_every_message_and_never_shared_between_parties(monkeypatch):
    """The same data and weights again: with the operating system's secrets and seeded ones, no share is repeated."""
    monkeypatch.setattr(data_shares, "SHARED_AT_ONCE", 40)
    parties = Parties([3] * 5, [1] * 5, 10)
    for x in parties.table.features:
        x.fill_(1.0)
    for seeded in (False, True):
        aggregator = LagrangeCoded(blocks=1, privacy=1, scale=8, insecure_seeded_secrets=seeded)
        with torch.no_grad():
            for weight in parties.weights:
                weight.fill_(0.5)
        memory = parties.prepare(aggregator)
        view = parties.view(memory=memory)
        offers = [message.pieces[0] for message in aggregator.setup.offer(parties.records, memory, view)]
        assert len(offers) > 5
        words = [w for piece in offers for w in piece.flatten().tolist()]
        for number in range(3):
            exchange = parties.exchange(aggregator, torch.arange(10), number=number, memory=memory)
            message = first_leg(aggregator, exchange.contribution, exchange.parties)
            words += [w for piece in (*message.pieces, *message.alongside.pieces) for w in piece.flatten().tolist()]
        # a mask that is used twice repeats a whole piece; of these words below 2^31, two are equal in one run of 250
        assert len(words) - len(set(words)) <= 3


def test_seeded_secrets_repeat_every_message_and_real_ones_none():
    parties = Parties([2, 1, 3, 1, 1], [1, 2, 1, 1, 1], 9)
    for seeded in (True, False):
        aggregator = LagrangeCoded(blocks=2, privacy=1, insecure_seeded_secrets=seeded)
        one, other = (parties.uploads(aggregator, torch.arange(9))[0] for _ in range(2))
        for a, b in zip(one.pieces, other.pieces, strict=True):
            assert torch.equal(a, b) == seeded


# ---- wrong uploads


def spoilt(message, field, who, seed=0):
    """Every element of these parties' uploads wrong."""
    pieces = list(message.pieces)
    draw = torch.Generator().manual_seed(seed)
    for party in who:
        i = message.senders.index(party)
        error = torch.randint(1, field.modulus, pieces[i].shape, generator=draw)
        pieces[i] = field.add(pieces[i], error)
    return replace(message, pieces=tuple(pieces))


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize(("wrong", "answering"), [(1, [0, 2, 3, 5, 8]), (2, [8, 1, 2, 3, 4, 6, 7])])
def test_up_to_a_wrong_uploads_are_corrected_and_their_parties_named(field, wrong, answering):
    """K = T = 1, so R = 3: every choice of at most A liars among R + 2A that have answered."""
    parties = Parties([1, 2, 1, 1, 1, 2, 1, 1, 1], [2] + [1] * 8, 6)
    aggregator = LagrangeCoded(blocks=1, privacy=1, wrong=wrong, field=field)
    assert aggregator.wire.needed(9) == 3 + 2 * wrong == len(answering)
    ids = some(6, n=4)
    message, server = parties.uploads(aggregator, ids, answering)
    wanted = as_mean(*exact(parties, aggregator, ids, range(9)), 9)
    for n in range(wrong + 1):
        for liars in combinations(sorted(answering), n):
            aggregate = decoded(aggregator, (spoilt(message, field, liars),), server)
            assert torch.equal(aggregate.value, wanted)
            assert sorted(aggregate.corrected) == list(liars)


def test_one_wrong_element_is_enough_to_be_named():
    parties = Parties([1] * 7, [1] * 7, 6)
    aggregator = LagrangeCoded(blocks=1, privacy=1, wrong=2)
    ids = torch.arange(6)
    message, server = parties.uploads(aggregator, ids)
    message.pieces[5][3, 1] += 1
    message.pieces[2][0, 0] = 0
    aggregate = decoded(aggregator, (message,), server)
    assert aggregate.corrected == (2, 5)
    assert torch.equal(aggregate.value, as_mean(*exact(parties, aggregator, ids, range(7)), 7))


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_more_wrong_uploads_raise_unless_they_are_coordinated(field):
    parties = Parties([1] * 7, [1] * 7, 6)
    aggregator = LagrangeCoded(blocks=1, privacy=1, wrong=2, field=field)
    message, server = parties.uploads(aggregator, torch.arange(6))
    for liars in ((0, 1, 2), (1, 3, 5, 6), tuple(range(7))):
        with pytest.raises(DecodingError, match="more than 2 are wrong"):
            decoded(aggregator, (spoilt(message, field, liars),), server)


def test_more_coordinated_wrong_uploads_are_taken_for_the_truth():
    """As documented: A + 1 = 3 liars move to another codeword, and two honest parties are named as wrong."""
    field, parties = PrimeField(), Parties([1] * 7, [1] * 7, 6)
    aggregator = LagrangeCoded(blocks=1, privacy=1, wrong=2)
    ids = torch.arange(6)
    message, server = parties.uploads(aggregator, ids)
    honest = decoded(aggregator, (message,), server)
    alpha, p = range(3, 10), field.modulus  # K + T = 2 points come first
    # a polynomial of degree R - 1 = 2 that is zero for parties 0 and 1: it is not for the other 2A + 1
    error = [1000 * (a - alpha[0]) * (a - alpha[1]) % p for a in alpha]
    liars, accused = (2, 3, 4), (5, 6)
    for party in liars:
        message.pieces[party][2, 1] = (message.pieces[party][2, 1] + error[party]) % p
    aggregate = decoded(aggregator, (message,), server)
    assert aggregate.corrected == accused
    assert not torch.equal(aggregate.value, honest.value)
    at_secret = 1000 * (1 - alpha[0]) * (1 - alpha[1])
    bits = aggregator.l_x + parties.agreed(aggregator)["l_w"]
    where = (aggregate.value != honest.value).nonzero().tolist()
    assert len(where) == 1
    moved = (aggregate.value - honest.value)[tuple(where[0])]
    assert float(moved) == pytest.approx(at_secret * 2.0**-bits / 7, rel=1e-3)


# ---- messages, legs and memory


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("rerandomise", [True, False])
def test_messages_fit_their_legs(field, rerandomise):
    """A sender keeps its own piece of a message to its peers: it is not on the wire."""
    parties = Parties([2, 1, 3, 1, 2], [1, 2, 1, 3, 1], 11)
    aggregator = LagrangeCoded(blocks=2, privacy=1, rerandomise=rerandomise, field=field)
    ids = some(11, n=5)
    exchange = parties.exchange(aggregator, ids)
    rows = len(aggregator.setup.arrangement(11, 5, SEED, "fit").coded_rows(ids)[0])
    legs = aggregator.wire.legs(rows, (WIDTH,) * 5, parties.basis, parties.roster)
    upload = Upload(aggregator, exchange.contribution, exchange.parties)
    first, uploads = upload.first, upload.then(parties.everyone, upload.first)
    messages = [first, *([first.alongside] if rerandomise else []), uploads]
    assert [leg.kind for leg in legs] == [message.kind for message in messages]
    assert [leg.gate for leg in legs] == ["all", *(["previous"] if rerandomise else []), "rule"]
    assert (first.alongside is None) != rerandomise
    for leg, message in zip(legs, messages, strict=True):
        assert leg.to == message.to == ("server" if message is uploads else "peers")
        assert leg.bits == (field.modulus - 1).bit_length()
        assert message.senders == parties.parties
        on_the_wire = [p.numel() if leg.to == "server" else p.numel() * 4 // 5 for p in message.pieces]
        assert leg.elements.tolist() == on_the_wire
        assert all(len(piece) == 5 for piece in message.pieces) or leg.to == "server"
    downlink = aggregator.wire.downlink(5, (WIDTH,) * 5, parties.roster)
    assert downlink.elements.tolist() == [5 * WIDTH] * 5
    assert downlink.bits == 32


def test_flops_and_the_delay_of_sharing_are_those_of_the_paper():
    """Sections 5.3 and 6.2: Σ d_m D products a coded row in an upload, ln² M / |B| of the delay on sharing models."""
    aggregator = LagrangeCoded(blocks=2, privacy=1)
    models, zeros, uploads = aggregator.wire.legs(10, (4,) * 6, (3, 5, 7, 2, 2, 2), Roster.singles(6))
    assert uploads.flops.tolist() == [2.0 * 10 * 21 * 4] * 6
    assert models.flops.tolist() == [2.0 * 6 * 2 * w * 4 for w in (3, 5, 7, 2, 2, 2)]
    assert zeros.flops.tolist() == [2.0 * 6 * 3 * 10 * 4] * 6  # R - K = 3
    assert models.delay_share == pytest.approx(log(6) ** 2 / 10)
    assert (zeros.delay_share, uploads.delay_share) == (1.0, 1.0)
    fewer = aggregator.wire.legs(5, (4,) * 6, (3, 5, 7, 2, 2, 2), Roster.singles(6))[-1]
    assert fewer.flops.tolist() == [2.0 * 5 * 21 * 4] * 6  # twice as many blocks: half the rows, half the work


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_the_messages_of_set_up_fit_their_leg_and_the_table_its_announcement(field, monkeypatch):
    parties = Parties([2, 1, 3, 1, 2], [1, 2, 1, 3, 1], 11)
    aggregator = LagrangeCoded(blocks=2, privacy=1, field=field)
    view = parties.view()
    memory = aggregator.setup.empty_memory(11, parties.basis, view)
    (leg,) = aggregator.setup.legs(11, parties.basis, parties.roster)
    sent = [0] * 5
    monkeypatch.setattr(data_shares, "SHARED_AT_ONCE", 40)
    for message in aggregator.setup.offer(parties.records, memory, view):
        assert (message.kind, message.to) == (leg.kind, leg.to) == ("data shares", "peers")
        (sender,), (piece,) = message.senders, message.pieces
        sent[sender] += piece.numel()
        memory = aggregator.setup.accept(memory, message, view)
    assert [n * 4 // 5 for n in sent] == leg.elements.tolist() == [4 * 6 * w for w in parties.basis]
    assert leg.bits == field.wire_bits
    assert leg.flops.tolist() == [2.0 * 5 * 3 * 6 * w for w in parties.basis]
    assert memory.table.shape == (5, 6, sum(parties.basis))
    assert memory.table.dtype == (torch.int32 if field == PrimeField() else torch.int64)
    assert memory.nbytes == memory.table.numel() * (4 if field == PrimeField() else 8)
    heard = []
    set_up(aggregator.setup, parties.records, parties.basis, view, lambda *what: heard.append(what))
    assert heard == [(11, memory.nbytes)]


def test_equivalent_needs_no_memory_and_has_the_same_legs():
    parties = Parties([2, 1, 3], [1, 2, 1], 11)
    pair = [LagrangeCoded(execution=execution) for execution in ("coded", "equivalent")]
    assert parties.prepare(pair[1]) is None
    assert list(pair[1].setup.offer(parties.records, None, parties.view())) == []
    m, basis, roster = (WIDTH,) * 3, parties.basis, parties.roster
    legs = [
        [*a.wire.legs(4, m, basis, roster), *a.setup.legs(11, basis, roster), a.wire.downlink(4, m, roster)]
        for a in pair
    ]
    for one, other in zip(*legs, strict=True):
        for name in ("kind", "to", "bits", "gate", "delay_share"):
            assert getattr(one, name) == getattr(other, name)
        assert torch.equal(one.elements, other.elements)
        assert torch.equal(one.flops, other.flops)


@pytest.mark.parametrize("stage", ["fit", "test"])
@pytest.mark.parametrize("at_once", [1, 40, 100, 2**21])
def test_the_table_holds_shares_of_the_blocks_however_it_is_sent(stage, at_once, monkeypatch):
    """K + T of the tables, decoded in Python's integers: everybody's rounded rows in place, zeros as padding."""
    monkeypatch.setattr(data_shares, "SHARED_AT_ONCE", at_once)
    parties = Parties([2, 1, 1, 2, 1], [1, 2, 1, 1, 3], 7, stage=stage)
    aggregator = LagrangeCoded(blocks=2, privacy=1, l_x=5, insecure_seeded_secrets=True)
    memory = parties.prepare(aggregator)
    p, alpha = 2**31 - 1, range(4, 9)
    cells = aggregator.setup.arrangement(7, 5, SEED, stage).at(0, 4).tolist()
    data = [rounded_data(parties, m, torch.arange(7), 5) for m in range(5)]
    for who in ((0, 1, 2), (4, 2, 0)):
        points = [alpha[j] for j in who]
        for k in range(2):
            matrix = [lagrange(points, i, 1 + k, p) for i in range(3)]
            found = sum(memory.table[j].numpy().astype(object) * c for j, c in zip(who, matrix, strict=True)) % p
            for row, got in enumerate(found.tolist()):
                record = cells[row][k]
                wanted = [0] * sum(parties.basis) if record < 0 else [v for x in data for v in x[record]]
                assert got == [v % p for v in wanted]


def test_tables_of_a_few_hosted_parties_are_parts_of_the_whole():
    """Parties in two places: each place keeps its own parties' shares, and the round gives the same bits."""
    parties = Parties([2, 1, 3, 1, 2], [1, 2, 1, 3, 1], 11)
    aggregator = LagrangeCoded(blocks=2, privacy=1, insecure_seeded_secrets=True)
    ids, agreed = some(11, n=7), parties.agreed(aggregator)
    whole = parties.exchange(aggregator, ids)
    upload = Upload(aggregator, whole.contribution, whole.parties)
    expected = upload.first
    places = [(0, 3), (1, 2, 4)]
    views = [parties.view(place, ids=ids, agreed=agreed) for place in places]
    memories = [aggregator.setup.empty_memory(11, parties.basis, view) for view in views]
    for view, memory in zip(views, list(memories), strict=True):
        for message in aggregator.setup.offer(parties.records, memory, view):
            memories = [aggregator.setup.accept(m, message, v) for m, v in zip(memories, views, strict=True)]
    views = [replace(view, memory=memory) for view, memory in zip(views, memories, strict=True)]
    for place, memory in zip(places, memories, strict=True):
        assert torch.equal(memory.table, whole.parties.memory.table[list(place)])
    parts = []
    for place, view in zip(places, views, strict=True):
        own = LinearForms(tuple(parties.weights[m] for m in place), tuple(whole.contribution.basis[m] for m in place))
        message = first_leg(aggregator, own, view)
        assert message.senders == place
        for sender, piece, zeros in zip(place, message.pieces, message.alongside.pieces, strict=True):
            assert torch.equal(piece, expected.pieces[sender])
            assert torch.equal(zeros, expected.alongside.pieces[sender])
        parts.append(own)
    together = upload.then(parties.everyone, expected)
    for place, view, own in zip(places, views, parts, strict=True):
        answer = second_leg(aggregator, own, view, expected, parties.everyone)
        assert answer.senders == place
        assert all(torch.equal(piece, together.pieces[m]) for m, piece in zip(place, answer.pieces, strict=True))


def test_without_memory_the_way_out_is_named():
    parties = Parties([1, 1, 1], [1] * 3, 5)
    aggregator = LagrangeCoded()
    exchange = parties.exchange(aggregator, torch.arange(5))
    exchange.parties = replace(exchange.parties, memory=None)
    with pytest.raises(ConfigurationError, match=r"the parties have not shared the records .* or use evaluate: plain"):
        exchange.send()


# ---- how many have to answer


def most_blocks(parties, privacy, wrong, away=0):
    """By trying."""
    fitting = [k for k in range(1, parties + 1) if 2 * (k + privacy - 1) + 1 + 2 * wrong <= parties - away]
    return max(fitting, default=0)


def test_auto_takes_the_most_blocks_that_leave_a_quarter_unneeded():
    for parties, privacy, wrong in product(range(2, 33), range(4), range(3)):
        largest = most_blocks(parties, privacy, wrong)
        aggregator = LagrangeCoded(privacy=privacy, wrong=wrong)
        if not largest:
            with pytest.raises(ConfigurationError, match="more than the"):
                aggregator.among(Roster.singles(parties))
            continue
        k = most_blocks(parties, privacy, wrong, parties // 4) or 1
        needed = 2 * (k + privacy - 1) + 1 + 2 * wrong
        aggregator.among(Roster.singles(parties))
        assert aggregator.wire.needed(parties) == needed <= parties
        assert aggregator.setup.arrangement(100, parties, 0, "fit").count == k
    by_hand = {4: 3, 28: 21}  # digits: K = 1 and T = 1, so one party may be late; Fashion-MNIST: K = 10
    assert {parties: LagrangeCoded().wire.needed(parties) for parties in by_hand} == by_hand
    assert LagrangeCoded(blocks=6).wire.needed(28) == 13


def test_too_many_blocks_are_refused_with_the_most_that_fit():
    for parties, privacy, wrong, blocks in product(range(2, 12), range(4), range(3), range(1, 7)):
        aggregator = LagrangeCoded(blocks=blocks, privacy=privacy, wrong=wrong)
        needed = 2 * (blocks + privacy - 1) + 1 + 2 * wrong
        if needed <= parties:
            aggregator.among(Roster.singles(parties))
            assert aggregator.wire.needed(parties) == needed
            continue
        with pytest.raises(ConfigurationError, match=f"need {needed} answers") as caught:
            aggregator.among(Roster.singles(parties))
        fits, message = most_blocks(parties, privacy, wrong), str(caught.value)
        assert f"more than the {parties} parties" in message
        if fits:
            assert f"blocks: {fits}" in message
            assert f"privacy: {privacy}" in message
            LagrangeCoded(blocks=fits, privacy=privacy, wrong=wrong).among(Roster.singles(parties))
        elif wrong and most_blocks(parties, privacy, 0) >= blocks:
            named = int(message.split("use wrong: ")[1])
            LagrangeCoded(blocks=blocks, privacy=privacy, wrong=named).among(Roster.singles(parties))
            with pytest.raises(ConfigurationError):
                LagrangeCoded(blocks=blocks, privacy=privacy, wrong=named + 1).among(Roster.singles(parties))
        elif most_blocks(parties, 1, wrong):
            named = int(message.split("use blocks: 1 and privacy: ")[1])
            LagrangeCoded(blocks=1, privacy=named, wrong=wrong).among(Roster.singles(parties))
            with pytest.raises(ConfigurationError):
                LagrangeCoded(blocks=1, privacy=named + 1, wrong=wrong).among(Roster.singles(parties))
        else:
            enough = int(message.split("at least ")[1].split(" parties")[0])
            assert enough == (3 if privacy else 1)


def test_two_parties_cannot_hide_anything_from_each_other():
    with pytest.raises(
        ConfigurationError, match="need 3 answers, more than the 2 parties; it takes at least 3 parties to hide"
    ):
        LagrangeCoded().among(Roster.singles(2))
    LagrangeCoded(privacy=0).among(Roster.singles(2))
    assert LagrangeCoded(privacy=0).wire.protection(1).startswith("none against parties")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"blocks": 0}, "blocks must be a whole number, 1 or more; got 0; or use auto"),
        ({"blocks": -1}, "blocks must be .* got -1"),
        ({"blocks": 2.5}, "blocks must be .* got 2.5"),
        ({"blocks": "all"}, "blocks must be .* got 'all'"),
        ({"privacy": None}, "privacy must be a whole number, 0 or more; got None"),
        ({"wrong": True}, "wrong must be .* got True"),
        ({"scale": 8.5}, "scale must be a whole number, 0 or more; got 8.5; or use auto"),
        ({"headroom": 0.5}, "headroom must be a finite number of at least 1; got 0.5"),
        ({"field": 2**31 - 1}, "field must be .* got 2147483647"),
        ({"privacy": -1}, "privacy must be .* got -1"),
        ({"wrong": -1}, "wrong must be .* got -1"),
        ({"execution": "clear"}, "execution must be 'coded' or 'equivalent'; got 'clear'"),
        ({"l_x": 61}, "l_x must be .*; got 61"),
        ({"scale": -1}, "scale must be .*; got -1"),
    ],
)
def test_bad_settings_name_the_fix(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        LagrangeCoded(**settings)


def test_a_field_without_enough_points_is_refused_before_anything_is_built():
    LagrangeCoded(blocks=2, privacy=1, field=PrimeField(11)).among(Roster.singles(8))
    with pytest.raises(
        ConfigurationError, match=r"PrimeField\(11\) has no room for 12 points .* a prime of at least 12"
    ):
        LagrangeCoded(blocks=2, privacy=1, field=PrimeField(11)).among(Roster.singles(9))
