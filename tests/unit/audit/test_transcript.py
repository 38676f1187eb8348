"""The two laws of the tap: nothing escapes it, and it changes no bit of a training."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from lightning_vfl import (
    AsyncVFL,
    CascadeVFL,
    DecoupledVFL,
    EnsembleVFL,
    LaserVFL,
    LocalVFL,
    OneShotVFL,
    SplitVFL,
    VFLModule,
    aggregators,
)
from lightning_vfl.aggregators import (
    Aggregator,
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Max,
    Mean,
    PoissonBinomial,
    Sum,
)
from lightning_vfl.audit import (
    Attack,
    CanariesInTraining,
    Guesses,
    Known,
    LabelsByNorm,
    ModelCompletion,
    NothingSeen,
    Seen,
    Target,
    Transcript,
)
from lightning_vfl.audit.transcript import both_counts, differences
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import ContiguousColumns, Groups
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.wire import Tap
from tests.further import further
from tests.subjects import Blobs, YesNo, split, trainer

SPLIT = partial(SplitVFL, width=4, seed=0)
TANH = partial(MLP, output_activation=torch.nn.Tanh)
SHARED_BOTTOMS = partial(SPLIT, allow_invertible_updates=True)
QUICK: dict[str, Callable[[], VFLModule]] = {
    "Concat": lambda: SPLIT(Concat()),
    "Sum, active": lambda: SPLIT(Sum(), active=0),
    "MaskedSum, recovery": lambda: SPLIT(MaskedSum(recovery="auto")),
    "LagrangeCoded": lambda: SPLIT(LagrangeCoded(blocks=1, privacy=0), PolynomialNetwork),
    "AsyncVFL": lambda: AsyncVFL(Mean(), width=4, seed=0),
    "DecoupledVFL": lambda: DecoupledVFL(width=4, host_width=3, hosts=2, guest_epochs=1, seed=0),
    "OneShotVFL": lambda: OneShotVFL(Concat(), width=4, seed=0, local_epochs=1),
    "CascadeVFL, amplified": lambda: CascadeVFL(Concat(), width=4, seed=0, q=2.0, slower={0: 0.5}),
    "groups": lambda: SHARED_BOTTOMS(Sum(), active=0),
}
SLOW: dict[str, Callable[[], VFLModule]] = {
    "Mean": lambda: SPLIT(Mean()),
    "Max": lambda: SPLIT(Max()),
    "MaskedSum": lambda: SPLIT(MaskedSum()),
    "MaskedSum, segments": lambda: SPLIT(MaskedSum(layout="segments"), active=0),
    "PoissonBinomial": lambda: SPLIT(PoissonBinomial(levels=16, beta=0.1, draws="seeded"), TANH),
    "LocalGaussian": lambda: SPLIT(LocalGaussian(draws="seeded")),
    "LagrangeCoded, T = 1": lambda: SPLIT(LagrangeCoded(blocks=1, privacy=1), PolynomialNetwork),
    "LagrangeShared": lambda: SPLIT(LagrangeShared(blocks=1, privacy=1)),
    "AsyncVFL, Concat": lambda: AsyncVFL(Concat(), width=4, seed=0),
    "AsyncVFL, Sum": lambda: AsyncVFL(Sum(), width=4, seed=0),
    "AsyncVFL, Max": lambda: AsyncVFL(Max(), width=4, seed=0),
    "CascadeVFL": lambda: CascadeVFL(Concat(), width=4, seed=0),
    "CascadeVFL, Mean": lambda: CascadeVFL(Mean(), width=4, seed=0),
    "CascadeVFL, Sum": lambda: CascadeVFL(Sum(), width=4, seed=0),
    "CascadeVFL, MaskedSum": lambda: CascadeVFL(MaskedSum(), width=4, seed=0),
    "CascadeVFL, PoissonBinomial": lambda: CascadeVFL(
        PoissonBinomial(levels=16, beta=0.1, draws="seeded"), bottom=TANH, width=4, seed=0
    ),
    "CascadeVFL, LocalGaussian": lambda: CascadeVFL(LocalGaussian(draws="seeded"), width=4, seed=0),
    "groups, MaskedSum": lambda: SHARED_BOTTOMS(MaskedSum(allow_single=True), active=0),
}
CASES = [pytest.param(name, make, id=name) for name, make in QUICK.items()] + [
    pytest.param(name, make, id=name, marks=pytest.mark.slow) for name, make in SLOW.items()
]


def fitted(name: str, make: Callable[[], VFLModule], folder: Any, *callbacks: Audit) -> VFLModule:
    torch.manual_seed(0)
    groups = Groups(ContiguousColumns(2), [1, 2]) if name.startswith("groups") else None
    module = make()
    fit = trainer(
        folder,
        max_epochs=3 if name == "OneShotVFL" else 2,
        limit_train_batches=3,
        callbacks=list(callbacks),
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    fit.fit(module, datamodule=YesNo(groups, batch_size=9))
    return module


@pytest.mark.parametrize(("name", "make"), CASES)
def test_transcript_has_the_bytes_of_the_meter_and_changes_no_bit(name, make, tmp_path):
    audits = Audit("server+party:1", []), Audit("party:0", [])
    module = fitted(name, make, tmp_path / "with", *audits)
    for audit in audits:
        counts = both_counts(module, audit.transcript)
        assert counts.keys() == audit.transcript.kinds(), "a training sends something, and legs announce it"
        for kind, (heard, metered) in counts.items():
            assert torch.equal(heard, metered), (kind, heard, metered)
        assert audit.transcript.entries
    alone = fitted(name, make, tmp_path / "without")
    assert alone.tap is None
    assert module.tap is None
    for (what, a), (_, b) in zip(module.state_dict().items(), alone.state_dict().items(), strict=True):
        assert torch.equal(a, b), what


PROTOCOLS: dict[str, Callable[[], VFLModule]] = {
    "Concat": lambda: SPLIT(Concat(), Linear),  # a hidden layer would be fitted for a minute
    **{name: QUICK[name] for name in ("AsyncVFL", "DecoupledVFL", "OneShotVFL")},
    "CascadeVFL, amplified": lambda: CascadeVFL(Concat(), bottom=Linear, width=4, seed=0, q=2.0, slower={0: 0.5}),
    "EnsembleVFL": lambda: EnsembleVFL(width=4, seed=0),
    "LocalVFL": lambda: LocalVFL(width=4, seed=0),
}


@pytest.mark.parametrize(
    ("name", "attacker"),
    [
        (name, attacker) if (i + j) % 2 else further(name, attacker)
        for i, name in enumerate(PROTOCOLS)
        for j, attacker in enumerate(("server", "party:1"))
    ],
)
def test_an_audit_that_names_no_attack_runs_the_usual_ones_for_every_protocol(name, attacker, tmp_path):
    audit = Audit(attacker)
    fitted(name, PROTOCOLS[name], tmp_path, audit)
    assert audit.findings


class Everything(Attack):
    """Reads all that its attacker receives, and guesses nothing."""

    target = Target.RANKS

    def run(self, seen: Seen, known: Known) -> Guesses:
        raise NothingSeen("this attack guesses nothing")


READ: dict[str, Callable[[], VFLModule]] = {
    "Concat": PROTOCOLS["Concat"],
    "MaskedSum": lambda: SPLIT(MaskedSum(), Linear),
    "groups": lambda: SHARED_BOTTOMS(Sum(), Linear, active=0),
    "LagrangeCoded": SLOW["LagrangeCoded, T = 1"],
    "CascadeVFL": PROTOCOLS["CascadeVFL, amplified"],
}


@pytest.mark.parametrize("attacker", ["server", further("party:1+party:2"), further("server+party:1")])
@pytest.mark.parametrize("name", [name if name == "MaskedSum" else further(name) for name in READ])
def test_an_attack_loses_nothing_by_what_it_says_that_it_does_not_read(name, attacker, tmp_path):
    usual = Audit(attacker, limit_bytes=0)  # the attacks are chosen before the first message, which ends the fit
    with pytest.raises(ConfigurationError, match="limit_bytes"):
        fitted(name, READ[name], tmp_path / "usual", usual)
    attacks = [*(usual.attacks or ()), *([] if "Coded" in name else [CanariesInTraining(1, canaries=20)])]
    alone = [Audit(attacker, [attack]) for attack in attacks]
    beside = [Audit(attacker, [attack, Everything()]) for attack in attacks]
    fitted(name, READ[name], tmp_path / "again", *alone, *beside)
    for one, other in zip(alone, beside, strict=True):
        assert one.transcript.kept_bytes <= other.transcript.kept_bytes
        kept, everything = one.findings[0], other.findings[0]
        assert kept.saw == everything.saw
        numbers = [(found.success, found.low, found.high) for found in (kept, everything)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-6, abs=1e-9, nan_ok=True)


def test_nothing_is_kept_that_no_chosen_attack_reads(tmp_path):
    chosen = [LabelsByNorm(1)], [ModelCompletion(2)], [ModelCompletion(2), LabelsByNorm(1)]
    audits = [Audit("server+party:1", attacks) for attacks in chosen]
    fitted("MaskedSum", SLOW["MaskedSum"], tmp_path, *audits)
    kinds = [{(entry.kind, entry.way) for entry in audit.transcript.entries} for audit in audits]
    assert kinds == [{("gradients", "down")}, set(), {("gradients", "down")}]
    assert [audit.transcript.kept_bytes > 0 for audit in audits] == [True, False, True]


def test_a_protocol_whose_messages_are_not_passed_on_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="LaserVFL does not support audits"):
        fitted("LaserVFL", lambda: LaserVFL(width=4, seed=0), tmp_path, Audit("server", []))


def test_every_aggregator_is_tried():
    tried = {type(make().aggregator) for make in (*QUICK.values(), *SLOW.values())}
    public = {getattr(aggregators, name) for name in aggregators.__all__}
    concrete = {kind for kind in public if isinstance(kind, type) and issubclass(kind, Aggregator)} - {Aggregator}
    assert concrete <= tried, concrete - tried


def test_attacker_keeps_only_what_its_members_receive_or_send(tmp_path):
    audit = Audit("party:1", [])
    fitted("MaskedSum", SLOW["MaskedSum"], tmp_path, audit)
    entries = audit.transcript.entries
    assert {entry.kind for entry in entries} == {"masked embeddings", "gradients", "public keys"}
    assert all(1 in (entry.sender, entry.receiver) for entry in entries)
    gradients = [entry for entry in entries if entry.kind == "gradients"]
    assert [entry.epoch for entry in gradients] == [1, 1, 1, 2, 2, 2]
    assert all(entry.value.shape == (9, 4) and entry.ids.shape == (9,) for entry in gradients)


class Copies(Tap):
    """Copies of all that is sent between the server and the parties, and of the aggregates."""

    def __init__(self):
        self.values = []

    def sent(self, message, ids, at=None):
        self.values += [(message.kind, piece.detach().clone()) for piece in message.pieces]

    def joined(self, value, names, ids, at=None, kind="aggregates"):
        self.values.append((kind, value.detach().clone()))


class FirstParty(Sum):
    """The embedding of party 0 itself: no new tensor."""

    def plain(self, h, roll, present=None):
        return h[0]


def writing_top(width: int) -> torch.nn.Module:
    """A top that writes into what it is given."""
    return torch.nn.Sequential(torch.nn.Dropout(inplace=True), torch.nn.Linear(width, 1))


WRITTEN: dict[str, Callable[[], VFLModule]] = {
    "Concat, writing top": lambda: SPLIT(Concat(), top=writing_top),
    "Max, writing top": lambda: SPLIT(Max(), top=writing_top),
    "one party's, writing top": lambda: SPLIT(FirstParty(), top=writing_top),
}


@pytest.mark.parametrize("name", ["Concat", "Mean", "LocalGaussian", *WRITTEN])
def test_what_is_kept_is_what_was_sent_and_does_not_change_later(name, tmp_path):
    audit, copies, make = Audit("server", []), Copies(), {**QUICK, **SLOW, **WRITTEN}[name]

    def listened():
        module = make()
        module.tap = copies
        return module

    others = "the weights of party 1 and party 2 have not changed"
    with pytest.warns(UserWarning, match=others) if make is WRITTEN["one party's, writing top"] else nullcontext():
        fitted(name, listened, tmp_path, audit)
    assert len(audit.transcript.entries) == len(copies.values) > 0
    for entry, (kind, value) in zip(audit.transcript.entries, copies.values, strict=True):
        assert entry.kind == kind
        assert torch.equal(entry.value, value)


@pytest.mark.parametrize("name", ["Concat", further("Mean")])
def test_the_graph_of_a_step_is_freed_with_the_step(name, tmp_path):
    """A hook that refers to its own graph would keep it until Python looks for cycles."""
    gc.collect()
    gc.disable()
    try:
        fitted(name, {**QUICK, **SLOW}[name], tmp_path, Audit("server", []))
        alive = [one for one in gc.get_objects() if type(one) is Exchange]
    finally:
        gc.enable()
    assert len(alive) <= 1


def test_limit_of_bytes_ends_the_fit_in_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="takes more than limit_bytes = 1000 by round"):
        fitted("Concat", QUICK["Concat"], tmp_path, Audit("server", [], limit_bytes=1000))


def test_unknown_members_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="attacker 'party:x' is unknown; use server"):
        Audit("party:x")
    with pytest.raises(ConfigurationError, match="there is no party 7; the parties are 0 to 2"):
        fitted("Concat", QUICK["Concat"], tmp_path, Audit("party:7", []))


def test_aggregator_without_messages_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="computes without messages"):
        fitted("equivalent", lambda: SPLIT(MaskedSum(execution="equivalent")), tmp_path, Audit("server", []))


def test_transcript_of_nothing_is_empty():
    assert list(Transcript(Audit("server").attacker).epochs()) == []


class Heard:
    """A transcript of a meter's own count, changed."""

    def __init__(self, counts):
        self._counts = counts

    def bytes(self, meter):
        return self._counts

    def kinds(self):
        return frozenset(self._counts)


def test_more_and_less_than_the_meter_counts_is_told_in_positive_bytes(tmp_path):
    module = split()
    trainer(tmp_path, max_epochs=1).fit(module, Blobs(batch_size=27))
    meter = module.books.meter
    counts = {key: meter.total(key[1], key[0]) for key in meter.bits}
    assert differences(module, Heard(counts)) == []
    up = ("embeddings", "up")
    less, more = ({**counts, up: counts[up] + torch.tensor([-1, 0, 0]) * sign} for sign in (1, -1))
    assert differences(module, Heard(less))[0].startswith("the audit has not heard 1 bytes of 'embeddings'")
    assert differences(module, Heard(more))[0].startswith("the audit has heard 1 bytes of 'embeddings' more than")
    unknown = differences(module, Heard({**counts, ("letters", "up"): counts[up]}))
    assert unknown == ["the audit has heard messages 'letters' (up), which no leg announces: nobody counts them"]
