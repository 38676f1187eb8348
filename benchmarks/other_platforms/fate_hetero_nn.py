"""One party of FATE's HeteroNN: runs in an environment with ``pyfate``, once as guest (with labels), once as host.

With ``protected`` among the settings, the embeddings meet in FATE's layer on secret sharing and encryption (SSHE), a
linear one with plain SGD; without it, they are added in the clear.

python fate_hetero_nn.py guest|host RECORDS.npz SETTINGS.json FOLDER
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from fate.arch import Context
from fate.arch.computing.backends.standalone import CSession
from fate.arch.federation.backends.standalone import StandaloneFederation
from fate.ml.nn.hetero.hetero_nn import HeteroNNTrainerGuest, HeteroNNTrainerHost, TrainingArguments
from fate.ml.nn.model_zoo.hetero_nn_model import HeteroNNModelGuest, HeteroNNModelHost, SSHEArgument
from torch import nn
from torch.utils.data import TensorDataset

PARTIES = {"guest": ("guest", "10000"), "host": ("host", "9999")}

role, folder = sys.argv[1], sys.argv[4]
records, settings = np.load(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
own = {"guest": "0", "host": "1"}[role]
x = {name: torch.from_numpy(records[name + own]) for name in ("train", "test")}
y = {name: torch.from_numpy(records[f"{name}_labels"]) for name in ("train", "test")}
width, hidden, seed = settings["width"], settings["hidden"], settings["seed"]
torch.manual_seed(2 * seed + int(own))  # the parties' bottoms start from other weights
torch.set_num_threads(1)

computing = CSession(data_dir=f"{folder}/data")
federation = StandaloneFederation(computing, folder.replace("/", "_"), PARTIES[role], list(PARTIES.values()))
context = Context(computing=computing, federation=federation)
training = TrainingArguments(
    num_train_epochs=settings["epochs"],
    per_device_train_batch_size=settings["batch"],
    no_cuda=True,
    disable_tqdm=True,
    seed=seed,  # both parties draw the same order of batches
)
bottom = nn.Sequential(nn.Linear(x["train"].shape[1], hidden), nn.ReLU(), nn.Linear(hidden, width))
layer = SSHEArgument(width, width, width, settings["lr"]) if settings["protected"] else None
model = (
    HeteroNNModelGuest(nn.Linear(width, settings["classes"]), bottom, agglayer_arg=layer)
    if role == "guest"
    else HeteroNNModelHost(bottom, agglayer_arg=layer)
)
adam = torch.optim.Adam(model.parameters(), settings["lr"], eps=settings["eps"])
start = perf_counter()
if role == "guest":
    train = TensorDataset(x["train"], y["train"])
    trainer = HeteroNNTrainerGuest(context, model, training, train, loss_fn=nn.CrossEntropyLoss(), optimizer=adam)
    trainer.train()
    seconds = perf_counter() - start
    predicted = trainer.predict(TensorDataset(x["test"], y["test"])).predictions.argmax(1)
    right = float((predicted == records["test_labels"]).mean())
    print(json.dumps({"accuracy": right, "seconds": seconds / settings["epochs"]}))
else:
    trainer = HeteroNNTrainerHost(context, model, training, TensorDataset(x["train"]), optimizer=adam)
    trainer.train()
    trainer.predict(TensorDataset(x["test"]))
