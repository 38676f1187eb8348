"""Long trainings ask for ε again and again: what an answer needs is given back."""

import ctypes
import sys

import pytest

from lightning_vfl.privacy.events import PoissonBinomialEvent
from lightning_vfl.privacy.loss_distribution import _product, loss_epsilon

FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class Figures(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


def in_use():
    """Bytes that this process has from glibc and has not given back."""
    figures = ctypes.CDLL(None).mallinfo2
    figures.restype = Figures
    now = figures()
    return now.uordblks + now.hblkhd


@pytest.mark.skipif(not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2")), reason="asks glibc")
def test_every_epoch_of_a_training_needs_the_same_memory():
    """Scipy keeps tables for the last 16 lengths of transforms, each as large as the losses of many epochs."""
    event = PoissonBinomialEvent(levels=8, beta=0.1, parties=10, coordinates=16)
    epsilons, used = [], []
    for epoch in range(20, 22):
        epsilons.append(loss_epsilon([([event], 89 * epoch)], 1e-5))
        _product.cache_clear()  # of what is kept on purpose
        used.append(in_use())
    assert epsilons == sorted(set(epsilons))
    assert used[-1] - used[0] < 5e6  # 9e6 with these tables
