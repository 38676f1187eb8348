"""A codec of one's own whose integers do not fit the ring ends in one line before the first step."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators.secure import Codec, IntegerSum, SecureLayer
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.testing import LawBroken, check_aggregator
from tests.subjects import Blobs, split, trainer


def votes(h):
    return (h > 0).int(), 0.0


def difference(total, n):
    return 2.0 * np.asarray(total, np.float64) - n


def refuses(h):
    if h.abs().max() > 100:
        raise ConfigurationError("too large")
    return (h + 100).int(), 0.0


def from_a_table(h):
    table = torch.arange(2048, dtype=torch.int32) % 2
    return table[h.int() + 1024], 0.0


def words_alone(total, n):
    return (total - total.dtype.type(n)).astype(np.float64)


@dataclass(frozen=True, repr=False)
class Own(Codec):
    to_int: Any = votes
    back: Any = difference

    def encode(self, h, slots, every, names, rows, own):
        return self.to_int(h)

    def to_real(self, total, n):
        return self.back(total, n)


class OwnSum(IntegerSum):
    def __init__(self, bits=8, **parts):
        super().__init__(SecureLayer(bits=bits))
        self._codec = Own(**parts)

    def codec(self, roster):
        return self._codec


WRONG = {
    "int64": ({"to_int": lambda h: ((h > 0).long(), 0.0)}, "torch.int32 on the CPU and the share of values out of"),
    "float32": ({"to_int": lambda h: ((h > 0).float(), 0.0)}, "got (3, 10, 5) torch.float32 on cpu, 0.0"),
    "another shape": ({"to_int": lambda h: ((h[0] > 0).int(), 0.0)}, "must return (3, 10, 5) torch.int32"),
    "no share": ({"to_int": lambda h: (h > 0).int()}, "got (3, 10, 5) torch.int32 on cpu"),
    "nothing": (
        {"to_int": lambda h: None},
        "encode of Own must return (3, 10, 5) torch.int32 on the CPU and the share",
    ),
    "negative": ({"to_int": lambda h: (h.sign().int(), 0.0)}, "encode of Own returns -1 for the number -"),
    "above the ring": (
        {"to_int": lambda h: ((h > 0).int() * 86, 0.0)},
        "but integers must be from 0 to 85, so that a sum of 3 fits the ring of 2^8; clip and shift",
    ),
    "above it for large numbers": (
        {"to_int": lambda h: (h.clamp(-500, 1000).add(500).int(), 0.0), "bits": 12},
        "encode of Own returns 1500 for the number 1000, but integers must be from 0 to 1365",
    ),
    "an error for large numbers": ({"to_int": from_a_table}, "encode of Own cannot encode 1e+09: index "),
    "no sum": ({"back": lambda total, n: None}, "to_real of Own must return an array (2, 3) of float64; got None"),
    "a sum of float32": ({"back": lambda t, n: difference(t, n).astype(np.float32)}, "got (2, 3) float32"),
    "a wrapped difference": ({"back": words_alone}, "to_real of Own gives other numbers for uint32 than for the same"),
    "an error in the sum": ({"back": lambda total, n: total.missing}, "to_real of Own cannot decode a sum: 'numpy"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_codec_is_refused_before_a_network_has_changed(tmp_path, name):
    parts, message = WRONG[name]
    module = split(OwnSum(**parts))
    with pytest.raises(ConfigurationError, match=re.escape(message)) as error:
        trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert "\n" not in str(error.value)
    assert not module.trainer.global_step
    with pytest.raises(LawBroken):
        check_aggregator(OwnSum(**parts), fewest=4, error=100.0)


def test_a_codec_may_refuse_large_numbers_but_not_zeros(tmp_path):
    accepted = split(OwnSum(to_int=refuses, bits=32))
    trainer(tmp_path, max_epochs=1).fit(accepted, datamodule=Blobs(batch_size=10))
    assert accepted.books.rounds["fit"] == 6

    def nothing(h):
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"):
        trainer(tmp_path, max_epochs=1).fit(split(OwnSum(to_int=nothing)), datamodule=Blobs(batch_size=10))


def test_the_codec_is_tried_in_the_first_round_alone(tmp_path):
    called = []

    def counting(h):
        called.append(len(h))
        return votes(h)

    trainer(tmp_path, max_epochs=2).fit(split(OwnSum(to_int=counting)), datamodule=Blobs(batch_size=10))
    rounds, tried = called.count(3), called.count(1)
    assert (rounds, tried) == (12, 7)
