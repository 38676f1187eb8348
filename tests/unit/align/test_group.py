"""ristretto255 and the hash to it, against the vectors of the RFCs and against plain arithmetic of the curve."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_vfl.align import group
from lightning_vfl.align.group import (
    NoPoint,
    check_key,
    check_points,
    expander,
    mask,
    new_key,
    raised,
)
from lightning_vfl.errors import ConfigurationError
from tests.unit.align import ristretto
from tests.unit.align.plays import seeded

TAG = b"QUUX-V01-CS02-with-expander-SHA512-256"
EXPANDED = {  # RFC 9380, appendix K.3
    (b"", 32): "6b9a7312411d92f921c6f68ca0b6380730a1a4d982c507211a90964c394179ba",
    (b"abc", 32): "0da749f12fbe5483eb066a5f595055679b976e93abe9be6f0f6318bce7aca8dc",
    (b"abcdef0123456789", 32): "087e45a86e2939ee8b91100af1583c4938e0f5fc6c9db4b107b83346bc967f58",
    (
        b"",
        128,
    ): "41b037d1734a5f8df225dd8c7de38f851efdb45c372887be655212d07251b921b052b62eaed99b46f72f2ef4cc96bfaf254ebbbec091"
    "e1a3b9e4fb5e5b619d2e0c5414800a1d882b62bb5cd1778f098b8eb6cb399d5d9d18f5d5842cf5d13d7eb00a7cff859b605da678b318bd0e65eb"
    "ff70bec88c753b159a805d2c89c55961",
}
MAPPED = {  # RFC 9496, appendix A.3
    "5d1be09e3d0c82fc538112490e35701979d99e06ca3e2b5b54bffe8b4dc772c14d98b696a1bbfb5ca32c436cc61c16563790306c79eaca7705"
    "668b47dffe5bb6": "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46",
    "f116b34b8f17ceb56e8732a60d913dd10cce47a6d53bee9204be8b44f6678b270102a56902e2488c46120e9276cfe54638286b9e4b3cdb470b"
    "542d46c2068d38": "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b",
    "8422e1bbdaab52938b81fd602effb6f89110e1e57208ad12d9ad767e2e25510c27140775f9337088b982d83d7fcf0b2fa1edffe51952cbe736"
    "5e95c86eaf325c": "006ccd2a9e6867e6a2c5cea83d3302cc9de128dd2a9a57dd8ee7b9d7ffe02826",
    "ac22415129b61427bf464e17baee8db65940c233b98afce8d17c57beeb7876c2150d15af1cb1fb824bbd14955f2b57d08d388aab431a391cfc"
    "33d5bafb5dbbaf": "f8f0c87cf237953c5890aec3998169005dae3eca1fbb04548c635953c817f92a",
    "165d697a1ef3d5cf3c38565beefcf88c0f282b8e7dbd28544c483432f1cec7675debea8ebb4e5fe7d6f6e5db15f15587ac4d4d4a1de7191e0c"
    "1ca6664abcc413": "ae81e7dedf20a497e10c304a765c1767a42d6e06029758d2d7e8ef7cc4c41179",
    "a836e6c9a9ca9f1e8d486273ad56a78c70cf18f0ce10abb1c7172ddd605d7fd2979854f47ae1ccf204a33102095b4200e5befc0465accc2631"
    "75485f0e17ea5c": "e2705652ff9f5e44d3e841bf1c251cf7dddb77d140870d1ab2ed64f1a9ce8628",
    "2cdc11eaeb95daf01189417cdddbf95952993aa9cb9c640eb5058d09702c74622c9965a697a3b345ec24ee56335b556e677b30e6f90ac77d78"
    "1064f866a3c982": "80bd07262511cdde4863f8a7434cef696750681cb9510eea557088f76d9e5065",
}
NO_POINTS = {  # RFC 9496, appendix A.2, one of each kind, and the identity
    "not a canonical number": "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "negative": "0100000000000000000000000000000000000000000000000000000000000000",
    "no square": "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "negative product": "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
    "y is 0": "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "identity": "00" * 32,
}


@pytest.mark.parametrize(("message", "size"), EXPANDED)
def test_messages_are_expanded_as_rfc_9380_says(message, size):
    assert ristretto.expanded(message, TAG, size).hex() == EXPANDED[message, size]
    assert expander(TAG)(message) == ristretto.expanded(message, TAG)


@pytest.mark.parametrize("uniform", MAPPED)
def test_bytes_are_mapped_as_rfc_9496_says(uniform):
    (point,) = mask([None], lambda place: bytes.fromhex(uniform), new_key(), b"tag")
    assert point.tobytes().hex() == MAPPED[uniform]
    assert ristretto.encoded(ristretto.mapped(bytes.fromhex(uniform))).hex() == MAPPED[uniform]


def test_points_are_raised_as_plain_arithmetic_does():
    key, ids = new_key(seeded("key")), [b"", b"7", b"\xff" * 300]
    own = mask(ids, lambda place: b"", key, b"tag")
    again = raised(own, new_key(seeded("other")))
    for place, message in enumerate(ids):
        point = ristretto.mapped(ristretto.expanded(message, b"tag"))
        once = ristretto.times(int.from_bytes(key, "little"), point)
        twice = ristretto.times(int.from_bytes(new_key(seeded("other")), "little"), once)
        assert (own[place].tobytes(), again[place].tobytes()) == (ristretto.encoded(once), ristretto.encoded(twice))


def test_the_order_of_keys_does_not_matter_and_the_tag_does():
    one, two = new_key(seeded(1)), new_key(seeded(2))
    ids = [b"%d" % i for i in range(5)]
    points = [raised(mask(ids, bytes, a, b"tag"), b) for a, b in ((one, two), (two, one))]
    np.testing.assert_array_equal(*points)
    assert not (raised(mask(ids, bytes, one, b"gat"), two) == points[0]).all(1).any()


@pytest.mark.parametrize("kind", NO_POINTS)
def test_what_is_no_point_is_refused_and_named(kind):
    points = np.concatenate([mask([b"%d" % i for i in range(2)], bytes, new_key(), b""), np.zeros((1, 32), np.uint8)])
    points[2] = np.frombuffer(bytes.fromhex(NO_POINTS[kind]), np.uint8)
    for check in (check_points, lambda given: raised(given, new_key())):
        with pytest.raises(NoPoint, match="point 2 is the identity" if kind == "identity" else "point 2 is no point"):
            check(points)
    check_points(points[:2])


def test_keys_are_numbers_below_the_order_of_the_group():
    assert new_key() != new_key()
    check_key(new_key())
    order = group._ORDER
    for wrong in (bytes(32), order.to_bytes(32, "little"), b"\xff" * 32):
        with pytest.raises(ValueError, match="is not a number from 1"):
            check_key(wrong)
    zeros_first = iter([bytes(64), order.to_bytes(64, "little"), b"\1" * 64])
    assert new_key(lambda size: next(zeros_first)) == (int.from_bytes(b"\1" * 64, "little") % order).to_bytes(
        32, "little"
    )


def test_progress_is_told_of_every_point():
    told = []
    mask([b"%d" % i for i in range(1500)], bytes, new_key(), b"", told.append)
    assert told == [1024, 476]


def test_a_missing_package_is_named(monkeypatch):
    group._library.cache_clear()
    monkeypatch.setitem(sys.modules, "rbcl", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lightning-vfl\[align\]'"):
        group.check_installed()


@pytest.mark.processes
def test_no_temporary_file_is_left(tmp_path):
    code = "from lightning_vfl.align.group import new_key; new_key()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"TMPDIR": str(tmp_path), "PATH": ""})
    assert list(Path(tmp_path).iterdir()) == []


@pytest.mark.parametrize("identity", [False, True])
def test_an_encoding_with_bit_255_is_refused_before_it_is_raised(identity):
    points = mask([(b"a")], lambda _: b"", new_key(), b"tag").copy()
    if identity:
        points[:] = 0
    points[0, 31] |= 0x80
    for work in (check_points, lambda given: raised(given, new_key())):
        with pytest.raises(NoPoint, match="point 0 is the identity" if identity else "point 0 is no point"):
            work(points)
