"""Compressors against plain numbers: errors, bytes, residues, and trainings that are computed again by plain torch."""

from copy import deepcopy
from functools import partial
from math import ceil

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch.nn.functional import cross_entropy

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl import compressors as subject
from lightning_vfl.aggregators import Concat, MaskedSum, Max, Mean, Sum
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.compressors import Compressor, Quantise, Sender, TopK, bytes_of_record, packed, unpacked
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.missing import Stale, Zeros
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.subsets import TaskSampling
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.types import RoundNames, Stage
from tests.further import further
from tests.subjects import Blobs, same, trainer

SGD = partial(torch.optim.SGD, lr=0.1)
SMALL = partial(MLP, hidden=(6,))


def numbers(rows=7, width=10):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))


def trained(tmp_path, protocol=SplitVFL, aggregator=Mean, callbacks=(), epochs=2, **settings):
    module = protocol(aggregator(), bottom=SMALL, width=5, seed=0, **settings)
    t = trainer(tmp_path, max_epochs=epochs, callbacks=list(callbacks))
    t.fit(module, datamodule=Blobs(batch_size=10))
    return module


# ---- the operators


@pytest.mark.parametrize(("made", "k"), [(TopK(3), 3), (TopK(share=0.5), 5), (TopK(share=0.01), 1)])
def test_the_largest_numbers_are_kept_and_the_others_are_zero(made, k):
    h = numbers()
    decoded = made.decode(made.encode(h), 10).numpy()
    for row, kept in zip(h.numpy(), decoded, strict=True):
        largest = np.argsort(-np.abs(row))[:k]
        assert np.array_equal(kept[largest], row[largest])
        assert np.count_nonzero(kept) == k
        assert ((row - kept) ** 2).sum() <= (1 - k / 10) * (row**2).sum()


@pytest.mark.parametrize("bits", [1, further(2), further(4), 8])
def test_quantised_numbers_are_near_and_right_on_average(bits):
    h, made = numbers(), Quantise(bits)
    step = (h.amax(1, keepdim=True) - h.amin(1, keepdim=True)) / (2**bits - 1)
    draws = torch.stack([made.decode(made.encode(h), 10) for _ in range(1000)])
    assert ((draws - h).abs() <= step * (1 + 1e-5)).all()
    levels = (draws - h.amin(1, keepdim=True)) / step
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    deviation = (draws.mean(0) - h) / step  # the variance of a draw is at most a quarter of a squared step
    assert deviation.abs().max() < 5 * 0.5 / 1000**0.5
    assert torch.equal(made.decode(made.encode(torch.full((2, 3), 7.0)), 3), torch.full((2, 3), 7.0))


@pytest.mark.parametrize(
    ("made", "width", "size"),
    [
        (TopK(3), 10, 3 * 4 + 3),
        (TopK(3), 300, 3 * 4 + 3 * 2),
        (TopK(3), 40_000, 3 * 4 + 3 * 4),
        *((Quantise(bits), 10, ceil(10 * bits / 8) + 8) for bits in (1, 2, 4, 8)),
    ],
)
def test_a_message_has_the_bytes_of_its_width(made, width, size):
    h = numbers(7, width)
    message = packed(made, h)
    assert (message.dtype, tuple(message.shape)) == (torch.uint8, (7, size))
    assert bytes_of_record(made, width) == size
    torch.manual_seed(1)
    expected = made.decode(made.encode(h), width)
    torch.manual_seed(1)
    assert torch.equal(unpacked(made, packed(made, h), width, "it"), expected)


def test_the_form_of_a_message_draws_nothing():
    state = torch.get_rng_state()
    bytes_of_record(Quantise(4), 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_largest_numbers_of_a_record_do_not_depend_on_other_records():
    h = numbers()
    assert torch.equal(packed(TopK(3), h)[2:3], packed(TopK(3), h[2:3]))


@pytest.mark.parametrize(
    "piece", [torch.zeros(7, 15), torch.zeros(7, 14, dtype=torch.uint8), torch.full((7, 15), 200, dtype=torch.uint8)]
)
def test_what_is_no_message_is_refused(piece):
    with pytest.raises(MalformedMessage, match=r"^'embeddings' of party 3 "):
        unpacked(TopK(3), piece, 10, "'embeddings' of party 3")


# ---- residues


def test_what_is_sent_and_the_residue_are_what_was_put_in():
    """Exactly: the numbers are whole, so that their sums are too."""
    sender, ids = Sender(TopK(2, feedback=True), "it"), torch.tensor([4, 1, 3])
    sender.prepare(6, (5,), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    given, sent = torch.zeros(3, 5), torch.zeros(3, 5)
    for number in range(20):
        h = torch.randint(-50, 50, (3, 5), generator=generator).float()
        message = sender.pack(0, h, ids, RoundNames(0, Stage.FIT, number))
        if number % 3 == 2:  # it came too late
            sender.settle(())
            continue
        sender.settle((0,))
        given += h
        sent += unpacked(sender.compressor, message, 5, "it")
        (residue,) = sender.state()["residues"].values()
        assert torch.equal(sent + residue[ids], given)
        assert torch.equal(residue[[0, 2, 5]], torch.zeros(3, 5))


class Again(Callback):
    """Computes every round again by plain torch; what is lost on the way is kept by record, if it is fed back."""

    def __init__(self, k, feedback):
        self.k, self.feedback, self.rounds = k, feedback, 0
        self.up, self.down = torch.zeros(3, 90, 5), torch.zeros(3, 90, 5)

    def kept(self, residues, ids, x):
        whole = x + residues[ids]
        smallest = whole.abs().argsort(1)[:, : 5 - self.k]
        sent = whole.scatter(1, smallest, 0.0)
        if self.feedback:
            residues[ids] = whole - sent
        return sent

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = deepcopy([*module.bottoms.parties]), deepcopy(module.top)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        bottoms, top = self.before
        h = [bottom(x) for bottom, x in zip(bottoms, batch.features, strict=True)]
        arrived = [self.kept(self.up[m], batch.record_ids, x.detach()).requires_grad_() for m, x in enumerate(h)]
        cross_entropy(top(sum(arrived)), batch.labels).backward()
        for m, (x, there) in enumerate(zip(h, arrived, strict=True)):
            x.backward(self.kept(self.down[m], batch.record_ids, there.grad))
        for mine, theirs in zip([*module.bottoms.parties, module.top], [*bottoms, top], strict=True):
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(a, b - 0.1 * b.grad)
        self.rounds += 1


@pytest.mark.parametrize("feedback", [False, True])
def test_a_training_is_that_of_plain_torch(tmp_path, feedback):
    again, made = Again(2, feedback), TopK(2, feedback=feedback)
    settings = {"compressor": made, "gradient_compressor": made, "optimizer": SGD}
    module = trained(tmp_path, aggregator=Sum, callbacks=[again], **settings)
    assert again.rounds == 12
    assert module.books.meter.total("up").tolist() == [2 * 54 * (2 * 4 + 2)] * 3
    assert module.books.meter.total("down").tolist() == [2 * 54 * (2 * 4 + 2)] * 3


# ---- with other parts


@pytest.mark.parametrize(
    "settings",
    [
        *({"aggregator": aggregator, "missing": Stale()} for aggregator in (Concat, Sum, Mean, Max)),
        {"missing": Zeros()},
        {"protocol": AsyncVFL},
    ],
    ids=["concat", "sum", "mean", "max", "zeros", "asynchronous"],
)
def test_every_announced_byte_is_sent_and_no_other(tmp_path, monkeypatch, settings):
    sent, pack = {"compressor": 0, "gradient compressor": 0}, Sender.pack

    def counting(self, party, h, ids, names):
        message = pack(self, party, h, ids, names)
        if h.any():  # of an absent party, a simulation has zeros
            sent[self.what] += message.numel() * message.element_size()
        return message

    monkeypatch.setattr(subject.Sender, "pack", counting)
    made = {"compressor": Quantise(4, feedback=True), "gradient_compressor": TopK(2, feedback=True)}
    module = trained(tmp_path, callbacks=[FaultInjector(PartyDropout(0.9, 0.4))], **made, **settings)
    assert int(module.books.meter.total("up").sum()) == sent["compressor"]
    assert int(module.books.meter.total("down").sum()) == sent["gradient compressor"]
    assert sent["compressor"] < 2 * 3 * 54 * (3 + 8)  # some parties were absent


def test_the_latest_embeddings_are_those_that_the_server_has_decoded(tmp_path):
    module = trained(tmp_path, missing=Stale(), compressor=TopK(2))
    assert set((module.missing.memory.table.rows != 0).view(54, 3, 5).sum(2).flatten().tolist()) == {2}


@pytest.mark.parametrize("settings", [{"missing": Stale()}, {"protocol": AsyncVFL}], ids=["stale", "asynchronous"])
def test_a_resumed_training_has_the_same_bits(tmp_path, settings):
    def run(folder, epochs, path=None):
        made = {"compressor": TopK(2, feedback=True), "gradient_compressor": Quantise(2, feedback=True)}
        protocol = settings.get("protocol", SplitVFL)
        more = {name: deepcopy(value) for name, value in settings.items() if name != "protocol"}
        module = protocol(Mean(), bottom=SMALL, width=5, seed=0, **made, **more)
        faults = FaultInjector(PartyDropout(0.5, 0.4))
        t = trainer(tmp_path / folder, max_epochs=epochs, callbacks=[faults])
        t.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=path)
        t.save_checkpoint(tmp_path / f"{folder}.ckpt")
        return module

    whole = run("whole", 4)
    run("half", 2)
    resumed = run("resumed", 4, tmp_path / "half.ckpt")
    assert same(whole.state_dict(), resumed.state_dict())
    assert same(whole.memory.state(), resumed.memory.state())
    assert any(residue.any() for residue in whole.sides.party.sender.state()["residues"].values())
    checkpoint = torch.load(tmp_path / "half.ckpt", weights_only=True)
    books = next(value for value in checkpoint.values() if isinstance(value, dict) and "memory" in value)
    del books["memory"]["residues of gradients"]
    torch.save(checkpoint, tmp_path / "half.ckpt")
    with pytest.raises(ConfigurationError, match="no residues of gradients; resume it with the compressors"):
        run("resumed", 4, tmp_path / "half.ckpt")


# ---- refusals


class Growing(Compressor):
    """Sends the numbers that are not zero."""

    def encode(self, h):
        return (h[:, h.any(0)],)

    def decode(self, tensors, width):
        return tensors[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compressor": TopK(6)}, "k of TopK must be a whole number from 1 to 5; got 6"),
        ({"gradient_compressor": TopK(6)}, "k of TopK must be a whole number from 1 to 5; got 6"),
        ({"compressor": TopK(2), "aggregator": MaskedSum}, "MaskedSum sends messages of its own form"),
        ({"compressor": TopK(2), "evaluate": "protocol"}, "use evaluate: plain"),
        ({"compressor": TopK(2), "subsets": TaskSampling()}, "compressors send one gradient"),
        ({"compressor": Growing()}, "rows depend on the width alone"),
        ({"compressor": 8}, "compressor must be"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        trained(tmp_path, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (TopK, "TopK needs k or share"),
        (partial(TopK, 2, 0.5), "TopK needs k or share"),
        (partial(TopK, 0), "k must be a whole number"),
        (partial(TopK, share=1.5), "share must be a number above 0 and at most 1"),
        (partial(Quantise, 3), "bits must be 1, 2, 4 or 8"),
    ],
)
def test_settings_are_checked_where_they_are_given(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
