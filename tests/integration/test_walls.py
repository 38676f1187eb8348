"""Aggregators of the kinds that are to come fit the rooms: two legs through the peers, and linear forms."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from lightning_vfl.aggregators import Aggregator, PartySide, ServerSide, Sum
from lightning_vfl.aggregators.clear import EmbeddingWire, PlainServer
from lightning_vfl.aggregators.messages import gradients_in
from lightning_vfl.aggregators.parts import Traits
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.wire import Aggregate, Leg, LinearForms, Message
from tests.subjects import Blobs, split, trainer

SCALE = 2**20


class SharedSum(Aggregator):
    """Additive shares modulo 2^64: party m splits round(h · 2^20) into M shares, everyone uploads the sum of theirs."""

    def out_width(self, width, roster):
        return width

    def plain(self, h, roll, present=None):
        return torch.stack([h[m] for m in roll.counted]).sum(0)

    @property
    def wire(self):
        return SharedWire()


class SharedWire(EmbeddingWire):
    traits = Traits(visible=False, loses_quietly=True)

    def legs(self, rows, widths, basis, roster):
        parties = roster.parties
        elements = rows * torch.tensor(widths)
        work = torch.zeros(parties).double()
        return (
            Leg("shares", "peers", elements * parties, 64, work, "all"),
            Leg("sums", "server", elements, 64, work, "all"),
        )

    def needed(self, parties):
        return parties

    def protection(self, uploads):
        return None

    def party_side(self):
        return SharingParty()

    def server_side(self):
        return AddingServer()

    def clear(self, contribution, view, roll):
        whole = [torch.round(contribution.leaves[m].double() * SCALE).long() for m in roll.counted]
        return real_sum(torch.stack(whole).sum(0))


class SharingParty(PartySide):
    def upload(self, contribution, view):
        pieces = []
        for party, h in zip(view.parties, contribution.leaves, strict=True):
            generator = torch.Generator().manual_seed(view.names.round * 97 + party)
            shares = torch.randint(-(2**62), 2**62, (view.roster.parties, *h.shape), generator=generator)
            shares[-1] = torch.round(h.double() * SCALE).long() - shares[:-1].sum(0)
            pieces.append(shares)
        heard = yield Message("shares", "peers", view.parties, tuple(pieces))
        arrived = heard.received.pieces
        yield Message("sums", "server", heard.parties, tuple(sum(p[m] for p in arrived) for m in heard.parties))

    def carry(self, answer, contribution, view):
        return gradients_in(answer, contribution.leaves, view)


class AddingServer(ServerSide):
    def decode(self, messages, view):
        return real_sum(torch.stack(messages[0].pieces).sum(0))

    def answer(self, grad, aggregate, view):
        members = view.roll.included_parties
        return Message("gradients", "parties", (), (grad,) * len(members), receivers=members)


def real_sum(total):
    return Aggregate((total.double() / SCALE).float())


class LinearSum(Aggregator):
    """The server is sent weights' products, not embeddings: gradients are asked for the weights."""

    form = LinearForms

    def out_width(self, width, roster):
        return width

    def plain(self, h, roll, present=None):
        return torch.stack(h).sum(0)

    @property
    def wire(self):
        return LinearWire(self)


class LinearWire(EmbeddingWire):
    traits = Traits(visible=True, loses_quietly=True)

    def __init__(self, aggregator):
        self.aggregator = aggregator

    def legs(self, rows, widths, basis, roster):
        (leg,) = super().legs(rows, widths, basis, roster)
        return (replace(leg, flops=torch.tensor(basis).double()),)

    def protection(self, uploads):
        return None

    def party_side(self):
        return LinearParty()

    def server_side(self):
        return PlainServer(self.aggregator)

    def clear(self, contribution, view, roll):
        return self.server_side().aggregate(products(contribution), roll, None)


class LinearParty(PartySide):
    def upload(self, contribution, view):
        yield Message("embeddings", "server", view.parties, products(contribution))

    def carry(self, answer, contribution, view):
        return tuple(b.T @ grad for b, grad in zip(contribution.basis, answer.pieces, strict=True))


def products(contribution):
    return tuple(b @ w for b, w in zip(contribution.basis, contribution.leaves, strict=True))


def test_two_legs_learn_what_the_plain_sum_learns(tmp_path):
    weights, meters = [], []
    for aggregator in (Sum(), SharedSum()):
        module = split(aggregator, optimizer=partial(torch.optim.SGD, lr=0.05))
        trainer(tmp_path).fit(module, datamodule=Blobs(batch_size=10))
        weights.append(list(module.parameters()))
        meters.append(module.books.meter)
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert meters[1].kinds("peer") == ("shares",)
    assert meters[1].total("peer").tolist() == [2 * 54 * 5 * 3 * 8] * 3
    assert meters[1].total("up").tolist() == [2 * 54 * 5 * 8] * 3


def test_linear_forms_learn_what_embeddings_learn(tmp_path):
    weights = []
    for aggregator in (Sum(), LinearSum()):
        settings = {"bottom": partial(PolynomialNetwork, degree=2), "optimizer": partial(torch.optim.SGD, lr=0.01)}
        module = split(aggregator, **settings)
        trainer(tmp_path).fit(module, datamodule=Blobs(batch_size=10))
        weights.append(list(module.parameters()))
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_bottoms_that_are_not_linear_in_their_weights_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="use PolynomialNetwork"):
        trainer(tmp_path).fit(split(LinearSum()), datamodule=Blobs(batch_size=10))
