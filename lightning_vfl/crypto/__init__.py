"""Cryptography: keys, signatures, masks and sealed messages, which must not depend on a seed."""

from lightning_vfl.crypto.identities import Identities, Signer, verified
from lightning_vfl.crypto.keys import Confined, KeyPair, PairKeys, derive, hkdf
from lightning_vfl.crypto.keystream import Keystream, insecure_words
from lightning_vfl.crypto.mask_graph import fewest_neighbours, ring
from lightning_vfl.crypto.pair_masks import MaskNames, PairKeystream, PairMasks, add_together
from lightning_vfl.crypto.sealed import Sealed

__all__ = [
    "Confined",
    "Identities",
    "KeyPair",
    "Keystream",
    "MaskNames",
    "PairKeys",
    "PairKeystream",
    "PairMasks",
    "Sealed",
    "Signer",
    "add_together",
    "derive",
    "fewest_neighbours",
    "hkdf",
    "insecure_words",
    "ring",
    "verified",
]
