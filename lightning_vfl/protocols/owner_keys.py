"""The secret of each owner of networks in a federation: its initial weights, dropout and noise follow from it."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.flops import work_of
from lightning_vfl.streams import (
    Name,
    generator_states,
    secret_bytes,
    secret_state,
    secret_words,
    set_generator_states,
)
from lightning_vfl.types import Shape
from lightning_vfl.whole_files import whole_file

KEY_BYTES = 32
LARGEST_SEED = 2**32 - 1  # that seed_everything takes
FILE = "secret.key"  # in the folder of a run
_TITLE = "lightning-vfl secret"
Keys = Mapping[int | None, bytes]
"""By owner (a party, or None for the server) its key. Empty: everything follows from the seed of the run."""


def new_key() -> bytes:
    """256 bits from the operating system."""
    return os.urandom(KEY_BYTES)


def save_key(key: bytes, folder: Path) -> None:
    """Write a key into a file that only its owner may read; a replay needs it."""
    with whole_file(folder / FILE, 0o600) as file:
        file.write(f"{_TITLE} {key.hex()}\n".encode())


def read_key(path: Path) -> bytes:
    """The key in a file.

    Raises:
        ConfigurationError: for a file that is none.
    """
    try:
        title, _, digits = path.read_text(encoding="ascii").strip().rpartition(" ")
        key = bytes.fromhex(digits)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); give the {FILE} of a process") from None
    if title != _TITLE or len(key) != KEY_BYTES:
        raise ConfigurationError(f"{path} has no secret of a federation; give the {FILE} of a process")
    return key


@contextmanager
def drawn_from(key: bytes, *names: Name) -> Iterator[None]:
    """Let the global generators of torch's CPU, of numpy and of Python draw from a key; they go on as before after it.

    Not guaranteed: anything about generators of GPUs, and about those that a network makes itself.
    """
    before = generator_states()
    torch.default_generator.set_state(secret_state(key, "torch", *names))
    np.random.set_state(("MT19937", secret_words(key, "numpy", *names), 624, 0, 0.0))
    random.seed(secret_bytes(key, 64, "python", *names))
    try:
        yield
    finally:
        set_generator_states(before)


def build_for(owner: int | None, what: str, keys: Keys, shape: Shape, build: Callable[[], nn.Module]) -> nn.Module:
    """A network of an owner.

    With keys, the numbers of a network follow from the key of its owner. A process that does not have this key needs
    the sizes of the network alone: it builds the network without numbers, on torch's meta device, or with random
    numbers of the operating system if its class cannot be built or run there.

    Args:
        owner: a party, or None for the server.
        what: the network, of which an owner may have several.
        keys: of the owners that are hosted here.
        shape: per-record shape of the input.
        build: builds the network and tries it.
    """
    if not keys:
        return build()
    if owner in keys:
        with drawn_from(keys[owner], "initial weights", what):
            return build()
    with drawn_from(new_key()):
        try:
            with torch.device("meta"):
                network = build()
                work_of(network, shape, input_gradient=True)
        except Exception:  # whatever a network does that has no numbers; with numbers it tells what is wrong
            return build()
        return network


@contextmanager
def seeded_if_unseeded(seed: int | None) -> Iterator[None]:
    """Draw from a seed what would differ in every process, because nobody has seeded torch's generator.

    torch begins with a random seed of 53 bits; a larger seed than ``seed_everything`` takes is held for such a one. The
    generator is left as it was.

    Args:
        seed: None: draw from torch's generator in any case.
    """
    if seed is None or torch.initial_seed() <= LARGEST_SEED:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
