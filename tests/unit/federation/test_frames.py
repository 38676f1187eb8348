"""Frames: what is packed comes back bit for bit, and bytes that pack did not write are refused in one line."""

import json
import random
import struct
import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import MalformedFrame, MalformedMessage
from lightning_vfl.federation.frames import Frame, pack, pack_alike, unpack, unpack_pieces
from tests.examples import examples

DTYPES = {
    torch.float16: None,
    torch.float32: None,
    torch.float64: None,
    torch.int32: 32,
    torch.int64: 64,
    torch.uint8: 8,
    torch.uint16: 16,
    torch.uint32: 32,
    torch.bool: 1,
}
INTEGERS = [dtype for dtype, width in DTYPES.items() if width is not None]


def content_of(tensor):
    """The elements of a tensor as bytes, in order: an oracle that knows nothing of strides."""
    return b"".join(
        bytes(tensor[place].clone().reshape(1).view(torch.uint8).tolist()) for place in np.ndindex(*tensor.shape)
    )


def same(one, other):
    return (one.dtype, one.shape, content_of(one)) == (other.dtype, other.shape, content_of(other))


@st.composite
def tensors(draw):
    """Any bits in any dtype and shape, seen through any strides."""
    dtype = draw(st.sampled_from(list(DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(np.prod(shape, dtype=int))
    if dtype == torch.bool:
        held = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype)
    else:
        size = count * torch.empty(0, dtype=dtype).element_size()
        held = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8).view(dtype)
    held = held.reshape(shape)
    match draw(st.sampled_from(["plain", "transposed", "sliced", "expanded"])):
        case "transposed":
            held = held.permute(list(reversed(range(held.ndim))))
        case "sliced" if held.ndim:
            held = held[:, 1::2] if held.ndim > 1 else held[::2]
        case "expanded":
            held = held.unsqueeze(0).expand(draw(st.integers(0, 3)), *held.shape)
    return held


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
headers = st.dictionaries(st.text(max_size=5).filter(lambda key: key != "tensors"), values, max_size=4)


# ---- round trip


@examples(50)
@given(headers, st.lists(tensors(), max_size=3))
def test_what_is_packed_comes_back_bit_for_bit(header, sent):
    content = pack(header, sent)
    frame = unpack(content)
    assert frame.header == header
    assert list(frame.header) == list(header)
    assert len(frame.tensors) == len(sent)
    assert all(same(one, other) for one, other in zip(frame.tensors, sent, strict=True))
    assert pack(frame.header, frame.tensors) == content
    assert pack(header, sent) == content
    assert b"".join(content_of(one) for one in sent) == content[len(content) - sum(one.nbytes for one in sent) :]


@examples(30)
@given(headers, st.lists(headers, max_size=3), tensors())
def test_frames_with_a_shared_beginning_are_those_of_whole_headers(shared, own, sent):
    rest = [{f"own {key}": value for key, value in header.items()} for header in own]
    expected = [pack({**shared, **header}, [sent]) for header in rest]
    assert pack_alike(shared, [(header, [sent], None) for header in rest]) == expected


def test_a_key_of_the_shared_beginning_is_not_given_twice():
    with pytest.raises(MalformedFrame, match="the key 'round' of a header is given twice; give it once"):
        pack_alike({"round": 1}, [({"round": 2}, (), None)])


@examples(50)
@given(st.data(), st.sampled_from(INTEGERS))
def test_numbers_are_packed_to_so_many_bits(data, dtype):
    """The definition in Python integers: number k takes the bits from kb, lowest bit first."""
    bits = data.draw(st.integers(1, min(DTYPES[dtype], 63)))
    count = data.draw(st.integers(0, 40))
    top = 2**bits - 1 - (bits == 32 and dtype == torch.int32) * 2**31
    numbers = data.draw(st.lists(st.integers(0, top) | st.just(top), min_size=count, max_size=count))
    sent = torch.tensor(numbers, dtype=torch.int64).to(dtype)
    strided = torch.stack([sent, sent], 1)[:, 0]
    content = pack({}, [strided], bits=[bits])
    expected = sum(number << (k * bits) for k, number in enumerate(numbers)).to_bytes((count * bits + 7) // 8, "little")
    if bits == 1 and dtype == torch.bool:
        assert b'"p1:b1"' in content
    assert content.endswith(expected)
    assert len(content) == len(pack({}, [strided[:0]], bits=[bits])) - 1 + len(str(count)) + len(expected)
    assert same(unpack(content).tensors[0], sent)


def test_every_size_of_a_number_comes_back():
    for bits in range(1, 64):
        sent = torch.tensor([[2**bits - 1, 0, 2 ** (bits - 1)], [1, 2**bits - 1, 2**bits - 1]] * 3)
        content = pack({"a": 1}, [sent, sent], bits=[bits, None])
        assert all(torch.equal(one, sent) for one in unpack(content).tensors), bits


def test_a_packed_tensor_keeps_shape_and_dtype():
    sent = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    (read,) = unpack(pack({}, [sent], bits=[7])).tensors
    assert same(read, sent)
    empty = unpack(pack({}, [sent[:, :0], sent[0, 0, 0]], bits=[7, 7])).tensors
    assert [tuple(one.shape) for one in empty] == [(2, 0, 4), ()]
    assert pack({}, [sent], bits=[32]) == pack({}, [sent])
    floats = torch.ones(2)
    assert pack({}, [floats], bits=[32]) == pack({}, [floats])


def test_tensors_own_their_memory():
    content = bytearray(pack({}, [torch.zeros(4), torch.zeros(4, dtype=torch.bool)]))
    frame = unpack(content)
    content[-8:] = b"\xff" * 8  # the buffer of a network library is used again
    frame.tensors[0].add_(1)
    assert frame.tensors[0].tolist() == [1.0] * 4
    assert not frame.tensors[1].any()
    assert isinstance(unpack(memoryview(pack({}, [torch.ones(2, requires_grad=True)]))), Frame)


# ---- what is refused


@pytest.mark.parametrize(
    ("header", "sent", "bits", "said"),
    [
        ({1: 2}, [], None, "keys in the header of a frame must be texts; got 1"),
        ({"a": {None: 2}}, [], None, "must be texts; got None"),
        ({"tensors": []}, [], None, "written by pack"),
        ({"a": float("nan")}, [], None, "must be JSON"),
        ({"a": [float("inf")]}, [], None, "must be JSON"),
        ({"a": {1, 2}}, [], None, "must be JSON"),
        ({"a": "\ud800"}, [], None, "not Unicode"),
        ({"a": "x" * 2**16}, [], None, "at most 65536 bytes"),
        ({}, [torch.zeros(1, dtype=torch.complex64)], None, "torch.complex64"),
        ({}, [torch.zeros(1, dtype=torch.bfloat16)], None, "torch.bfloat16"),
        ({}, [torch.zeros(2).to_sparse()], None, "torch.sparse_coo"),
        ({}, [torch.tensor([8])], [3], "from 0 to 7"),
        ({}, [torch.tensor([-1])], [63], "from 0 to"),
        ({}, [torch.tensor([-1], dtype=torch.int32)], [31], "from 0 to"),
        ({}, [torch.ones(1)], [16], "cannot be packed to 16 bits"),
        ({}, [torch.ones(1, dtype=torch.int32)], [33], "cannot be packed to 33 bits"),
        ({}, [torch.ones(1, dtype=torch.int32)], [0], "cannot be packed to 0 bits"),
        ({}, [torch.ones(1)], [], "give one for each"),
        ({}, [torch.empty(0, 2**50)], None, "elements"),
    ],
)
def test_what_cannot_be_sent_is_refused(header, sent, bits, said):
    with pytest.raises(MalformedFrame, match=said) as refused:
        pack(header, sent, bits)
    assert isinstance(refused.value, MalformedMessage)


def test_deep_nesting_is_refused_on_both_sides():
    deep = []
    for _ in range(14):
        deep = [deep]
    assert unpack(pack({"a": deep})).header == {"a": deep}
    with pytest.raises(MalformedFrame, match="at most 16 levels"):
        pack({"a": [[deep]]})
    for text in (b'{"a":' + b"[" * 30 + b"]" * 30 + b',"tensors":[]}', b"[" * 60_000, b'{"a":' * 10_000):
        with pytest.raises(MalformedFrame, match=r"levels|not JSON"):
            unpack(raw(text))


def raw(text, payload=b"", version=1, flags=0, magic=b"LVFL", length=None):
    """A frame by the definition of its layout."""
    return struct.pack("<4sHHI", magic, version, flags, len(text) if length is None else length) + text + payload


def test_the_layout_is_that_of_the_definition():
    sent = torch.tensor([[1.5, -2.0]], dtype=torch.float64)
    text = b'{"kind":"a","tensors":[["f8",[1,2]],["b1",[]],["p3:i8",[3]]]}'
    content = raw(text, struct.pack("<dd?H", 1.5, -2.0, True, 1 | 2 << 3 | 7 << 6))
    assert pack({"kind": "a"}, [sent, torch.tensor(True), torch.tensor([1, 2, 7])], bits=[64, None, 3]) == content


RECORDED = {  # frames as earlier releases have sent them, by version of the frames: they are never changed
    1: "4c56464c01000000450000007b226f7574636f6d65223a22676f222c226174223a5b332c322c2d315d2c2274656e736f7273223a5b5b22"
    "6634222c5b312c325d5d2c5b2270333a6938222c5b335d5d5d7d0000c03f000000c0f501"
}


def test_a_recorded_frame_is_still_read():
    frame = unpack(bytes.fromhex(RECORDED[1]))
    assert frame.header == {"outcome": "go", "at": [3, 2, -1]}
    real, whole = frame.tensors
    assert torch.equal(real, torch.tensor([[1.5, -2.0]]))
    assert torch.equal(whole, torch.tensor([5, 6, 7]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "at least 12"),
        (b"LVFL", "at least 12"),
        (raw(b"{}", magic=b"HTTP"), "not a frame"),
        (raw(b'{"tensors":[]}', version=2), "version 2, 1 is read here; upgrade lightning-vfl on this host"),
        (raw(b'{"tensors":[]}', version=0), "version 0, 1 is read here; upgrade lightning-vfl at its sender"),
        (raw(b'{"tensors":[]}', flags=1), "flags"),
        (raw(b'{"tensors":[]}', length=2**32 - 1), "cannot have a header of 4294967295"),
        (raw(b" " * 70_000), "cannot have a header of 70000"),
        (raw(b"[]"), "must be an object"),
        (raw(b"{}"), "must be an object"),
        (raw(b'{"tensors":[],"a":1}'), "last key"),
        (raw(b'{"tensors": []}'), "not in the form"),
        (raw(b'{"a":1,"a":1,"tensors":[]}'), "not in the form"),
        (raw(b'{"a":1.50,"tensors":[]}'), "not in the form"),
        (raw(b'{"a":-0,"tensors":[]}'), "not in the form"),
        (raw(b'{"a":NaN,"tensors":[]}'), "must be JSON"),
        (raw(b'{"a":-Infinity,"tensors":[]}'), "must be JSON"),
        (raw(b'{"a":1e999,"tensors":[]}'), "must be JSON"),
        (raw(b'{"a":' + b"9" * 5000 + b',"tensors":[]}'), "not JSON"),
        (raw(b'{"a":"\\ud800","tensors":[]}'), "not Unicode"),
        (raw('{"a":"é","tensors":[]}'.encode()), "not JSON of ASCII"),
        (raw(b'{"tensors":{}}'), "must be a list"),
        (raw(b'{"tensors":[["f4"]]}'), "must be .dtype, shape."),
        (raw(b'{"tensors":[[["f4"],[]]]}'), "must be .dtype, shape."),
        (raw(b'{"tensors":[["f4",4]]}', bytes(16)), "must be .dtype, shape."),
        (raw(b'{"tensors":[["f4",[-1]]]}'), "whole numbers"),
        (raw(b'{"tensors":[["f4",[true]]]}', bytes(4)), "whole numbers"),
        (raw(b'{"tensors":[["f4",[1.0]]]}', bytes(4)), "whole numbers"),
        (raw(b'{"tensors":[["f4",[' + b"1," * 16 + b"1]]]}", bytes(4)), "at most 16"),
        (raw(b'{"tensors":[["f4",[0,1099511627776,2]]]}'), "elements"),
        (raw(b'{"tensors":[["O",[1]]]}', bytes(8)), "dtype 'O' is not allowed"),
        (raw(b'{"tensors":[["p0:i8",[1]]]}'), "not allowed"),
        (raw(b'{"tensors":[["p64:i8",[1]]]}', bytes(8)), "not allowed"),
        (raw(b'{"tensors":[["p32:u4",[1]]]}', bytes(4)), "not allowed"),  # pack writes u4
        (raw(b'{"tensors":[["p7",[1]]]}', bytes(1)), "not allowed"),
        (raw(b'{"tensors":[["p7:f4",[1]]]}', bytes(1)), "not allowed"),
        (raw(b'{"tensors":[["b1",[2]]]}', b"\x01\x02"), "0 or 1"),
        (raw(b'{"tensors":[["p7:i8",[1]]]}', b"\x80"), "unused bits"),
        (raw(b'{"tensors":[["f4",[2]]]}', bytes(7)), "but its header says"),
        (raw(b'{"tensors":[["f4",[2]]]}', bytes(9)), "but its header says"),
        (raw(b'{"tensors":[["f8",[1000000000000]]]}', bytes(8)), "but its header says"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_what_pack_does_not_write_is_refused_in_one_line(content, said):
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame, match=said) as refused:
            unpack(content)
        assert tracemalloc.get_traced_memory()[1] < 2**19 + 4 * len(content)
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_frame_above_the_limit_is_refused():
    content = pack({}, [torch.zeros(4)])
    assert unpack(content, limit=len(content))
    with pytest.raises(MalformedFrame, match=f"at most {len(content) - 1} are allowed"):
        unpack(content, limit=len(content) - 1)


# ---- in pieces


def pieces_of(content, draw):
    """The content, cut anywhere, with empty pieces among the others."""
    cuts = sorted(draw.choices(range(len(content) + 1), k=draw.randint(0, 6)))
    return [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]


@pytest.mark.parametrize(
    ("sent", "bits", "most"),
    [
        (torch.zeros(2**20), None, 1.1),
        (torch.zeros(2**22, dtype=torch.bool), None, 1.1),
        (torch.zeros(2**19, dtype=torch.int64), 1, 1.4),
        (torch.zeros(2**19, dtype=torch.int64), 33, 1.8),
    ],
)
def test_a_frame_in_pieces_is_in_memory_once(sent, bits, most):
    content = pack({}, [sent], [bits])
    pieces = (content[at : at + 2**16] for at in range(0, len(content), 2**16))
    tracemalloc.start()
    try:
        frame = unpack_pieces(pieces, limit=sent.nbytes + 2**16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert torch.equal(frame.tensors[0], sent)
    assert frame.size == len(content)
    assert peak < most * sent.nbytes


def test_a_frame_that_is_refused_is_not_read_to_its_end():
    content, taken = pack({"say": "no"}, [torch.zeros(2**16)]), []

    def refuse(header, tensors):
        raise MalformedFrame(f"{header['say']} with {tensors}")

    for limit, check, said in ((2**20, refuse, "no with 1"), (2**16, None, "at most 65536")):
        pieces = (taken.append(at) or content[at : at + 100] for at in range(0, len(content), 100))
        with pytest.raises(MalformedFrame, match=said):
            unpack_pieces(pieces, limit, check)
        assert taken == [0]
        taken.clear()


def test_pieces_that_end_early_or_late_are_refused_with_both_sizes():
    content = pack({}, [torch.zeros(4), torch.zeros(3)])
    with pytest.raises(MalformedFrame, match=f"has {len(content) - 9} bytes, but its header says {len(content)}"):
        unpack_pieces([content[:-9]], 100)
    with pytest.raises(MalformedFrame, match=f"more than the {len(content)} bytes that its header says"):
        unpack_pieces([content, b"", b"x"], 100)


# ---- at random


def seeds():
    """Frames of all dtypes, packed and not, with a header as in a round."""
    header = {
        "number": 812,
        "kind": "embeddings",
        "stage": "fit",
        "round": 811,
        "to": "server",
        "senders": [2],
        "s": 0.5,
    }
    header["standing"] = {"next": 812, "called": [0, 1, 2], "keys": None, "over": False}
    made = [pack(header), pack({}, [torch.zeros(0, 3)])]
    for dtype, width in DTYPES.items():
        one = torch.tensor([1, 0, 1, 1, 0, 1]).to(dtype).reshape(2, 3)
        made.append(pack(header, [one, one[0, 0]]))
        if width:
            made.append(pack(header, [one, one.flatten()], bits=[1, min(5, width)]))
    return made


def mutated(content, draw):
    """The frame with a few bytes changed, cut, repeated or taken from another place."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at : at + draw.randint(1, 9)] = b""
            case 2:
                changed[at:at] = draw.randbytes(draw.randint(1, 9))
            case 3:
                changed[at : at + 1] = draw.choice(
                    [b"0", b"9", b'"', b"[", b"]", b"{", b"}", b",", b"-", b"e", b":", b"n"]
                )
            case 4:
                start = draw.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + draw.randint(1, 12)]
            case 5 if at < len(changed):
                changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def refused_or_canonical(content, draw):
    """Whether a frame is refused, whole and in pieces; what is not refused is, bit for bit, what pack writes."""
    limit = 2**16
    try:
        frame = unpack(content, limit)
    except MalformedFrame:
        with pytest.raises(MalformedFrame):
            unpack_pieces(pieces_of(content, draw), limit)
        return True
    again = unpack_pieces(pieces_of(content, draw), limit)
    assert again.header == frame.header
    assert all(same(*both) for both in zip(again.tensors, frame.tensors, strict=True))
    listed = json.loads(content[12 : 12 + struct.unpack_from("<I", content, 8)[0]])["tensors"]
    bits = [int(code[1:].partition(":")[0]) if code[0] == "p" else None for code, _ in listed]
    assert pack(frame.header, frame.tensors, bits) == content
    return False


def fuzz(number, seed):
    draw, made = random.Random(seed), seeds()
    refused = 0
    for k in range(number):
        if k % 4 == 0:
            text = draw.randbytes(draw.randint(0, 60))
            content = draw.choice(
                [text, raw(text), raw(b'{"tensors":[["f4",[' + text[:2].hex().encode() + b"]]]}", text)]
            )
        else:
            content = mutated(draw.choice(made), draw)
        refused += refused_or_canonical(content, draw)
    return refused


def test_random_and_mutated_frames_are_refused_or_canonical():
    assert 1500 < fuzz(2000, 1) < 2000


@pytest.mark.slow
def test_a_million_random_and_mutated_frames():
    assert 750_000 < fuzz(1_000_000, 2) < 1_000_000


@examples(50)
@given(st.binary(max_size=80), st.binary(max_size=40))
def test_any_bytes_are_refused_or_canonical(text, payload):
    refused_or_canonical(text, random.Random(0))
    refused_or_canonical(raw(text, payload), random.Random(0))


@pytest.mark.slow
def test_a_frame_of_64_kib_takes_microseconds():
    sent = torch.randn(256, 64)
    header = {"number": 812, "kind": "embeddings", "stage": "fit", "round": 811, "to": "server", "senders": [2]}
    content = pack(header, [sent])
    for work in (lambda: pack(header, [sent]), lambda: unpack(content)):
        times = []
        for _ in range(300):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        assert min(times) < 60e-6
