"""What the server of asynchronous events serves, and what it refuses; without processes."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightning_vfl.aggregators import Mean
from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.compressors import TopK, packed
from lightning_vfl.errors import MalformedFrame
from lightning_vfl.federation.events import EventsAtServer
from lightning_vfl.federation.frames import Frame, pack, unpack
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.types import Roster

GOOD = torch.zeros(6, 4)
WIRE = InTheClear(Mean())


def asked(embedding, request=0):
    letter = {"kind": "embeddings", "to": "server", "senders": [1], "pieces": 1, "receivers": None}
    header = {"part": "upload", "request": request, "message": {**letter, "round": None, "relayed": False}}
    return Request(1, 0, Key(At(0, 2, 0), 0), "tell", Frame(header, (embedding,)), 0.0)


def fits(request, wire=WIRE):
    """Whether the server serves an upload, and what it tells the sender."""
    hub = Hub(2)
    module = SimpleNamespace(
        wire=wire,
        sides=Sides.of(wire),
        embedding_widths=(4, 4),
        roster=Roster(2),
        top=nn.Linear(4, 1),
        trainer=SimpleNamespace(precision="32-true"),
        books=SimpleNamespace(training_rounds=0),
    )
    planned = SimpleNamespace(rows=lambda party: 6)
    found = EventsAtServer(hub, injected=False)._fits(module, planned, request)
    posted = [unpack(content).header for content in hub._desks[1].posted.values()]
    return found, [one["why"] for one in posted]


def test_an_upload_of_the_planned_form_is_served():
    assert fits(asked(GOOD)) == (True, [])


def test_a_compressed_upload_that_waits_is_decoded_once(monkeypatch):
    decode, decoded = TopK.decode, []

    def counting(self, tensors, width):
        decoded.append(decode(self, tensors, width))
        return decoded[-1]

    monkeypatch.setattr(TopK, "decode", counting)
    compressor = TopK(2)
    request, wire = asked(packed(compressor, GOOD + 1)), InTheClear(Mean(), compressor)
    for _ in range(3):  # it is looked at whenever another upload comes
        assert fits(request, wire) == (True, [])
    assert len(decoded) == 1
    assert torch.equal(request.decoded, decoded[0])


@pytest.mark.parametrize(
    ("embedding", "line"),
    [
        (torch.zeros(24), "of shape (24,), (6, 4) was planned"),
        (torch.zeros(4, 6), "of shape (4, 6), (6, 4) was planned"),
        (torch.zeros(6, 4, dtype=torch.float64), "of torch.float64, torch.float32 was planned"),
        (torch.zeros(6, 4, dtype=torch.float16), "of torch.float16, torch.float32 was planned"),
        (torch.full((6, 4), torch.nan), "NaN or infinite numbers"),
        (torch.zeros(6, 4, dtype=torch.int64), "real numbers were planned"),
    ],
)
def test_an_upload_that_would_stop_the_server_or_spoil_its_table_is_refused(embedding, line):
    with pytest.warns(UserWarning, match="refused: party 1 sent"):
        served, (why,) = fits(asked(embedding))
    assert not served
    assert line in why


@pytest.mark.parametrize("request_", [-1, 2**31, True, "0", 0.5, None])
def test_the_number_of_an_event_is_a_whole_number(request_):
    header = {**asked(GOOD, request_).frame.header, "call": 0, "at": [0, 2, 0], "turn": 0, "say": "tell"}
    with pytest.raises(MalformedFrame, match=r"party 1 has sent 'request' .* must be a whole number from 0"):
        Hub(2).read(1, [pack(header, [GOOD])])


def test_an_upload_of_no_event_is_refused():
    unnumbered = asked(GOOD)
    del unnumbered.frame.header["request"]
    with pytest.warns(UserWarning, match="refused: party 1 sent no number of its event"):
        assert not fits(unnumbered)[0]
