"""The server trains on the labels of their agreed holder alone: a round of the real ``Collector`` over a real desk."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from time import monotonic
from types import SimpleNamespace

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.compressors import TopK, packed
from lightning_vfl.errors import MalformedFrame
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.federation.attendance import Form, Seen
from lightning_vfl.federation.calls import Calls
from lightning_vfl.federation.collecting import Collector
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.hub import At, Hub, Key
from lightning_vfl.federation.letters import written
from lightning_vfl.federation.turns import turns_of
from lightning_vfl.missing import Exclude
from lightning_vfl.rounds import exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage, VerticalBatch
from lightning_vfl.wire import Message, ServerView

NAMES, HOLDER = ("bank", "telco", "shop"), 1
KEY, ROWS, WIDTH = Key(At(0, 2, 0), 0), 6, 4
LABELS = torch.tensor([1, 0, 1, 1, 0, 1])


def upload(party, labels, compressor=None):
    embeddings = torch.ones(ROWS, WIDTH)
    piece = embeddings if compressor is None else packed(compressor, embeddings)
    letter, tensors, _ = written(Message("embeddings", "server", (party,), (piece,)))
    header = {"call": 0, "at": list(KEY.at), "turn": KEY.turn, "say": "tell", "part": "upload", "message": letter}
    if labels is None:
        return pack(header, tensors)
    return pack({**header, "labels": True}, [*tensors, labels])


class Left(Seen):
    """A party hangs up when its upload has come and the server has not read it."""

    def include(self, arrived):
        goes_on = super().include(arrived)
        self.hub.left(0)
        return goes_on


def collected(sent, attend=Seen, compressor=None):
    """What the server has after a round in which parties send labels, and what a party's call ends with."""
    shapes = [(3,)] * 3
    module = SplitVFL(Mean(), width=WIDTH, active=HOLDER, party_shapes=shapes, num_classes=2, compressor=compressor)
    module.configure_model()
    module._trainer = SimpleNamespace(precision="32-true", accelerator=None)
    hub, nobody, ended = Hub(3, Agreed(NAMES, HOLDER)), torch.zeros(3, dtype=torch.bool), {}
    for party in range(3):
        hub.joined(party)
    hub.call_upon(range(3))
    batch = VerticalBatch(tuple(torch.zeros(ROWS, 3) for _ in range(3)), None, torch.arange(ROWS))
    form = Form(module, hub.agreed, ROWS, clear=True, labelled="embeddings")
    roll = Roll(~nobody, nobody, nobody, nobody)
    attendance = attend(hub, KEY.at, form, roll, 1, Exclude(), module.waiting)

    def call(party):
        try:
            ended[party] = unpack(hub.call(party, upload(party, sent.get(party), compressor))).header
        except MalformedFrame as error:  # the process of the party ends with this line, and its connection with it
            ended[party] = str(error)
            hub.left(party)

    with ThreadPoolExecutor(4) as threads:
        legs = turns_of(module, batch)
        uploads = threads.submit(Collector(Calls(hub, False, 1.0)).collect, attendance, legs, opens=True)
        for party in range(3):
            threads.submit(call, party)
        try:
            return uploads.result(10), ended
        finally:
            hub.end({"outcome": "over"})


def called_again(**second):
    """A party calls again when its upload has come and the server has not read it."""

    class CalledAgain(Seen):
        def include(self, arrived):
            goes_on = super().include(arrived)
            about = {"call": 1, "at": list(KEY.at), "turn": KEY.turn, **second}
            tensors = about.pop("tensors", [])
            Thread(target=suppressed, args=(self.hub, pack(about, tensors)), daemon=True).start()
            self.hub.wait(lambda: self.hub.waiting(0).call == 1 or None, lambda: monotonic() + 5)
            assert self.hub.waiting(0).call == 1
            return goes_on

    return CalledAgain


def suppressed(hub, content):
    with suppress(ValueError):
        hub.call(0, content)


LETTER = written(Message("embeddings", "server", (0,), (torch.ones(ROWS, WIDTH),)))[0]
SECOND = {
    "hangs up": Left,
    "asks for something else": called_again(say="ready"),
    "sends another shape": called_again(
        say="tell", part="upload", message=LETTER, tensors=[torch.ones(ROWS + 1, WIDTH)]
    ),
    "sends NaN": called_again(
        say="tell", part="upload", message=LETTER, tensors=[torch.full((ROWS, WIDTH), torch.nan)]
    ),
    "sends no tensor": called_again(say="tell", part="upload", message=LETTER),
    "calls from another turn": called_again(say="ready", turn=1),
}


@pytest.mark.parametrize("attend", SECOND.values(), ids=SECOND)
def test_whatever_a_party_does_after_its_upload_was_looked_at_that_upload_is_read(attend):
    uploads, _ = collected({HOLDER: LABELS}, attend)
    (message,) = uploads.messages
    assert message.senders == (0, 1, 2)
    assert all(torch.equal(piece, torch.ones(ROWS, WIDTH)) for piece in message.pieces)


@pytest.mark.parametrize("attend", [Seen, Left])
def test_a_compressed_upload_is_decoded_once(attend, monkeypatch):
    decode, decoded = TopK.decode, []

    def counting(self, tensors, width):
        decoded.append(decode(self, tensors, width))
        return decoded[-1]

    monkeypatch.setattr(TopK, "decode", counting)
    uploads, _ = collected({HOLDER: LABELS}, attend, TopK(2))
    (message,) = uploads.messages
    assert len(decoded) == 3
    assert all(torch.equal(piece.sum(1), torch.full((ROWS,), 2.0)) for piece in message.pieces)
    view = ServerView(
        RoundNames(0, Stage.FIT, 0), Roster(3), Rows(torch.arange(ROWS), 0, ROWS), uploads.roll, (WIDTH,) * 3
    )
    side = InTheClear(Mean(), TopK(2)).server_side()
    aggregate = exchange.decoded(side, Exclude(), [message], view)
    assert torch.equal(aggregate.value, torch.stack(message.pieces).mean(0))
    assert len(decoded) == 3


@pytest.mark.parametrize("other", [0, 2])
@pytest.mark.parametrize("labels", [torch.zeros_like(LABELS), torch.zeros(2 * ROWS, dtype=torch.int64)])
def test_labels_of_a_party_that_has_none_are_refused_by_name_and_not_used(other, labels):
    uploads, ended = collected({other: labels, HOLDER: LABELS})
    assert torch.equal(uploads.labels, LABELS)
    assert uploads.roll.included.tolist() == [party != other for party in range(3)]
    line = f"party {NAMES[other]} has sent 'labels', which belongs to the labels, and party telco has them"
    assert ended[other].startswith(line)


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (LABELS[:-1], r"labels of shape \(5,\), \(6,\) was planned"),
        (torch.cat([LABELS, LABELS]), r"labels of shape \(12,\), \(6,\) was planned"),
        (LABELS + 1, "labels that are no classes from 0 to 1"),
        (None, "'embeddings' without labels"),
    ],
)
def test_labels_of_their_holder_that_do_not_fit_the_batch_give_the_round_up_with_its_name(labels, line):
    with pytest.warns(UserWarning, match=f"refused: party telco sent {line}"):
        uploads, ended = collected({HOLDER: labels})
    assert ended[HOLDER]["outcome"] == "refused"
    assert "party telco sent" in ended[HOLDER]["why"]
    assert uploads.messages == []
    assert uploads.labels is None
