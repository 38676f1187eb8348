"""Law: predictions of records of real tables do not depend on which other records are predicted with them.

The tables of CreditDefault, Adult and BankMarketing are read from ``LIGHTNING_VFL_DATA``; without it only the made-up
table of 26 letters is used.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification

import lightning_vfl.datamodules as d
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import PredictionWriter
from tests.subjects import trainer

pytestmark = pytest.mark.slow
ROOT = Path(os.environ.get("LIGHTNING_VFL_DATA", "data"))
CREDIT, ADULT, BANK = (
    ROOT / file for file in ("credit_default/UCI_Credit_Card.csv", "adult/adult.data", "bank_marketing/bank-full.csv")
)


def credit():
    table = pd.read_csv(CREDIT)
    table.columns = ["id", *(f"x{i}" for i in range(1, 24)), "y"]
    return table, ["x2", "x3", "x4"]


def adult():
    names = [*d.Adult.columns, "y"]
    table = pd.read_csv(ADULT, names=names, skipinitialspace=True, keep_default_na=False)
    return table.assign(id=np.arange(len(table))), [name for name in names[:-1] if table[name].dtype == "str"]


def bank():
    table = pd.read_csv(BANK, sep=";")
    return table.assign(id=np.arange(len(table))), [
        n for n in table if n not in ("id", "y") and table[n].dtype == "str"
    ]


def letters():
    x, y = make_classification(4000, 16, n_informative=12, n_classes=26, n_clusters_per_class=1, random_state=0)
    table = pd.DataFrame(x.round(3), columns=[f"c{i}" for i in range(16)])
    return table.assign(id=np.arange(len(y)), y=[chr(65 + c) for c in y]), []


TABLES = {"credit": (credit, CREDIT), "adult": (adult, ADULT), "bank": (bank, BANK), "letters": (letters, None)}


def write(folder, table, columns):
    """Two tables, each with half of the columns; the first has the labels."""
    folder.mkdir()
    halves = {"left": ["id", *columns[0], "y"], "right": ["id", *columns[1]]}
    for party, names in halves.items():
        table[names].to_csv(folder / f"{party}.csv", index=False)
    return {party: str(folder / f"{party}.csv") for party in halves}


@pytest.mark.parametrize("aggregator", [Mean, Concat, MaskedSum], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", TABLES)
def test_a_record_alone_is_predicted_as_among_others(name, aggregator, tmp_path):
    make, needed = TABLES[name]
    if needed is not None and not needed.is_file():
        pytest.skip(f"{needed} is not there")
    table, categorical = make()
    features = [column for column in table if column not in ("id", "y")]
    columns = features[::2], features[1::2]
    chosen = table.sample(510, random_state=0)
    settings = {"label_party": "left", "label_column": "y", "categorical": categorical, "batch_size": 102}
    module = SplitVFL(aggregator(), seed=0)
    trainer(tmp_path, max_epochs=2).fit(
        module, datamodule=d.CSVTables(write(tmp_path / "all", table, columns), **settings)
    )
    sorted_ids, predicted = np.sort(chosen["id"].to_numpy()), {}
    for part, ids in (("many", sorted_ids), ("alone", sorted_ids[:102]), ("few", sorted_ids[:7])):
        files = write(tmp_path / part, chosen[chosen["id"].isin(ids)], columns)
        path = tmp_path / part / "p.csv"
        trainer(tmp_path, callbacks=[PredictionWriter(str(path))]).predict(
            module, datamodule=d.CSVTables(files, **settings)
        )
        predicted[part] = pd.read_csv(path).set_index("record")
        assert predicted[part].index.tolist() == ids.tolist()
    numbers = {part: own.drop(columns="decision").to_numpy() for part, own in predicted.items()}
    alone, many, few = numbers["alone"], numbers["many"], numbers["few"]
    # MaskedSum rounds at random to steps of 2^-24, by the place in the batch
    assert np.array_equal(alone, many[:102]) or (aggregator is MaskedSum and abs(alone - many[:102]).max() < 1e-6)
    assert abs(few - many[:7]).max() < 1e-6
