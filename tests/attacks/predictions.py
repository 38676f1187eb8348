"""Predictions of training records through the protocol, repeated: what the server averages, and what is charged."""

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LocalGaussian
from lightning_vfl.aggregators.clear import PlainServer
from lightning_vfl.aggregators.secure.masked_wire import MaskedServer
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import Budget
from lightning_vfl.types import Roll
from tests.attacks.ledger import PARTIES, WIDTH, private
from tests.attacks.row import Row
from tests.subjects import Blobs, trainer

FIRST = {"fit": 1000, "sanity check": 1054, "validation": 1054, "test": 1072, "predict": 1072}  # ids in ``Blobs``
DELTA = 1e-5


class TrainingAgain(Blobs):
    """Blobs whose records to predict are the training records: an active server may ask for them at any time."""

    def load(self, names: Any) -> Any:
        splits = dict(super().load(tuple({*names, "train"})))
        return {name: splits["train"] if name == "predict" else splits[name] for name in names}


@contextmanager
def observed(seen: Counter[int], first: dict[str, int], note: Callable[[Any], None] | None = None) -> Iterator[None]:
    """Count by the user's id how often the uploads of each record reach the server, apart from all accounting."""

    def watched(kind: Any) -> Any:
        decode = kind.decode

        def decoded(self: Any, messages: Any, view: Any) -> Any:
            seen.update((view.rows.ids + first[str(view.names.stage)]).tolist())
            aggregate = decode(self, messages, view)
            if note is not None:
                note(aggregate.value)
            return aggregate

        return patch.object(kind, "decode", decoded)

    with watched(PlainServer), watched(MaskedServer):
        yield


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    """ε of Gaussian noise with signal μ = Δ √n / σ, by bisection of the closed form of Balle and Wang, in plain Python.

    References:
        Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.
    """

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def leaks(epsilon: float) -> float:
        return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)

    low, high = 0.0, 500.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if leaks(middle) > delta else (low, middle)
    return high


def noise(epsilon: float) -> tuple[LocalGaussian, float]:
    """Local noise of this ε for one upload, and the signal μ of one upload."""
    aggregator = LocalGaussian(Budget(epsilon=epsilon))
    return aggregator, 2 * aggregator.clip / aggregator.sigma(WIDTH, PARTIES)


def predict_again(folder: Path, times: int, target: float | None = None) -> tuple[SplitVFL, Counter[int], list[Any]]:
    """A fit of one epoch, and then so many predictions of its training records; what the server has decoded.

    ``target``: a budget. A prediction that it refuses releases nothing, and ends the attack.
    """
    module = private(noise(1.0)[0])
    trainer(folder, max_epochs=1, limit_val_batches=0).fit(module, datamodule=Blobs(batch_size=54))
    seen: Counter[int] = Counter()
    values: list[Any] = []
    callbacks = [] if target is None else [PrivacyBudget(target)]
    t, data = trainer(folder, callbacks=callbacks), TrainingAgain(batch_size=54)
    with observed(seen, {"predict": 1000}, values.append):
        for _ in range(times):
            try:
                t.predict(module, datamodule=data, return_predictions=False)
            except ConfigurationError:
                break
    return module, seen, values


def rows() -> list[Row]:
    """400 predictions of the training records, averaged."""
    mu = noise(1.0)[1]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        module, seen, values = predict_again(Path(folder), 400)
        times = max(seen.values())
        data = TrainingAgain(batch_size=54)
        data.setup("predict")
        clear = module.aggregator.plain(module.bottoms(data.records("predict").rows(torch.arange(54))), *whole(module))
        single = float((values[0] - clear).std())
        error = float((torch.stack(values).mean(0) - clear).std()) / single
        true = gaussian_epsilon(mu * math.sqrt(1 + times))
        charged = module.privacy.epsilon()
    with tempfile.TemporaryDirectory() as folder:
        _, stopped, _ = predict_again(Path(folder), 400, target=1.0)
    sees = f"{times:,} noisy uploads of each training record; their mean has {error:.3f} of the noise of one"
    return [
        Row(
            "predict the training records 400 times through `LocalGaussian`",
            sees,
            f"ε {true:.1f} released, 1.00 reported",
            f"ε {true:.1f} released, {charged:.1f} reported; with a budget of 1: {len(stopped)} records released",
            "ε 0",
        )
    ]


def whole(module: Any) -> tuple[Any, None]:
    """The roll of everybody, for the aggregate in the clear."""
    return Roll.everyone(module.roster.parties), None


def charged_by_id(module: SplitVFL, ids: Any) -> Any:
    """(n,) how often the account has charged these ids."""
    accountant = module.privacy.accountant
    if accountant is None or not accountant.records:
        return np.zeros(len(ids), np.int64)
    places, counts = module.privacy.rows(ids).numpy(), accountant.state_dict()["counts"].sum(0).numpy()
    return np.where(places >= 0, counts[places], 0)
