"""SecretFlow's SFL in its debug mode, all parties in one process: runs in an environment with ``secretflow``.

python secretflow_sfl.py RECORDS.npz SETTINGS.json
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import secretflow as sf
import tensorflow as tf
from secretflow.data.ndarray import FedNdarray, PartitionWay
from secretflow_fl.ml.nn import SLModel
from secretflow_fl.ml.nn.sl.agglayer.agg_method import Sum

records, settings = dict(np.load(sys.argv[1])), json.loads(Path(sys.argv[2]).read_text())
width, hidden, epochs, seed = (settings[name] for name in ("width", "hidden", "epochs", "seed"))
logging.disable(logging.WARNING)
sf.init(["guest", "host"], debug_mode=True)
parties = guest, host = sf.PYU("guest"), sf.PYU("host")


def dense(inputs: int, units: int, activation: str | None = None) -> Any:
    """A layer with the initial weights of ``torch.nn.Linear``."""
    start, shift = (tf.keras.initializers.RandomUniform(-(inputs**-0.5), inputs**-0.5) for _ in range(2))
    return tf.keras.layers.Dense(units, activation, kernel_initializer=start, bias_initializer=shift)


def network(inputs: int, *layers: tuple[int, int, str | None]) -> Callable[[], Any]:
    def make() -> Any:
        model = tf.keras.Sequential([tf.keras.layers.InputLayer(inputs), *[dense(*layer) for layer in layers]])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        adam = tf.keras.optimizers.Adam(settings["lr"], epsilon=settings["eps"])
        model.compile(adam, loss, metrics=["sparse_categorical_accuracy"])
        return model

    return make


def vertical(*parts: Any) -> Any:
    held = {party: party(lambda part: part)(part) for party, part in zip(parties, parts, strict=False)}
    return FedNdarray(held, PartitionWay.VERTICAL)


columns = [records[f"train{own}"].shape[1] for own in (0, 1)]
bottoms = [network(number, (number, hidden, "relu"), (hidden, width, None)) for number in columns]
top = network(width, (width, settings["classes"], None))
model = SLModel(dict(zip(parties, bottoms, strict=True)), guest, top, agg_method=Sum(), random_seed=seed)
x, y = vertical(records["train0"], records["train1"]), vertical(records["train_labels"][:, None])
common = {"batch_size": settings["batch"], "shuffle": True, "verbose": 0, "random_seed": seed}
model.fit(x, y, epochs=1, **common)  # TensorFlow compiles its graphs: not timed
start = perf_counter()
model.fit(x, y, epochs=epochs - 1, **{**common, "random_seed": seed + 100})
seconds = (perf_counter() - start) / (epochs - 1)
shown = sf.reveal(model.predict(vertical(records["test0"], records["test1"]), batch_size=len(records["test0"])))
predicted = np.concatenate([np.asarray(part) for part in shown]).argmax(1)
print(json.dumps({"accuracy": float((predicted == records["test_labels"]).mean()), "seconds": seconds}))
