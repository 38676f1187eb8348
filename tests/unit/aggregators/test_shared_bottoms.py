"""Model updates of a group, in the clear and masked: each party tells its own, and the server joins them."""

from dataclasses import replace

import pytest
import torch

from lightning_vfl.aggregators import MaskedSum, Sum
from lightning_vfl.aggregators.clear import shared_bottoms_of
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.rounds.exchange import open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import PartyView, ServerView

ROSTER = Roster(((0,), (1, 2, 3)), active=0)
NAMES, ROWS = RoundNames(0, Stage.FIT, 4), Rows(torch.arange(2), 0, 2)
UPDATES = {m: torch.randn(11, generator=torch.Generator().manual_seed(m)) for m in (1, 2, 3)}
MAKERS = {
    "clear": Sum,
    "masked": lambda: MaskedSum(insecure_seeded_secrets=True),
    "equivalent": lambda: MaskedSum(execution="equivalent"),
}
every_kind = pytest.mark.parametrize("kind", MAKERS)


def setting(kind):
    """The part, the view of all parties of a round that has begun, and the server's."""
    aggregator = MAKERS[kind]().among(ROSTER)
    view = PartyView(NAMES, ROSTER, (0, 1, 2, 3), torch.ones(4).bool(), ROWS)
    if aggregator.opening is not None:
        view = replace(view, memory=open_round(aggregator.opening, aggregator.opening.empty_memory(view), view))
    server = ServerView(NAMES, ROSTER, ROWS, Roll.everyone(4), (3,) * 4)
    return shared_bottoms_of(aggregator), view, server


@every_kind
def test_the_server_joins_the_sum(kind):
    part, view, server = setting(kind)
    message = part.tell(UPDATES, view)
    assert (message.kind, message.to, message.senders) == ("model updates", "server", (1, 2, 3))
    assert {8 * piece.element_size() for piece in message.pieces} == {part.bits}
    error = 0.0 if kind == "clear" else 3 * 8 / 2**27
    assert (part.join(message, server) - sum(UPDATES.values())).abs().max() <= error + 1e-6


@every_kind
def test_telling_together_is_telling_alone(kind):
    """Bit for bit: a party needs nobody else's update, and the server puts the messages together."""
    part, view, server = setting(kind)
    together = part.tell(UPDATES, view)
    alone_part, alone, _ = setting(kind)
    pieces = [alone_part.tell({m: own}, alone).pieces[0] for m, own in UPDATES.items()]
    assert all(torch.equal(a, b) for a, b in zip(together.pieces, pieces, strict=True))
    assert torch.equal(part.join(together, server), part.join(replace(together, pieces=tuple(pieces)), server))


def test_a_masked_update_alone_is_not_the_quantised_one():
    masked, equivalent = (part.tell(UPDATES, view) for part, view, _ in map(setting, ("masked", "equivalent")))
    for a, b in zip(masked.pieces, equivalent.pieces, strict=True):
        assert not (a.to(torch.int64) == b.to(torch.int64)).any()  # by chance with probability 33 / 2^32


@every_kind
def test_updates_that_do_not_fit_are_refused_and_the_party_named(kind):
    part, view, server = setting(kind)
    message = part.tell(UPDATES, view)
    short = (*message.pieces[:2], message.pieces[2][:-1])
    for wrong, said in (
        ({"senders": (1, 2), "pieces": message.pieces[:2]}, "of party 3 is missing"),
        ({"senders": (1, 2, 0)}, "party 0 sent"),
        ({"senders": (1, 2, 2)}, "party 2 sent .* twice"),
        ({"senders": (), "pieces": ()}, r"came from senders \[\]; it must come from the parties of one group"),
        ({"pieces": short}, "of party 3 has shape"),
        ({"pieces": (*message.pieces[:2], message.pieces[2].to(torch.int64))}, "of party 3 is torch.int64"),
        ({"kind": "embeddings"}, "where 'model updates' to server was expected"),
        ({"round": NAMES._replace(round=3)}, "of round 3 of fit"),
    ):
        with pytest.raises(MalformedMessage, match=said):
            part.join(replace(message, **wrong), server)
