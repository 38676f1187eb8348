"""Make up the tables of three parties and of the server, for the page "Parties on hosts of their own".

``python make_tables.py FOLDER`` writes ``bank.csv``, ``telco.csv`` and ``shop.csv`` with the columns of each party, and
``labels.csv``, which tells who could not pay back a loan. Every file has other customers in another order; 1,500
customers are in all four. The files ``new_*.csv`` have 200 further customers; ``new_labels.csv`` has their ids alone.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd


def customers(number: int, seed: int) -> dict[str, pd.DataFrame]:
    """The tables of the parties and the labels, with all customers in each."""
    rng = np.random.default_rng(seed)
    ids = [f"c{seed}{i:05d}" for i in rng.permutation(number)]
    income, age = rng.lognormal(10.4, 0.4, number).round(-2), rng.integers(19, 80, number)
    late, minutes = rng.poisson(1.2, number), rng.gamma(3.0, 60.0, number).round(1)
    orders, returned = rng.poisson(6.0, number), rng.beta(1.5, 6.0, number).round(2)
    risk = 1.4 * late - income / 12_000 + 6.0 * returned + rng.normal(0, 0.6, number)
    columns: dict[str, dict[str, object]] = {
        "bank": {"income": pd.Series(income).mask(rng.random(number) < 0.08), "age": age},
        "telco": {"late_bills": late, "minutes": minutes, "plan": rng.choice(("basic", "family"), number)},
        "shop": {"orders": orders, "returned": returned},
        "labels": {"default": np.where(risk > 0, "yes", "no")},
    }
    return {name: pd.DataFrame({"id": ids, **own}) for name, own in columns.items()}


def write(folder: Path) -> None:
    """Write the eight files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    known, new = customers(2000, seed=1), customers(200, seed=2)
    for name, table in known.items():
        own = np.r_[np.arange(1500), 1500 + rng.permutation(500)[:100]]  # 1,500 of all, 100 that few others have
        if name == "labels":
            own = np.arange(1500)
        table.iloc[rng.permutation(own)].to_csv(folder / f"{name}.csv", index=False)
    new["labels"] = new["labels"].drop(columns="default")
    for name, table in new.items():
        table.iloc[rng.permutation(200)].to_csv(folder / f"new_{name}.csv", index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "tables"))
