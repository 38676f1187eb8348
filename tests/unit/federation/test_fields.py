"""Every field that one process sends and another uses: what the table does not allow is refused with its sender."""

import re
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_vfl.aggregators import Mean
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError, MalformedFrame, MalformedMessage
from lightning_vfl.federation.agreed import Agreed, Limits
from lightning_vfl.federation.attendance import Form
from lightning_vfl.federation.fields import ANSWERS, EVERY, LETTER, REQUESTS
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import read
from lightning_vfl.federation.link import Link
from lightning_vfl.federation.turns import plan_of
from lightning_vfl.networks.halved_top import GRADIENTS
from lightning_vfl.types import Roster, mask_of
from tests.examples import examples
from tests.unit.aggregators.test_contract import FACTORIES

NAMES = ("bank", "telco", "shop")
MESSAGE = {
    "kind": "embeddings",
    "to": "server",
    "senders": [1],
    "pieces": 1,
    "receivers": None,
    "round": ["fit", 3],
    "relayed": False,
}
PLAN = {
    **{name: [0, 1] for name in ("called", "included", "responders", "filled")},
    "sent": [[0], [1]],
    "seconds": 0.5,
    "skipped": False,
}
STANDING = {"at": [3, 2, 0], "called": [0], "enough": True, "counts": {"fit": 3}, "keyed": {"fit": [0]}}
GOOD: dict[str, dict[str, Any]] = {
    "hello": {"public": ["0" * 64, ""], "rounds": 0, "recipe": {"data.batch_size": "64"}},
    "ids": {"count": 3, "sha256": "0" * 64},
    "order": {"splits": ["train"], "sizes": [3]},
    "shape": {"shape": [7], "num_classes": 2, "class_names": [0, 1]},
    "psi": {"step": "give", "to": 2, "of": "1", "what": "list 1 hop 1", "why": "no reason", "process": "0" * 16},
    "propose": {"proposal": {"scale": 3}},
    "metrics": {"metrics": {"val/loss": 0.5}, "batches": 3},
    "listen": {"part": "upload"},
    "tell": {"part": "upload", "message": MESSAGE, "labels": False, "sealed": [0], "renew": False, "request": 1},
}
ANSWER = {
    "outcome": "go",
    "standing": {**STANDING, "joins": 0, "retries": 0},
    "plan": PLAN,
    "metrics": {"val/loss": 0.5},
    "heard": {"included": [0], "answering": [0]},
    "message": MESSAGE,
    "shapes": [[7], [7], [7]],
}
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


CUT = {**GOOD["tell"], "part": "cut", "message": {**MESSAGE, "kind": GRADIENTS}}


def request_of(say):
    told = {"say": "tell", **CUT} if say == "cut" else {"say": say, **GOOD.get(say, {})}
    return {"call": 0, "at": [3, 2, 0], "turn": 0, **told}


def hub_of(labels=1):
    return Hub(3, Agreed(NAMES, labels))


def module_of(aggregator=None, rows=4):
    return SimpleNamespace(
        aggregator=aggregator or Mean(),
        embedding_widths=(2, 2, 2),
        roster=Roster(3),
        top=nn.Linear(2, 2),
        trainer=SimpleNamespace(precision="32-true"),
        objective=SimpleNamespace(targets=1),
        hparams={"num_classes": 2},
    )


def changed(draw, header):
    """A header in which one field, at any depth, is replaced, left out or new."""
    header = {**header}
    name = draw(st.sampled_from([*header, "unknown"]))
    inner = header.get(name)
    if isinstance(inner, dict) and inner and draw(st.booleans()):
        header[name] = changed(draw, inner)
    elif draw(st.booleans()) and name in header:
        del header[name]
    else:
        header[name] = draw(ANYTHING)
    return header


@examples(200)
@given(st.data())
def test_a_request_with_any_other_field_is_refused_with_its_sender_or_harmless(data):
    say = data.draw(st.sampled_from([*REQUESTS, "cut"]))
    try:
        content = pack(changed(data.draw, request_of(say)))
    except MalformedMessage:  # it cannot even be sent
        return
    hub, party = hub_of(), data.draw(st.integers(0, 2))
    try:
        request = hub.read(party, [content])
    except MalformedFrame as error:
        line = str(error)
    else:
        line = None
    if line is not None:
        assert line.startswith(f"party {NAMES[party]} has sent")
        assert line.isprintable()
        return
    assert request.key >= Key(At(-1, 0, -1), -1)
    message = request.frame.header.get("message")
    if message is not None:
        kind = GRADIENTS if say == "cut" else "embeddings"
        leg = SimpleNamespace(kind=kind, to="server", elements=torch.full((3,), 8))
        assert Form(module_of(), hub.agreed, 4, clear=True).misfit(request, leg) is not None  # it has no tensor


@examples(200)
@given(st.data())
def test_an_answer_with_any_other_field_ends_a_party_with_the_name_of_the_server_or_is_harmless(data):
    try:
        content = pack(changed(data.draw, ANSWER))
    except MalformedMessage:
        return
    link = Link(SimpleNamespace(exchange=lambda frame, read: read([content])), Agreed(NAMES))
    try:
        frame = link.ask(Key(At(3, 2, 0), 0), "ready")
    except ConfigurationError as error:
        line = str(error)
    else:
        line = None
    if line is not None:
        assert line.isprintable()
        return
    if link.told is not None:
        plan_of(link.told, 3)
    mask_of(link.standing.called, 3)
    if frame is not None and "message" in frame.header:
        with suppress(MalformedMessage):
            read(frame.header["message"], iter(frame.tensors), 0, link.agreed)


def test_the_requests_and_the_answer_of_these_tests_are_allowed_and_have_every_field():
    for say, table in REQUESTS.items():
        assert hub_of().read(1, [pack(request_of(say))]).say == say
        assert {*GOOD.get(say, {})} <= {*table.rules}
    assert hub_of().read(1, [pack(request_of("cut"))]).say == "tell"
    assert {*ANSWER} <= {*ANSWERS.rules}
    assert {*MESSAGE} <= {*LETTER.rules}
    assert {*EVERY} == {"call", "at", "turn", "say"}


@pytest.mark.parametrize("labels", [None, 1])
@pytest.mark.parametrize(
    ("say", "more"),
    [
        ("tell", {"labels": True}),
        ("order", {}),
        ("shape", {"shape": [7], "num_classes": 2}),
        ("cut", {}),
        ("metrics", {}),
    ],
)
def test_what_belongs_to_the_labels_comes_from_their_holder_alone(labels, say, more):
    header = {**request_of(say), **more}
    for party in range(3):
        if party == labels:
            assert hub_of(labels).read(party, [pack(header)]).party == party
            continue
        with pytest.raises(MalformedFrame, match=f"party {NAMES[party]} has sent '.*', which belongs to the labels"):
            hub_of(labels).read(party, [pack(header)])


def upload(embedding, labels=None):
    header = {"part": "upload", "message": {**MESSAGE, "round": None}, "labels": labels is not None}
    tensors = [embedding] if labels is None else [embedding, labels]
    return Request(1, 0, Key(At(3, 2, 0), 0), "tell", unpack(pack(header, tensors)), 0.0)


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (torch.zeros(3, dtype=torch.int64), r"labels of shape \(3,\), \(4,\) was planned"),
        (torch.tensor([0, 1, 2, 0]), "labels that are no classes from 0 to 1"),
        (torch.tensor([0.0, torch.nan, 0.0, 0.0]), "NaN or infinite numbers"),
        (torch.zeros(4, dtype=torch.int64), None),
    ],
)
def test_labels_have_the_form_of_the_batch(labels, line):
    leg = SimpleNamespace(kind="embeddings", to="server", elements=torch.full((3,), 8), bits=32)
    module = module_of()
    module.roster = Roster(3, active=1)
    form = Form(module, Agreed(NAMES, 1), 4, clear=True, labelled="embeddings")
    wrong = form.misfit(upload(torch.zeros(4, 2), labels), leg)
    assert wrong is None if line is None else re.search(line, wrong)


VISIBLE = [name for name, make in FACTORIES.items() if wire_of(make()).traits.visible]


def test_the_server_sees_the_embeddings_of_these():
    assert set(VISIBLE) >= {"Concat", "Sum", "Mean", "Max", "LocalGaussian"}


@pytest.mark.parametrize("name", VISIBLE)
@pytest.mark.parametrize("value", [1e30, -1e30, torch.inf, torch.nan])
def test_an_absurd_number_in_the_clear_is_refused(name, value):
    aggregator = FACTORIES[name]()
    (leg,) = wire_of(aggregator).legs(4, (2, 2, 2), (), Roster(3))
    form = Form(module_of(aggregator), Agreed(NAMES), 4, clear=True)
    good = torch.ones(4, 2)
    assert form.misfit(upload(good), leg) is None
    good[2, 1] = value
    refusal = form.misfit(upload(good), leg)
    assert "limits.value" in refusal or "NaN" in refusal


def test_a_small_frame_of_packed_bits_takes_no_more_memory_than_the_charter_allows():
    content = pack({"say": "x"}, [torch.zeros(2**22, dtype=torch.int64)], [1])  # 0.5 MiB that grows to 32 MiB
    hub = Hub(3, Agreed(NAMES, limits=Limits(frame=1)))
    tracemalloc.start()
    with pytest.raises(MalformedFrame, match="would take 33554432 bytes; at most 1048576 are allowed here"):
        hub.call(1, content)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


def test_a_declared_shape_above_the_charter_is_refused():
    with pytest.raises(MalformedFrame, match=r"party telco has sent 'shape' .* limits.columns"):
        hub_of().read(1, [pack({**request_of("shape"), "shape": [10**8]})])


def test_control_characters_of_others_are_not_printed():
    content = pack({"outcome": "over", "why": "it is\x1b[2J over\nnow"})
    with pytest.raises(ConfigurationError) as ended:
        Link(SimpleNamespace(exchange=lambda frame, read: read([content]))).ask(Key(At(0, 2, 0), 0), "ready")
    assert str(ended.value) == "it is?[2J over now"
