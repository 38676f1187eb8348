"""Sums over a batch in place of gradients: where they stand between a round and the parties' weights."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.downlinks import Downlink
from lightning_vfl.downlinks.batch_sums import SUMS, BatchSums, Tell
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.linear_form import LinearForm, linear_form
from lightning_vfl.protocols.checks import refuse_scaler, refuse_several_processes
from lightning_vfl.rounds.exchange import contribute
from lightning_vfl.types import RecordSource, RoundNames, VerticalBatch
from lightning_vfl.wire import Embeddings, Leg, Tap

if TYPE_CHECKING:
    from lightning_vfl.protocols.split import SplitVFL

_RECORDS = 65_536  # whose columns are looked at in one piece


class Summing:
    """How the parties of a training learn from sums over a batch. It has no network of its own.

    Args:
        downlink: with ``sum_sizes``.
        bottoms: the parties' networks.
        aggregator: joins the embeddings.
        widths: (M,) the widths of the embeddings.

    ``inputs`` (M,) are F of each party: the inputs of its bottom, with a bias as one more.

    Raises:
        ConfigurationError: for bottoms that are not linear, and for aggregators whose parties change the gradient.
    """

    def __init__(
        self,
        downlink: Downlink,
        bottoms: PartyBank,
        aggregator: Aggregator,
        widths: tuple[int, ...],
    ) -> None:
        self.name, self.downlink, self.widths = type(downlink).__name__, downlink, widths
        sizes = downlink.sum_sizes
        if sizes is None:
            raise TypeError(f"{self.name} sends gradients")
        self.sizes = sizes
        self.inputs = tuple(len(form.weight()) for form in _forms(bottoms, self.name))
        self._sums: BatchSums | None = None
        if not wire_of(aggregator).traits.hands_on:
            raise ConfigurationError(
                f"{self.name} adds up the gradients that the server computes, and a party of "
                f"{type(aggregator).__name__} changes its gradient itself; use Concat, Mean, Sum, Max, MaskedSum or "
                "LagrangeShared"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Without keys: a copy makes its own."""
        return {**self.__dict__, "_sums": None}

    def legs(self, rows: int) -> tuple[Leg, ...]:
        """The messages in place of gradients."""
        return self.sizes.legs(rows, self.widths, self.inputs)

    # ---- before training

    def begin(self, bottoms: PartyBank, records: RecordSource | None) -> None:
        """Make new keys, and refuse columns that are too large, and records that parties may hold few of."""
        self._sums = self.downlink.batch_sums()
        if records is not None:
            if records.present is not None and not self.sizes.solvable:
                raise ConfigurationError(
                    f"some records are held by some parties only: the sums of {self.name} tell every gradient where a "
                    "party holds few records of a batch; use records that all hold, or allow_solvable_batches: true"
                )
            for party, form in enumerate(_forms(bottoms, self.name)):
                self._refuse_large(party, form, records)

    def _refuse_large(self, party: int, form: LinearForm, records: RecordSource) -> None:
        for first in range(0, len(records), _RECORDS):
            ids = torch.arange(first, min(first + _RECORDS, len(records)))
            try:
                self.sizes.integers(form.expand(records.features_of(party, ids).float()), gradients=False)
            except ConfigurationError as error:
                raise ConfigurationError(f"party {party}: {error}") from None

    def refuse_solvable(self, batches: Iterable[int]) -> None:
        """Refuse batches whose gradients follow from their sums, and such whose sums are too large."""
        sizes, most = list(batches), max(self.inputs)
        self.sizes.slot(max(sizes))  # refuses sums that are too large
        smallest = min(sizes)
        if smallest <= most and not self.sizes.solvable:
            raise ConfigurationError(
                f"the smallest batch has {smallest} records, and the bottom of party {self.inputs.index(most)} has "
                f"{most} inputs with its bias: the sums of {self.name} then tell every gradient; use a batch_size "
                f"above {most} with drop_last: true, or allow_solvable_batches: true"
            )

    # ---- a round

    def contribution(
        self,
        bottoms: PartyBank,
        batch: VerticalBatch,
        included: Collection[int],
        names: RoundNames,
        learning: Collection[int],
        tap: Tap | None,
    ) -> Embeddings:
        """The embeddings, whose gradient reaches the weights as sums over the batch.

        Args:
            bottoms: the parties' networks.
            batch: of the round.
            included: the parties that are sent encrypted gradients.
            names: of the round.
            learning: those that hear them, and get sums.
            tap: hears the messages, and the sums that a party computes from them.
        """
        with torch.no_grad():
            embeddings = contribute(Embeddings, bottoms, batch.features, batch.present)
        leaves = []
        for party, (h, form) in enumerate(zip(embeddings.leaves, _forms(bottoms, self.name), strict=True)):
            basis = form.expand(batch.features[party]).detach()
            if batch.present is not None:
                basis = torch.where(batch.present[:, party, None], basis, basis.new_zeros(()))
            after = self._ask if party in learning else self._send
            ask = partial(after, basis, party, names, batch.record_ids, tap) if party in included else None
            leaves.append(_Summed.apply(h, form.weight(), ask))  # type: ignore[no-untyped-call]  # torch's
        return Embeddings(tuple(leaves))

    def _ask(self, basis: Tensor, party: int, names: RoundNames, ids: Tensor, tap: Tap | None, grad: Tensor) -> Tensor:
        """The gradient of a party's weights (F, D) of the mean loss, from that of its embeddings (B, D)."""
        records = len(grad)  # whose mean loss is differentiated
        found = self._exchange.run(grad.double() * records, basis, party, names, _told(tap, ids))
        if tap is not None:
            tap.joined(found, names, ids, party, SUMS)
        return found.to(grad) / records

    def _send(self, basis: Tensor, party: int, names: RoundNames, ids: Tensor, tap: Tap | None, grad: Tensor) -> Tensor:
        """Encrypt the gradient for a party that does not hear it; its weights have none."""
        self._exchange.send(grad.double() * len(grad), party, names, _told(tap, ids))
        return grad.new_zeros(basis.shape[1], grad.shape[1])

    @property
    def _exchange(self) -> BatchSums:
        if self._sums is None:
            raise RuntimeError("sums over a batch are asked for outside of a fit")
        return self._sums


def _told(tap: Tap | None, ids: Tensor) -> Tell | None:
    return None if tap is None else partial(tap.sent, ids=ids)


def refuse_unsummed(module: "SplitVFL") -> None:
    """Refuse trainings in which parties cannot learn from sums over a batch.

    Raises:
        ConfigurationError: for groups that share a bottom, several processes, and scaled gradients.
    """
    name = type(module.downlink).__name__
    if module.roster.shared:
        raise ConfigurationError(f"{name} does not join the updates of groups; leave out party groups, or the downlink")
    refuse_several_processes(
        module.joint, f"{name} encrypts the gradients of a whole batch in one process; train in one process"
    )
    refuse_scaler(module.trainer, "sums over a batch cannot be taken while gradients are scaled")


def _forms(bottoms: PartyBank, name: str) -> Iterator[LinearForm]:
    for party, network in enumerate(bottoms.parties):
        form = linear_form(network)
        if form is None:
            raise ConfigurationError(
                f"{name} sends sums over a batch, which only linear bottoms can use; the {type(network).__name__} of "
                f"party {party} is not linear: use model.bottom: Linear, or another downlink"
            )
        yield form


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, ask: Callable[[Tensor], Tensor] | None) -> Tensor:
        ctx.ask, ctx.like = ask, weight
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            return None, torch.zeros_like(ctx.like) if ctx.ask is None else ctx.ask(grads[0]), None
