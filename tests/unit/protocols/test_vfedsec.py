"""vFedSec through the Trainer: books, keys and keystreams of whole runs, evaluation, faults, recovery, refusals."""

from collections import Counter
from functools import partial
from itertools import product
from typing import ClassVar

import pytest
import torch
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import MaskedSum, Sum
from lightning_vfl.aggregators.secure import opening
from lightning_vfl.aggregators.secure.masked_wire import MaskedParty
from lightning_vfl.aggregators.secure.opening import LayerOpening
from lightning_vfl.callbacks import PartyDropout, RunSummary, Stragglers, TraceRecorder
from lightning_vfl.crypto import Identities, Sealed
from lightning_vfl.datamodules import ContiguousColumns, Groups, Partitioner
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, PadAfterNorm, Skip, Stale, Zeros
from lightning_vfl.networks import MLP
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.waiting import Deadline, Fastest, Ignore, Threshold, WaitForAll
from tests.further import further
from tests.keystream_uses import reused
from tests.subjects import Blobs, same, split, trainer
from tests.unit.protocols.test_faulty_rounds import Scripted

M, WIDTH, TRAIN, EVALUATED = 4, 5, 54, 18  # records to train, and to validate and to test
STEPS = 6  # batches of 10
ROWS = [10, 10, 10, 10, 10, 4]
PATIENT = partial(WaitForAll, timeout=1.0)
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
LATE = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")


def data(partitioner: Partitioner | None = None, **settings):
    return Blobs(partitioner or ContiguousColumns(M), **{"batch_size": 10, **settings})


def vfedsec(layout="sum", **settings):
    torch.manual_seed(0)
    options = {
        name: settings.pop(name)
        for name in (
            "clip", "levels", "rekey_every", "allow_single", "recovery", "execution", "insecure_seeded_secrets",
            "identities"
        )
        if name in settings
    }  # fmt: skip
    usual = {"active": 0, "optimizer": SGD, "bottom": partial(MLP, hidden=[6]), "waiting": PATIENT()}
    settings = usual | {"allow_invertible_updates": True, "allow_embeddings_by_subtraction": True} | settings
    return SplitVFL(MaskedSum(layout, **options), width=WIDTH, seed=0, **settings)


def fit(folder, module, script=None, source=None, **settings):
    if script is not None:
        module.faults.add(Scripted(script))
    t = trainer(folder, **{"max_epochs": 1, **settings})
    t.fit(module, datamodule=source or data())
    return t


class Learners(Callback):
    """Who has moved in each round: party numbers, M for the server; embeddings and statistics besides."""

    def __init__(self):
        self.moved = []

    def on_train_batch_start(self, trainer, module, *args):
        self.before = [[p.clone() for p in own.parameters()] for own in module.owners()]

    def on_train_batch_end(self, trainer, module, *args):
        now = [[p.detach() for p in own.parameters()] for own in module.owners()]
        self.moved.append([m for m, (a, b) in enumerate(zip(self.before, now, strict=True)) if not same(a, b)])


class Wire:
    """Bytes of the messages that parties really send each other and the server, by stage, kind and sender."""

    def __init__(self, monkeypatch):
        self.bytes, self.uploads, self.publics = Counter(), Counter(), []
        open_, masked = LayerOpening.open, MaskedParty._masked

        def listening(opening, memory, view):
            for message in open_(opening, memory, view):
                for sender, piece in zip(message.senders, message.pieces, strict=True):
                    for receiver in range(view.roster.parties):
                        if receiver != sender and piece[receiver].any():
                            self.bytes[view.names.stage, message.kind, sender] += piece[receiver].numel()
                    if message.kind == "public keys":
                        self.publics.append((view.names.stage, view.names.round, sender, piece[0].numpy().tobytes()))
                yield message

        def uploading(party, contribution, view):
            message = masked(party, contribution, view)
            for sender, piece in zip(message.senders, message.pieces, strict=True):
                assert piece.dtype == torch.uint32
                self.uploads[view.names.stage, sender] += piece.nbytes
            return message

        monkeypatch.setattr(LayerOpening, "open", listening)
        monkeypatch.setattr(MaskedParty, "_masked", uploading)

    def of(self, stage, kind):
        return [self.bytes[stage, kind, sender] for sender in range(M)]


# ---- books


@pytest.mark.parametrize(("layout", "every"), [("sum", 5), ("segments", 1), further("sum", 1), further("segments", 5)])
def test_bytes_have_a_closed_form(tmp_path, layout, every):
    """Two epochs of six rounds, of 54 records; 4 bytes a number; keys of 32 bytes, ids of 8 and 28 a message."""
    module = vfedsec(layout, rekey_every=every, evaluate="plain")
    fit(tmp_path, module, max_epochs=2)
    meter, widths = module.books.meter, [15 if layout == "segments" and m == 0 else 5 for m in range(M)]
    assert meter.total("up", "masked embeddings").tolist() == [2 * TRAIN * width * 4 for width in widths]
    assert meter.total("up", "labels").tolist() == [2 * TRAIN * 4, 0, 0, 0]
    assert meter.total("down", "gradients").tolist() == [2 * TRAIN * width * 4 for width in widths]
    periods = -(-2 * STEPS // every)
    assert meter.total("peer", "public keys").tolist() == [periods * (M - 1) * 32] * M
    assert meter.total("peer", "record ids").tolist() == [2 * (M - 1) * (TRAIN * 8 + STEPS * 28), 0, 0, 0]
    assert meter.kinds("up") == ("labels", "masked embeddings")
    assert meter.kinds("peer") == ("public keys", "record ids")
    assert meter.kinds("down") == ("gradients",)


@pytest.mark.parametrize("every", [further(1), 5])
def test_bytes_with_recovery_have_a_closed_form(tmp_path, every):
    """Two secrets of nine limbs a round, in 4 bytes each; revealed elements of 31 bits; signatures of 64 bytes."""
    module = vfedsec(recovery={"threshold": 3}, rekey_every=every, evaluate="plain", active=None)
    fit(tmp_path, module, max_epochs=2)
    meter, periods, rounds = module.books.meter, -(-2 * STEPS // every), 2 * STEPS
    assert meter.total("peer", "public keys").tolist() == [periods * 3 * (32 + 32)] * M
    assert meter.total("peer", "round keys").tolist() == [periods * 3 * 32 * every] * M
    assert meter.total("peer", "seed shares").tolist() == [periods * 3 * (every * 2 * 9 * 4 + 28)] * M
    assert meter.total("up", "round keys").tolist() == [rounds * 32] * M
    assert meter.total("up", "survivor signatures").tolist() == [rounds * 64] * M
    # nobody is late, so the first three signatures come from the first three parties, who are sent them and answer
    assert meter.total("down", "signature lists").tolist() == [rounds * 3 * 64] * 3 + [0]
    assert meter.total("up", "revealed shares").tolist() == [rounds * -(-M * 9 * 31 // 8)] * 3 + [0]
    assert meter.kinds("peer") == ("public keys", "round keys", "seed shares")


def test_signatures_take_two_trips_more_than_the_shares(tmp_path):
    """Seconds of a run in closed form: at 800 bits a second and no speed limits, latency 0.25 s a message."""
    seconds = {}
    for name, recovery in (("without", None), ("with", {"threshold": 3})):
        clock = VirtualClock(bandwidth=800.0, latency=0.25, speed=1e30, server_speed=1e30)
        module = vfedsec(recovery=recovery, evaluate="plain", active=None, clock=clock, waiting=WaitForAll())
        fit(tmp_path, module)
        seconds[name] = clock.seconds
    trip, shares = 0.25, -(-M * 9 * 31 // 8)
    a_round = (32 / 100) + (trip + 64 / 100) + (trip + 3 * 64 / 100) + (trip + shares / 100)
    a_period = 3 * 32 / 100 + (trip + 3 * 32 * 5 / 100) + (trip + 3 * (5 * 2 * 9 * 4 + 28) / 100)
    assert seconds["with"] - seconds["without"] == pytest.approx(STEPS * a_round + 2 * a_period, rel=1e-9)


@LATE
@pytest.mark.parametrize("recovery", [further(None), {"threshold": 3}])
def test_identities_change_the_books_and_nothing_else(tmp_path, recovery):
    """64 bytes more a key, a commitment of 32, the same weights; a checkpoint goes on with other identities or none."""
    folders = [str(Identities.make(tmp_path / name, M).folder) for name in ("first", "second")]
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1, save_on_train_epoch_end=False)
    runs = []
    for identities in (None, folders[0]):
        module = vfedsec(recovery=recovery, identities=identities, evaluate="plain")
        fit(tmp_path, module, callbacks=[saver], enable_checkpointing=True)
        runs.append(module)
    without, signed = runs
    assert same(dict(without.state_dict()), dict(signed.state_dict()))
    assert signed.books.meter.total("peer", "key commitments").tolist() == [2 * 3 * 32] * M
    own = 32 if recovery is None else 64
    assert without.books.meter.total("peer", "public keys").tolist() == [2 * 3 * own] * M
    assert signed.books.meter.total("peer", "public keys").tolist() == [2 * 3 * 96] * M
    said, unsaid = (module.protection(STEPS) for module in runs)
    assert "nobody signs" in said
    assert "nobody signs" not in unsaid
    for identities in (None, *folders):
        again = vfedsec(recovery=recovery, identities=identities, evaluate="plain")
        trainer(tmp_path, max_epochs=1).fit(again, datamodule=data(), ckpt_path=tmp_path / "step=3.ckpt")
        assert same(dict(again.state_dict()), dict(signed.state_dict()))
    private = [(tmp_path / "first" / f"party-{m}.key.pem").read_bytes() for m in range(M)]
    seeds = [load_pem_private_key(pem, None).private_bytes_raw() for pem in private]
    assert not any(seed in (tmp_path / "step=3.ckpt").read_bytes() for seed in seeds)


def test_labels_are_metered_in_the_unsecured_arm_too_and_not_in_evaluation(tmp_path):
    for aggregator in (Sum(), MaskedSum()):
        module = split(aggregator, active=1, evaluate="protocol")
        t = fit(tmp_path, module, source=Blobs(batch_size=10))
        t.test(module, datamodule=Blobs(batch_size=10), verbose=False)
        assert module.books.meter.total("up", "labels").tolist() == [0, TRAIN * 4, 0]
        assert not any("labels" in kind for kind in module.books.meter.kinds("up") if kind != "labels")
    without = split(Sum())
    fit(tmp_path, without, source=Blobs(batch_size=10))
    assert without.books.meter.kinds("up") == ("embeddings",)


@pytest.mark.parametrize(("layout", "recovery"), [("sum", None), ("sum", {}), ("segments", None)])
def test_what_is_sent_is_what_stands_in_the_books(tmp_path, monkeypatch, layout, recovery):
    """A whole run of fit, sanity check, validation and test, message by message; uploads are words of 32 bits."""
    wire, module = Wire(monkeypatch), vfedsec(layout, recovery=recovery)
    t = fit(tmp_path, module, num_sanity_val_steps=2)
    t.test(module, datamodule=data(), verbose=False)
    sent = {(stage, kind) for stage, kind, _ in wire.bytes}
    assert {stage for stage, _ in sent} == {"fit", "sanity check", "validation", "test"}
    for stage, kind in sorted(sent):
        name = kind if stage == "fit" else f"{stage} {kind}"
        assert wire.of(stage, kind) == module.books.meter.total("peer", name).tolist(), name
    assert {kind if stage == "fit" else f"{stage} {kind}" for stage, kind in sent} == set(
        module.books.meter.kinds("peer")
    )
    for stage in ("fit", "sanity check", "validation", "test"):
        name = "masked embeddings" if stage == "fit" else f"{stage} masked embeddings"
        assert module.books.meter.total("up", name).tolist() == [wire.uploads[stage, m] for m in range(M)]
    assert wire.uploads["validation", 0] == EVALUATED * (15 if layout == "segments" else 5) * 4


@pytest.mark.parametrize("missing", [Exclude, Skip])
def test_what_is_sent_is_in_the_books_when_parties_are_away_as_keys_fall_due(tmp_path, monkeypatch, missing):
    """Round 5 begins a period and party 3 is away: whoever sends keys then or later, they are counted."""
    wire, module = Wire(monkeypatch), vfedsec(missing=missing(), evaluate="plain")
    fit(tmp_path, module, {10: {"announced": [1, 1, 1, 0]}}, max_epochs=2)
    assert wire.of("fit", "public keys") == module.books.meter.total("peer", "public keys").tolist()
    assert wire.of("fit", "record ids") == module.books.meter.total("peer", "record ids").tolist()


class Breaks(Callback):
    """Ends a fit in its second round."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 1:
            raise RuntimeError("broken off")


def test_fresh_keys_after_a_fit_that_was_broken_off_are_in_the_books(tmp_path, monkeypatch):
    wire, module = Wire(monkeypatch), vfedsec(evaluate="plain")
    with pytest.raises(RuntimeError, match="broken off"):
        fit(tmp_path, module, callbacks=[Breaks()])
    fit(tmp_path, module)
    assert wire.of("fit", "public keys") == module.books.meter.total("peer", "public keys").tolist()


def test_absences_spare_uploads_answers_and_ids(tmp_path):
    script = {2: {"announced": [1, 1, 0, 1]}, 6: {"announced": [1, 0, 0, 1]}}
    module = vfedsec("segments", evaluate="plain")
    fit(tmp_path, module, script)
    there = [TRAIN, TRAIN - 10, TRAIN - 20, TRAIN]
    widths = [15, 5, 5, 5]
    expected = [rows * width * 4 for rows, width in zip(there, widths, strict=True)]
    assert module.books.meter.total("up", "masked embeddings").tolist() == expected
    assert module.books.meter.total("down", "gradients").tolist() == expected
    called = [3, 2, 3, 1, 3, 3]
    ids = sum(n * (rows * 8 + 28) for n, rows in zip(called, ROWS, strict=True))
    assert module.books.meter.total("peer", "record ids").tolist() == [ids, 0, 0, 0]


# ---- keys


@pytest.mark.parametrize(
    ("recovery", "every"), [further(None, 1), further(None, 5), ({}, 5)], ids=["often", "sum", "recovery"]
)
def test_every_period_of_rounds_has_keys_of_its_own(tmp_path, monkeypatch, recovery, every):
    """K = 5 rounds of a validation, a test or a training, whatever shares the keys."""
    module, rounds, open_ = vfedsec(recovery=recovery, rekey_every=every), {}, LayerOpening.open

    def noting(self, memory, view):
        yield from open_(self, memory, view)
        for public in {pair.public for pair in memory.pairs.values()}:
            rounds.setdefault(public, set()).add((view.names.stage, view.names.round))

    monkeypatch.setattr(LayerOpening, "open", noting)
    wire = Wire(monkeypatch)
    t = fit(tmp_path, module, max_epochs=3, num_sanity_val_steps=0)
    t.test(module, datamodule=data(batch_size=2), verbose=False)
    assert len(rounds) >= M * (4 + 2 + 2)
    assert max(len(served) for served in rounds.values()) <= every
    assert set(Counter(key for *_, key in wire.publics).values()) == {1}
    begun = {stage: sorted({r for s, r, *_ in wire.publics if s == stage}) for stage in ("fit", "validation", "test")}
    assert begun == {
        "fit": list(range(0, 18, every)),
        "validation": list(range(0, 6, every)),
        "test": list(range(0, 9, every)),
    }


def test_no_checkpoint_holds_a_key(tmp_path):
    module = vfedsec(recovery={})

    class Saves(Callback):
        def on_train_batch_end(self, trainer, module, batch, outputs, batch_idx):
            if batch_idx == 3:
                trainer.save_checkpoint(tmp_path / "it.ckpt")
                memory = module.preparation.memory["fit"]
                content = (tmp_path / "it.ckpt").read_bytes()
                secrets = [s for own in memory.vault.secrets.values() for s in own.seeds]
                assert secrets
                assert not any(secret in content for secret in (*secrets, *memory.publics.values()))

    fit(tmp_path, module, callbacks=[Saves()])
    assert "memory" not in str(torch.load(tmp_path / "it.ckpt", weights_only=True)["lightning_vfl"]["preparation"])


# ---- no keystream byte and no nonce twice


class Recorded(Sealed):
    """A channel that notes which nonce it uses under which key."""

    used: ClassVar[list[tuple[bytes, bytes]]] = []

    def __init__(self, key):
        super().__init__(key)
        self.key = key

    def seal(self, message, number, bound=b""):
        sealed = super().seal(message, number, bound)
        self.used.append((self.key, sealed[:12]))
        return sealed


@pytest.fixture
def nonces(monkeypatch):
    monkeypatch.setattr(opening, "Sealed", Recorded)
    monkeypatch.setattr(Recorded, "used", [])
    return Recorded.used


RUNS = {
    "sum": {},
    "segments": {"layout": "segments"},
    "groups": {"layout": "segments", "groups": True, "allow_single": True},
    "recovery": {"recovery": {}},
    "recovery and groups": {"recovery": {}, "groups": True, "allow_single": True},
}


@pytest.mark.parametrize(
    ("run", "seeded"),
    [
        *((name, False) for name in ("sum", "segments", "recovery and groups")),
        *(further(name, False) for name in ("groups", "recovery")),
        further("groups", True),
        ("recovery", True),
    ],
)
def test_no_block_of_keystream_and_no_nonce_is_used_twice_in_a_whole_run(tmp_path, nonces, uses, run, seeded):
    """Sanity check, fit with absences, validation after each epoch, test, predict, validate, a second fit and test."""
    settings = dict(RUNS[run])
    cut = Groups(ContiguousColumns(3), members=[1, 2, 1]) if settings.pop("groups", False) else None
    module = vfedsec(insecure_seeded_secrets=seeded, **settings)
    source = data(cut)
    script = {6: {"announced": [1, 1, 0, 1]}, 12: {"sends": [1, 0, 1, 1]}, 14: {"sends": [1, 1, 1, 0]}}
    t = fit(tmp_path, module, script, source, max_epochs=2)
    t.test(module, datamodule=source, verbose=False)
    t.predict(module, datamodule=source)
    if not seeded:  # a stage that is set up again has the same keys then
        t.validate(module, datamodule=source, verbose=False)
        fit(tmp_path, module, source=source).test(module, datamodule=source, verbose=False)
    assert len({use.key for use in uses}) > 20
    assert {use.party for use in uses} == set(range(M))
    assert reused(uses) == []
    assert len(nonces) == len(set(nonces)) > 3 * 2 * STEPS


@LATE
@pytest.mark.parametrize(
    ("settings", "kills"),
    [({}, (1, 5)), ({"recovery": {}}, (4,)), further({}, range(1, STEPS))],
    ids=["sum", "recovery", "any"],
)
def test_a_resumed_run_has_fresh_keys_and_the_same_bits(tmp_path, nonces, uses, settings, kills):
    """Killed after any step: the rounds after the checkpoint are masked again, and never with the same words."""
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    whole = vfedsec(**settings, evaluate="plain")
    t = fit(tmp_path, whole, {4: {"announced": [1, 0, 1, 1]}}, callbacks=[saver], enable_checkpointing=True)
    for step in kills:
        again = vfedsec(**settings, evaluate="plain")
        before = len(uses)
        u = trainer(tmp_path, max_epochs=1)
        again.faults.add(Scripted({4: {"announced": [1, 0, 1, 1]}}))
        u.fit(again, datamodule=data(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert len(uses) > before
        assert same(dict(again.state_dict()), dict(whole.state_dict()))
        assert same(u.optimizers[0].state_dict(), t.optimizers[0].state_dict())
        assert same(again.books.meter.state_dict(), whole.books.meter.state_dict())
    assert reused(uses) == []
    assert len(nonces) == len(set(nonces))


@pytest.mark.parametrize(
    ("settings", "active"),
    [
        ({"layout": "segments"}, 0),
        ({"recovery": {}}, None),
        *(further(settings, active) for settings, active in (({}, 0), ({}, None), ({"recovery": {}}, 0))),
    ],
)
def test_predictions_and_repeated_forwards_are_those_in_the_clear(tmp_path, uses, settings, active):
    """Two calls are two rounds: they give the same predictions, under masks that are used once."""
    module, source = vfedsec(**settings, active=active), data()
    t = fit(tmp_path, module, source=source)
    predicted = torch.cat([p.values for p in t.predict(module, datamodule=source)])
    assert module.books.meter.kinds("up").count("predict masked embeddings") == 1
    features = source.records("predict").rows(torch.arange(len(predicted)))
    module.eval()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(module(features), predicted, rtol=0, atol=1e-5)
    assert reused([use for use in uses if use.stop - use.start > 0]) == []
    module.protected_evaluation = False
    plain = t.predict(module, datamodule=source)
    assert torch.equal(torch.cat([p.record_ids for p in plain]), torch.arange(EVALUATED))
    torch.testing.assert_close(torch.cat([p.values for p in plain]), predicted, rtol=0, atol=1e-5)


# ---- equivalent


SCRIPTS = {
    "silent": {2: {"sends": [1, 1, 0, 1]}, 8: {"sends": [1, 1, 1, 0]}, 11: {"receives": [1, 0, 1, 1]}},
    "everything": {
        0: {"announced": [1, 1, 1, 0]},
        4: {"sends": [1, 0, 1, 1], "announced": [1, 1, 0, 1]},
        6: {"sends": [1, 0, 0, 0]},
        9: {"hosts": [0]},
    },
}
ARMS = {
    "sum": {},
    "segments": {"layout": "segments"},
    "segments, padded": {"layout": "segments", "missing": PadAfterNorm, "norm": nn.BatchNorm1d},
    "recovery": {"recovery": {}},
    "groups": {"layout": "segments", "groups": True, "allow_single": True},
    "groups with recovery": {"recovery": {}, "groups": True, "allow_single": True},
}


@pytest.mark.parametrize(
    ("arm", "script"),
    [
        ("segments, padded", "everything"),
        ("groups with recovery", "everything"),
        ("sum", "silent"),
        *(further(arm, "everything") for arm in ("sum", "segments", "recovery", "groups")),
        further("recovery", "silent"),
    ],
)
def test_masked_equivalent_and_seeded_runs_have_the_same_bits_and_books(tmp_path, arm, script):
    runs, settings = [], dict(ARMS[arm])
    cut = Groups(ContiguousColumns(3), members=[1, 2, 1]) if settings.pop("groups", False) else None
    for more in ({}, {"execution": "equivalent"}, {"insecure_seeded_secrets": True}):
        made = {**settings, "missing": settings["missing"]()} if "missing" in settings else settings
        module = vfedsec(**made, **more)
        t = fit(tmp_path, module, SCRIPTS[script], data(cut))
        tested = t.test(module, datamodule=data(cut), verbose=False)
        runs.append(
            {
                "weights": dict(module.state_dict()),
                "optimizer": t.optimizers[0].state_dict(),
                "bytes": module.books.meter.state_dict(),
                "standing": module.standing(),
                "tested": tested,
                "given up": module.books.given_up,
            }
        )
    assert all(same(runs[0], run) for run in runs[1:])


# ---- evaluation


def test_evaluation_is_protected_by_default_metered_apart_and_takes_no_virtual_time(tmp_path):
    tested, modules = [], []
    for evaluate in ("auto", "plain"):
        m = vfedsec("segments", evaluate=evaluate)
        modules.append(m)
        assert m.protected_evaluation == (evaluate == "auto")
        t = fit(tmp_path, m, num_sanity_val_steps=2)
        seconds, books = m.clock.seconds, m.books.meter.state_dict()
        tested.append(t.test(m, datamodule=data(), verbose=False)[0])
        assert m.clock.seconds == seconds
        assert all(
            torch.equal(count, m.books.meter.state_dict()[kind]) for kind, count in books.items() if "test" not in kind
        )
    module, plain = modules
    assert module.clock.seconds == plain.clock.seconds
    assert module.books.meter.total("peer", "test public keys").tolist() == [3 * 32] * M
    for stage in ("sanity check", "validation", "test"):
        assert module.books.meter.total("up", f"{stage} masked embeddings").tolist() == [
            EVALUATED * w * 4 for w in (15, 5, 5, 5)
        ]
        assert module.books.meter.total("peer", f"{stage} record ids").tolist() == [
            3 * (EVALUATED * 8 + 2 * 28),
            0,
            0,
            0,
        ]
    for kind in ("masked embeddings", "record ids", "public keys"):
        assert same(*(m.books.meter.total("up", kind) + m.books.meter.total("peer", kind) for m in (module, plain)))
    assert not any(kind.startswith(("test", "validation", "sanity")) for kind in plain.books.meter.kinds("up"))
    assert same(dict(module.state_dict()), dict(plain.state_dict()))
    for name, value in tested[0].items():
        assert value == pytest.approx(tested[1][name], abs=1e-5)


def test_what_is_clipped_is_logged(tmp_path):
    module = vfedsec("segments", clip=4.0)
    t = fit(tmp_path, module, log_every_n_steps=1)
    assert float(t.callback_metrics["aggregator/clipped_share"]) == 0.0
    narrow = vfedsec(clip=0.01)
    with pytest.warns(UserWarning, match="more than 1% of the values"):
        t = fit(tmp_path, narrow, log_every_n_steps=1)
    assert 0.1 < float(t.callback_metrics["aggregator/clipped_share"]) <= 1.0


# ---- faults


EVERYBODY = [0, 1, 2, 3, 4]
LOST = {2: {"sends": [1, 1, 0, 1]}, 6: {"sends": [0, 1, 1, 1]}, 8: {"sends": [1, 1, 1, 0]}}
FEW = {2: {"sends": [1, 1, 0, 0]}, 4: {"announced": [1, 1, 1, 0], "sends": [1, 0, 1, 1]}}
SEGMENTS = {
    2: {"sends": [1, 1, 0, 1]},
    4: {"sends": [0, 1, 1, 1]},
    6: {"sends": [1, 0, 0, 0]},
    8: {"announced": [1, 0, 1, 1]},
}


@pytest.mark.parametrize(
    ("settings", "script", "moved", "given_up"),
    [
        (
            {},
            {2: {"sends": [1, 1, 0, 1]}, 6: {"announced": [1, 0, 1, 1]}},
            [EVERYBODY, [], EVERYBODY, [0, 2, 3, 4], EVERYBODY, EVERYBODY],
            1,
        ),
        # without the active party no segment is left, and without the passive ones no embedding is hidden
        (
            {"layout": "segments", "missing": PadAfterNorm(), "norm": nn.BatchNorm1d},
            SEGMENTS,
            [EVERYBODY, [0, 1, 3, 4], [], [], [0, 2, 3, 4], EVERYBODY],
            2,
        ),
        (
            {"layout": "segments", "missing": Skip()},
            {2: {"announced": [1, 1, 0, 1]}, 6: {"sends": [1, 1, 0, 1]}},
            [EVERYBODY, [], EVERYBODY, [], EVERYBODY, EVERYBODY],
            2,
        ),
        ({}, LOST, [EVERYBODY, [], EVERYBODY, [], [], EVERYBODY], 3),
        (
            {"recovery": {"threshold": 3}},
            LOST,
            [EVERYBODY, [0, 1, 3, 4], EVERYBODY, [1, 2, 3, 4], [0, 1, 2, 4], EVERYBODY],
            0,
        ),
        ({"recovery": {"threshold": 3}}, FEW, [EVERYBODY, [], [], EVERYBODY, EVERYBODY, EVERYBODY], 2),
    ],
    ids=["sum", "segments", "skip", "without recovery", "with recovery", "fewer than the threshold"],
)
def test_who_learns_when_uploads_are_lost(tmp_path, settings, script, moved, given_up):
    """A sum loses the round, segments lose a group, recovery loses nothing down to its threshold."""
    learners, module = Learners(), vfedsec(**settings)
    fit(tmp_path, module, script, callbacks=[learners])
    assert learners.moved == moved
    assert module.books.given_up == given_up


@pytest.mark.parametrize("way", ["announced", "sends"])
def test_absent_columns_are_zeros_outside_of_the_norm_and_have_no_gradient(tmp_path, way):
    """Party 2's segment: statistics, weight and bias of its columns keep their bits in a round without it."""
    before, after, joined = {}, {}, []

    class Looks(Callback):
        def on_train_start(self, trainer, module):
            module.top.register_forward_hook(lambda top, args, out: joined.append(args[0].detach().clone()))

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            before[batch_idx] = {name: value.clone() for name, value in module.norm.state_dict().items()}

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            after[batch_idx] = {name: value.clone() for name, value in module.norm.state_dict().items()}

    plain = partial(torch.optim.SGD, lr=0.05)
    module = vfedsec("segments", missing=PadAfterNorm(), norm=nn.BatchNorm1d, optimizer=plain)
    fit(tmp_path, module, {4: {way: [1, 1, 0, 1]}}, callbacks=[Looks()], limit_val_batches=0)
    for batch, z in enumerate(joined[-STEPS:]):  # what a round costs has been measured before
        there = [True, batch != 2, True]
        for name, value in before[batch].items():
            if value.dim():
                assert (value != after[batch][name]).view(3, WIDTH).any(1).tolist() == there, name
        assert z.view(-1, 3, WIDTH).any(2).any(0).tolist() == there


def test_all_policies_and_arms_meet_the_same_trace(tmp_path):
    traces = []
    arms = [
        vfedsec("segments", missing=Skip()),
        vfedsec("segments", missing=PadAfterNorm(), norm=nn.BatchNorm1d),
        vfedsec(recovery={}),
        vfedsec(),
        split(Sum(), active=0, waiting=PATIENT()),
    ]
    for number, module in enumerate(arms):
        path = tmp_path / f"{number}.csv"
        recorder = TraceRecorder(str(path))
        fit(tmp_path, module, callbacks=[PartyDropout(0.5, 0.3), PartyDropout(0.3, 0.1, False), recorder])
        traces.append(path.read_text())
    assert len(set(traces)) == 1
    assert "False" in traces[0]


@pytest.mark.parametrize(
    "waiting", [Fastest(3), Deadline(0.3), Fastest(2)], ids=["fastest of three", "deadline", "fastest of two"]
)
def test_rules_that_leave_somebody_out_train_segments(tmp_path, waiting):
    module = vfedsec("segments", waiting=waiting)
    module.faults.add(Scripted({2 * r: {"delay": [0.0, 0.1, 0.2, 0.5]} for r in range(STEPS)}, silent=False))
    learners = Learners()
    fit(tmp_path, module, callbacks=[learners])
    assert learners.moved == [[0, 1, 4] if waiting.fewest(M) == 2 else [0, 1, 2, 4]] * STEPS


# ---- what is refused before training


def refused(folder, message, module, source=None, **settings):
    with pytest.raises(ConfigurationError, match=message):
        fit(folder, module, source=source, **settings)
    assert module.books.rounds.get("fit", 0) == 0


@pytest.mark.filterwarnings("ignore:no weight of SplitVFL has changed")  # three of six may be no whole segment
@pytest.mark.parametrize("rule", [Fastest(3), further(Fastest(4)), Deadline(1.0), Threshold()], ids=repr)
def test_rules_that_would_leave_masks_behind_are_refused_with_the_reason(tmp_path, rule):
    refused(tmp_path, "their masks are in the other uploads.*recovery, or layout: segments", vfedsec(waiting=rule))
    if not isinstance(rule, Threshold):
        fit(tmp_path, vfedsec("segments", waiting=rule))
    recovering = vfedsec(recovery={"threshold": 3}, waiting=rule)
    fit(tmp_path, recovering)
    assert recovering.books.given_up == 0


def test_parties_that_are_known_to_be_slow_may_be_left_out(tmp_path):
    module = vfedsec(waiting=Ignore())
    fit(tmp_path, module, callbacks=[Stragglers(0.3)])
    assert len(module.books.left_out) == 1
    assert module.books.given_up == 0


def test_an_embedding_that_would_be_left_alone_is_not_uploaded_in_evaluation_either(tmp_path):
    """Ignore leaves one of two parties: training has no set, and evaluation must not send what nothing hides."""
    module = vfedsec(waiting=Ignore(), active=None)
    module.faults.add(Scripted({}, silent=False, slow=(1, 2, 3)))
    try:
        fit(tmp_path, module)
    except ConfigurationError:
        return
    assert not module.books.meter.total("up", "validation masked embeddings").any()


@pytest.mark.parametrize(
    ("settings", "cut"),
    [
        ({"layout": "segments", "active": None}, ContiguousColumns(4)),
        ({"active": None}, ContiguousColumns(1)),
        ({"active": None}, Groups(ContiguousColumns(1), members=[3])),
        ({"layout": "segments", "active": None}, Groups(ContiguousColumns(2), members=[2, 2])),
    ],
    ids=["nobody active", "one party", "one group", "groups and nobody active"],
)
def test_sets_with_one_contributor_are_refused_unless_that_is_said(tmp_path, capsys, settings, cut):
    refused(tmp_path, "the sum IS its embedding", vfedsec(**settings), data(cut))
    module = vfedsec(**settings, allow_single=True)
    fit(tmp_path, module, source=data(cut), callbacks=[RunSummary()])
    said = " ".join(capsys.readouterr().out.split())
    assert "NOTHING hides" in said
    assert "allow_single" in said


class PartlyHeld(Blobs):
    partly_held = True


PADDED = {"layout": "segments", "norm": nn.BatchNorm1d, "missing": PadAfterNorm()}


@pytest.mark.parametrize(
    ("settings", "source", "message"),
    [
        ({"identities": "no"}, data(), r"party-0\.pub\.pem cannot be read .*lightning-vfl keys FOLDER --parties 4"),
        ({"recovery": {"threshold": 3}, "waiting": Fastest(2)}, data(), "needs 3 answers to decode"),
        *(
            ({"layout": layout, "evaluate": how}, PartlyHeld(batch_size=10), "held by no party of group")
            for layout, how in product(("sum", "segments"), ("plain", "protocol"))
        ),
        *(({"recovery": {"threshold": n}}, data(), "use 3 to 4, or auto") for n in (1, 2, 5)),
        *(
            ({"missing": policy}, data(), "replaces single embeddings, but MaskedSum hides these")
            for policy in (Stale(), Zeros())
        ),
        (PADDED, data(batch_size=53), "smallest batch of an epoch has 1 records"),
        (PADDED | {"norm": nn.LayerNorm}, data(), "use norm: torch.nn.BatchNorm1d"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_train_is_refused_with_the_fix(tmp_path, settings, source, message):
    refused(tmp_path, message, vfedsec(**settings), source)


def test_recovery_in_segments_and_a_threshold_of_0_are_refused():
    with pytest.raises(ConfigurationError, match="recovery is for layout: sum"):
        vfedsec("segments", recovery={})
    with pytest.raises(ConfigurationError, match="recovery threshold must be a whole number, 1 or more; got 0"):
        vfedsec(recovery={"threshold": 0})


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        (PADDED, {"batch_size": 52}),
        (PADDED, {"batch_size": 53, "drop_last": True}),
        (PADDED | {"norm": nn.LayerNorm, "missing": Exclude()}, {}),
    ],
)
def test_norms_train_on_batches_of_two_records_and_without_padding_of_any_kind(tmp_path, settings, batches):
    fit(tmp_path, vfedsec(**settings), source=data(**batches), limit_val_batches=0)


def test_asynchronous_training_and_levels_that_overflow_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="AsyncVFL does not support aggregators that hide"):
        AsyncVFL(MaskedSum(), width=WIDTH)
    many = vfedsec(levels=2**27, party_shapes=[(1,)] * 33, num_classes=3)
    with pytest.raises(ConfigurationError, match="use levels: 67108864, or auto"):
        many.configure_model()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"recovery": {}}, {"layout": "segments"}])
def test_it_learns(tmp_path, settings):
    """Other settings have the bits of a run in the clear, see above: one of them learns in every run of the tests."""
    module = vfedsec(bottom=partial(MLP, hidden=[6], output_activation=nn.Tanh), **settings)
    t = fit(tmp_path, module, max_epochs=12)
    assert t.test(module, datamodule=data(), verbose=False)[0]["test/accuracy"] > 0.8
