"""MaskedSum, round by round, against sums in Python integers and fractions: who is in, what is hidden, what is zero."""

import warnings
from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.codec import uniform_words
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.examples import examples
from tests.unit.aggregators.sides import first_leg

D, B, T, LEVELS = 3, 4, 4, 2**20
STEP = Fraction(2 * T, LEVELS)


def mask_of(who, parties):
    return torch.tensor([m in who for m in range(parties)])


def round_of(aggregator, roster, h, called=None, included=None, present=None, round=0, memory=None, stage="fit"):
    """One round of everybody in one process: ``called`` are known before it, ``included`` arrive."""
    aggregator = aggregator.among(roster)
    everybody = set(range(roster.parties))
    called = everybody if called is None else set(called)
    included = called if included is None else set(included)
    names, rows = RoundNames(0, stage, round), Rows(torch.arange(len(h[0])) + 50, 0, len(h[0]))
    there, arrived = mask_of(called, roster.parties), mask_of(included, roster.parties)
    view = PartyView(names, roster, tuple(range(roster.parties)), there, rows, None, present)
    memory = aggregator.opening.empty_memory(view) if memory is None else memory
    view = replace(view, memory=open_round(aggregator.opening, memory, view))
    roll = Roll(there, arrived, arrived, torch.zeros_like(there))
    width = h[0].shape[1] if aggregator.layout == "sum" or roster.active != 0 else h[1].shape[1]
    return Exchange(
        aggregator, Embeddings(h), view, ServerView(names, roster, rows, roll, aggregator.widths(width, roster))
    )


def passive_of(roster):
    return [group for group in roster.groups if group != (roster.active,)]


def sums_of(layout, roster):
    """By section 3 of the paper: the members of each sum, and the columns of a member's embedding that go there."""
    if layout == "sum":
        return [{m: slice(0, D) for m in range(roster.parties)}]
    sums = []
    for number, group in enumerate(passive_of(roster)):
        members = {m: slice(0, D) for m in group}
        if roster.active is not None:
            members[roster.active] = slice(number * D, (number + 1) * D)
        sums.append(members)
    return sums


def width_of(layout, roster, party):
    return len(passive_of(roster)) * D if layout == "segments" and party == roster.active else D


@st.composite
def rosters(draw, least=2):
    """Two to four groups of one to three parties; the active party, if there is one, stands apart."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=least, max_size=4))
    numbers = draw(st.permutations(range(sum(sizes))))
    ends = np.cumsum(sizes)
    groups = tuple(tuple(sorted(numbers[end - size : end])) for size, end in zip(sizes, ends, strict=True))
    alone = [group[0] for group in groups if len(group) == 1]
    return Roster(groups, draw(st.sampled_from([None, *alone])))


@st.composite
def rounds(draw, layout):
    """A roster, embeddings on the grid of the levels (which no rounding changes), and who is called and arrives."""
    roster = draw(rosters())
    if layout == "segments":
        while roster.active is None:
            roster = Roster((*roster.groups, (roster.parties,)), roster.parties)
    away = draw(st.sets(st.sampled_from(range(len(passive_of(roster)))), max_size=len(passive_of(roster)) - 1))
    called = set(range(roster.parties)) - {m for g in away for m in passive_of(roster)[g]}
    late = set()
    if layout == "segments":  # whole groups may be lost even when they were called
        late = draw(st.sets(st.sampled_from(range(len(passive_of(roster)))), max_size=1))
    included = called - {m for g in late for m in passive_of(roster)[g]}
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    h = []
    for m in range(roster.parties):
        whole = torch.randint(-LEVELS // 2, LEVELS // 2, (B, width_of(layout, roster, m)), generator=generator)
        h.append((whole.double() * float(STEP)).float())
    return roster, tuple(h), called, included


def expected_of(layout, roster, h, included):
    """(value, columns) in Python: the sums of whoever arrived; a segment of which somebody is missing is zero."""
    value, columns = [], []
    for members in sums_of(layout, roster):
        there = layout == "sum" or all(m in included for m in members)
        counted = [m for m in members if m in included] if there else []
        total = [
            [sum((Fraction(h[m][row, members[m]][d].item()) for m in counted), Fraction(0)) for d in range(D)]
            for row in range(B)
        ]
        value.append(total)
        columns += [there] * D
    rows = [[x for total in value for x in total[row]] for row in range(B)]
    return rows, columns


@pytest.mark.parametrize("layout", ["sum", "segments"])
@examples(25)
@given(st.data())
def test_the_value_is_the_exact_sum_of_whoever_takes_part(layout, data):
    """Embeddings on the grid are not changed by quantising: equal as fractions, whatever was masked."""
    roster, h, called, included = data.draw(rounds(layout))
    masked = MaskedSum(layout, levels=LEVELS, allow_single=True)
    equivalent = MaskedSum(layout, levels=LEVELS, allow_single=True, execution="equivalent")
    exchange = round_of(masked, roster, h, called, included)
    got = exchange.send()
    same = round_of(equivalent, roster, h, called, included).send()
    assert torch.equal(got.value, same.value)
    rows, columns = expected_of(layout, roster, h, included)
    marked = masked.among(roster).columns(tuple(x.shape[1] for x in h), exchange.server.roll)
    assert marked.tolist() == columns
    assert [[Fraction(x) for x in row] for row in got.value.tolist()] == rows
    assert not got.value[:, ~marked].any()


@pytest.mark.parametrize("layout", ["sum", "segments"])
@examples(15)
@given(st.data())
def test_masked_is_equivalent_bit_for_bit_for_any_numbers(layout, data):
    """Off the grid and beyond the range, in a late round: also within n steps of the clipped sum."""
    roster, h, called, included = data.draw(rounds(layout))
    h = tuple(x * 1.3 + 1e-3 for x in h)
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for execution in ("masked", "equivalent"):
            aggregator = MaskedSum(layout, allow_single=True, execution=execution)
            values.append(round_of(aggregator, roster, h, called, included, round=7).send().value)
    assert torch.equal(*values)
    clipped = tuple(x.double().clamp(-T, T).float() for x in h)
    rows, _ = expected_of(layout, roster, clipped, included)
    expected = torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
    error = roster.parties * 2 * T / 2**27 + 2.0**-19  # a sum of up to 48 as a float32
    assert (values[0].double() - expected).abs().max() <= error


def test_uploads_are_the_quantised_values_plus_masks_that_cancel_over_the_whole_set_alone():
    """The integers by fractions, with the words that the round's name draws: party by party, segment by segment."""
    roster = Roster(((0,), (1, 2), (3,)), active=0)
    generator = torch.Generator().manual_seed(0)
    h = tuple(torch.randn(B, width_of("segments", roster, m), generator=generator) * 2 for m in range(4))
    exchange = round_of(MaskedSum("segments", allow_single=True), roster, h, round=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        message = first_leg(exchange.aggregator, exchange.contribution, exchange.parties)
    slots = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 1)]
    words = uniform_words((len(slots), B, D), 0, "rounding", "fit", 3)
    integers = {}
    for (party, segment), drawn in zip(slots, words, strict=True):
        part = h[party][:, sums_of("segments", roster)[segment][party]]
        integers[party, segment] = [
            [
                min(floor((min(max(Fraction(x), -4), 4) + 4) / 8 * 2**27 + Fraction(int(w), 2**16)), 2**27 - 1)
                for x, w in zip(row, word, strict=True)
            ]
            for row, word in zip(part.tolist(), drawn, strict=True)
        ]
    sent = {}
    for party, piece in zip(message.senders, message.pieces, strict=True):
        assert piece.dtype == torch.uint32
        own = [segment for m, segment in slots if m == party]
        sent |= {(party, segment): part.numpy().astype(object) for segment, part in zip(own, piece, strict=True)}
    for segment, members in ((0, (0, 1, 2)), (1, (0, 3))):
        total = sum(sent[m, segment] for m in members) % 2**32
        assert (total == sum(np.array(integers[m, segment], object) for m in members)).all()
        for left_out in members:
            part = sum(sent[m, segment] for m in members if m != left_out) % 2**32
            clear = sum(np.array(integers[m, segment], object) for m in members if m != left_out) % 2**32
            assert not (part == clear).any()  # by chance with probability 12 / 2^32


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_rows_are_rounded_alike_in_whatever_process_they_are(layout):
    """Sixteen levels, so that every rounding counts: two halves of a batch, each with its place in it."""
    roster = Roster(((0,), (1, 2), (3,)), active=0)
    generator = torch.Generator().manual_seed(0)
    h = tuple(torch.randn(6, width_of(layout, roster, m), generator=generator) for m in range(4))
    whole = round_of(MaskedSum(layout, clip=9.0, levels=16, execution="equivalent", allow_single=True), roster, h)
    parts = []
    for start, stop in ((0, 2), (2, 6)):
        view = replace(whole.parties, rows=Rows(whole.parties.rows.ids[start:stop], start, 6))
        some = Embeddings(tuple(x[start:stop] for x in h))
        parts.append(whole.wire.clear(some, view, whole.server.roll).value)
    assert torch.equal(torch.cat(parts), whole.send().value)


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_each_upload_alone_is_uniform(layout):
    """Smoke, not proof: all bytes of each party's words, embeddings all zero; fixed secrets."""
    roster, rows = Roster(((0,), (1, 2), (3,)), active=0), 3000
    h = tuple(torch.zeros(rows, width_of(layout, roster, m)) for m in range(4))
    exchange = round_of(MaskedSum(layout, insecure_seeded_secrets=True, allow_single=True), roster, h)
    message = first_leg(exchange.aggregator, exchange.contribution, exchange.parties)
    for piece in message.pieces:
        sent = piece.numpy().reshape(-1)
        for shift in (0, 8, 16, 24):
            assert chisquare(np.bincount((sent >> shift) & 255, minlength=256)).pvalue > 1e-6
        neighbours = (sent[:-1] & 15) * 16 + (sent[1:] & 15)
        assert chisquare(np.bincount(neighbours, minlength=256)).pvalue > 1e-6


def test_the_same_embeddings_look_different_in_every_round():
    roster, h = Roster.singles(3), tuple(torch.zeros(B, D) for _ in range(3))
    memory, seen = None, []
    aggregator = MaskedSum(rekey_every=3)
    for number in range(7):
        exchange = round_of(aggregator, roster, h, round=number, memory=memory)
        memory = exchange.parties.memory
        seen.append(first_leg(exchange.aggregator, exchange.contribution, exchange.parties).pieces)
    for party in range(3):
        words = np.stack([pieces[party].numpy().ravel() for pieces in seen])
        assert len(np.unique(words)) == words.size


# ---- zero rows, widths, columns


@examples(15)
@given(st.data())
def test_rows_that_a_party_does_not_hold_are_true_zeros(data):
    """Each row with one party of each group: the sum is that of the holders' embeddings, and nothing else's."""
    roster = data.draw(rosters())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    present = torch.zeros(B, roster.parties, dtype=torch.bool)
    for group in roster.groups:
        for row in range(B):
            present[row, group[int(torch.randint(len(group), (), generator=generator))]] = True
    whole = torch.randint(-LEVELS // 2, LEVELS // 2, (roster.parties, B, D), generator=generator)
    h = (whole.double() * float(STEP)).float() * present.T[:, :, None]
    value = round_of(MaskedSum(levels=LEVELS, allow_single=True), roster, tuple(h), present=present).run()
    for row in range(B):
        holders = [m for m in range(roster.parties) if present[row, m]]
        expected = [sum(Fraction(h[m, row, d].item()) for m in holders) for d in range(D)]
        assert [Fraction(x) for x in value[row].tolist()] == expected


@pytest.mark.parametrize("parties", [2, 3, 7, 32, 33])
def test_a_sum_of_zero_rows_is_exactly_zero(parties):
    h = tuple(torch.zeros(2, D) for _ in range(parties))
    assert not round_of(MaskedSum(), Roster.singles(parties), h).run().any()
    one = (torch.full((2, D), 0.73), *h[1:])
    value = round_of(MaskedSum(), Roster.singles(parties), one).run()
    assert (value - 0.73).abs().max() <= 8 / 2**25  # one rounding, whatever stands beside it


def test_the_sum_is_decoded_by_all_members_of_the_set_and_not_by_the_holders():
    """Three parties of one group hold one row each; were n the number of holders, each row would be off by 2t."""
    roster = Roster(((0,), (1, 2, 3)), active=0)
    h = torch.zeros(4, 3, D)
    for row, holder in enumerate((1, 2, 3)):
        h[holder, row] = 1.0
    value = round_of(MaskedSum("segments"), roster, tuple(h)).run()
    assert torch.equal(value, torch.ones(3, D))


@examples(30)
@given(rosters(), st.sampled_from(["sum", "segments"]), st.integers(1, 9))
def test_widths_are_those_of_the_layout(roster, layout, width):
    aggregator = MaskedSum(layout, allow_single=True)
    groups = len(passive_of(roster))
    if layout == "sum":
        assert aggregator.widths(width, roster) == (width,) * roster.parties
        assert aggregator.out_width(width, roster) == width
    elif groups:
        expected = tuple(groups * width if m == roster.active else width for m in range(roster.parties))
        assert aggregator.widths(width, roster) == expected
        assert aggregator.out_width(width, roster) == groups * width


@examples(15)
@given(st.data(), st.sampled_from(["sum", "segments"]))
def test_gradients_are_those_of_a_plain_sum(data, layout):
    """By hand: a member is sent the gradient of every sum that it is in; who is out, zeros."""
    roster, h, called, included = data.draw(rounds(layout))
    leaves = tuple(x.clone().requires_grad_() for x in h)
    value = round_of(MaskedSum(layout, allow_single=True), roster, leaves, called, included).run()
    grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(value, leaves, grad)
    expected = [torch.zeros_like(x) for x in h]
    for segment, members in enumerate(sums_of(layout, roster)):
        if layout == "sum" or all(m in included for m in members):
            for m, columns in members.items():
                if m in included:
                    expected[m][:, columns] = grad[:, segment * D : (segment + 1) * D]
    assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_plain_is_the_sum_of_what_is_held_in_real_arithmetic(layout):
    roster = Roster(((0,), (1, 2), (3,)), active=0)
    aggregator = MaskedSum(layout, allow_single=True).among(roster)
    generator = torch.Generator().manual_seed(0)
    h = tuple(torch.randn(B, width_of(layout, roster, m), generator=generator) * 9 for m in range(4))
    present = torch.ones(B, 4, dtype=torch.bool)
    present[:, 1] = torch.tensor([True, False, True, False])
    present[:, 2] = ~present[:, 1]
    got = aggregator.plain(h, Roll.everyone(4), present)
    union = torch.where(present[:, 1, None], h[1], h[2])
    expected = h[0] + union + h[3] if layout == "sum" else h[0] + torch.cat([union, h[3]], 1)
    torch.testing.assert_close(got, expected)


# ---- what is lost, and what is refused


def test_one_lost_upload_of_a_sum_loses_the_round():
    called = torch.ones(4).bool()
    for lost in range(4):
        arrived = mask_of({0, 1, 2, 3} - {lost}, 4)
        assert not MaskedSum().wire.takes_part(called, arrived, Roster.singles(4)).any()
        assert MaskedSum().wire.takes_part(arrived, arrived, Roster.singles(4)).equal(arrived)  # announced: no obstacle
        recovering = MaskedSum(recovery={})
        assert recovering.wire.takes_part(called, arrived, Roster.singles(4)).equal(arrived)


def test_without_the_active_party_no_segment_is_left():
    roster = Roster.singles(4, active=1)
    called = torch.ones(4).bool()
    assert not MaskedSum("segments").wire.takes_part(called, mask_of({0, 2, 3}, 4), roster).any()
    assert MaskedSum("segments").wire.takes_part(called, mask_of({1, 3}, 4), roster).tolist() == [
        False,
        True,
        False,
        True,
    ]
    assert not MaskedSum("segments").wire.takes_part(called, mask_of({1}, 4), roster).any()


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_one_absent_member_makes_its_whole_group_absent(layout):
    roster = Roster(((0,), (1, 2, 3), (4,)), active=0)
    for away in (1, 2, 3):
        there = mask_of({0, 1, 2, 3, 4} - {away}, 5)
        assert MaskedSum(layout).wire.takes_part(there, there, roster).tolist() == [True, False, False, False, True]


SINGLE = {
    "one party": ("sum", Roster.singles(1)),
    "one group of several": ("sum", Roster(((0, 1, 2),))),
    "one group and nobody active, in segments": ("segments", Roster(((0, 1),))),
    "active without features": ("segments", Roster.singles(3)),
    "groups of several without an active party": ("segments", Roster(((0, 1), (2, 3)))),
}


@pytest.mark.parametrize("case", SINGLE)
def test_a_set_with_one_contributor_is_refused_or_accepted_and_named(case):
    layout, roster = SINGLE[case]
    with pytest.raises(ConfigurationError, match=r"the sum IS its embedding.*allow_single: true"):
        MaskedSum(layout).among(roster)
    said = MaskedSum(layout, allow_single=True).among(roster).wire.protection(1)
    assert "NOTHING hides" in said
    assert all(str(group) in said for group in roster.groups)


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_sets_with_two_contributors_are_accepted_and_nothing_alarming_is_said(layout):
    for roster in (Roster.singles(3, active=0), Roster(((0,), (1, 2, 3)), active=0)):
        assert "NOTHING" not in MaskedSum(layout, allow_single=True).among(roster).wire.protection(1)
        assert "none" not in MaskedSum(layout).among(roster).wire.protection(1)
    assert MaskedSum(execution="equivalent").wire.protection(1).startswith("none")
    assert MaskedSum(insecure_seeded_secrets=True).wire.protection(1).startswith("none")


def test_with_recovery_the_summary_says_how_many_parties_could_uncover_one():
    """Any t holders of shares, with the server, can put both secrets of a party together: that is a limit to name."""
    said = MaskedSum(recovery={"threshold": 3}).among(Roster.singles(4)).wire.protection(1)
    assert "with up to 2 parties that collude with it" in said


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_groups_of_two_are_refused_or_accepted_and_named(layout):
    """Each of the two subtracts its own update from the sum that it is sent as the new bottom, and has the other's."""
    roster = Roster(((0,), (1, 2, 3), (4, 5)), active=0)
    with pytest.raises(ConfigurationError, match=r"group \(4, 5\) has two parties.*allow_single: true"):
        MaskedSum(layout).among(roster)
    said = MaskedSum(layout, allow_single=True).among(roster).wire.protection(1)
    assert "each of two parties learns the other's model updates in (4, 5)" in said


def test_a_segment_of_nobody_is_refused():
    with pytest.raises(ConfigurationError, match="there is none"):
        MaskedSum("segments").among(Roster.singles(1, active=0))


def test_settings_that_cannot_be_are_refused():
    for setting in ({"layout": "columns"}, {"execution": "fast"}, {"rekey_every": 0}):
        with pytest.raises(ConfigurationError):
            MaskedSum(**setting)
    with pytest.raises(ConfigurationError, match=r"recovery is for layout: sum"):
        MaskedSum("segments", recovery={"threshold": 3})
    assert MaskedSum(recovery={"threshold": 3}).recovery.threshold == 3


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_records_that_a_group_does_not_hold_are_refused(layout):
    roster = Roster(((0,), (1, 2, 3)), active=0)
    held = torch.ones(5, 4, dtype=torch.bool)
    held[:, 1] = torch.tensor([True, False, True, False, True])
    held[:, 2] = ~held[:, 1]
    held[:, 3] = False
    MaskedSum(layout).among(roster).wire.refuse_partly_held(held, roster)
    MaskedSum(layout).among(roster).wire.refuse_partly_held(None, roster)
    held[3, 2] = False
    with pytest.raises(
        ConfigurationError, match=r"1 records are held by no party of group \(1, 2, 3\), first at position 3"
    ):
        MaskedSum(layout).among(roster).wire.refuse_partly_held(held, roster)
    held[3, 2], held[1, 0] = True, False
    with pytest.raises(ConfigurationError, match=r"group \(0,\)"):
        MaskedSum(layout).among(roster).wire.refuse_partly_held(held, roster)
    MaskedSum(layout, allow_single=True).among(roster).wire.refuse_partly_held(held, roster)


@pytest.mark.parametrize("execution", ["masked", "equivalent"])
def test_what_is_clipped_is_noted_and_warned_of_above_one_per_cent(execution):
    roster, rows = Roster.singles(2), 100
    for over, warned in ((1, False), (4, False), (5, True), (200, True)):
        h = (torch.zeros(rows, 2), torch.zeros(rows, 2))
        h[1].view(-1)[:over] = -4.5
        exchange = round_of(MaskedSum(execution=execution), roster, h)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            value = exchange.run()
        assert exchange.parties.notes["clipped_share"] == pytest.approx(over / (2 * rows * 2), abs=1e-12)
        assert [bool("clipped" in str(w.message)) for w in said] == [True] * warned
        assert value.view(-1)[:over].eq(-4.0).all()


@pytest.mark.parametrize("execution", ["masked", "equivalent"])
def test_no_number_reaches_the_sum(execution):
    h = (torch.zeros(B, D), torch.zeros(B, D))
    h[1][2, 1] = float("nan")
    with pytest.raises(ConfigurationError, match="NaN or infinity"):
        round_of(MaskedSum(execution=execution), Roster.singles(2), h).run()


def test_no_rows_are_no_special_case():
    h = (torch.zeros(0, D), torch.zeros(0, D), torch.zeros(0, D))
    for recovery in (None, {}):
        assert round_of(MaskedSum(recovery=recovery), Roster.singles(3, 0), h).run().shape == (0, D)


def test_the_dtype_of_the_aggregate_is_the_default():
    h = tuple(torch.zeros(B, D, dtype=torch.bfloat16) for _ in range(2))
    assert round_of(MaskedSum(), Roster.singles(2), h).run().dtype == torch.float32


# ---- updates of groups


def joined(exchange, updates):
    """The server's sum of what the parties of a group tell it."""
    part = exchange.aggregator.shared_bottoms
    return part.join(part.tell(updates, exchange.parties), exchange.server)


@pytest.mark.parametrize("execution", ["masked", "equivalent"])
def test_the_updates_of_a_group_add_up_to_n_steps(execution):
    roster = Roster(((0,), (1, 2, 3)), active=0)
    h = tuple(torch.zeros(1, D) for _ in range(4))
    exchange = round_of(MaskedSum(levels=LEVELS, execution=execution), roster, h)
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(-LEVELS // 2, LEVELS // 2, (3, 50), generator=generator)
    updates = {m: (own.double() * float(STEP)).float() for m, own in zip((1, 2, 3), whole, strict=True)}
    total = joined(exchange, updates)
    expected = [float(sum(int(w) for w in column) * STEP) for column in whole.T]
    assert total.tolist() == expected  # on the grid: nothing is rounded


def test_updates_that_are_no_numbers_are_refused():
    roster = Roster(((0,), (1, 2, 3)), active=0)
    exchange = round_of(MaskedSum(), roster, tuple(torch.zeros(1, D) for _ in range(4)))
    with pytest.raises(ConfigurationError, match="NaN or infinity"):
        joined(exchange, {1: torch.tensor([float("inf")]), 2: torch.zeros(1), 3: torch.zeros(1)})
