"""Make up the tables of a bank and of a telephone company, for the page "Get started".

``python examples/make_customers.py FOLDER`` writes ``bank.csv`` and ``telco.csv`` with 2,000 and 1,800 customers, and
``new_bank.csv`` and ``new_telco.csv`` with 300 further customers. The bank knows who could not pay back a loan; of the
new customers nobody knows that. As in real tables, some values are missing.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

CITIES, PLANS = ("Bergen", "Oslo", "Tromso", "Trondheim"), ("basic", "family", "unlimited")


def customers(number: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of the bank and of the telephone company, with all customers in both."""
    rng = np.random.default_rng(seed)
    ids = [f"c{seed}{i:05d}" for i in rng.permutation(number)]
    income, age = rng.lognormal(10.4, 0.4, number).round(-2), rng.integers(19, 80, number)
    city, plan = rng.choice(CITIES, number), rng.choice(PLANS, number, p=(0.5, 0.3, 0.2))
    opened = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3650, number), unit="D")
    late, minutes = rng.poisson(1.2, number), rng.gamma(3.0, 60.0, number).round(1)
    risk = 1.4 * late - income / 12_000 + (city == "Oslo") - (plan == "family") + rng.normal(0, 0.6, number)
    known = pd.Series(income).mask(rng.random(number) < 0.08)
    bank = {"income": known, "age": age, "city": city, "opened": opened, "default": np.where(risk > 0, "yes", "no")}
    told = pd.Series(plan).mask(rng.random(number) < 0.05)
    telco = {"late_bills": late, "minutes": minutes, "plan": told}
    return pd.DataFrame({"id": ids, **bank}), pd.DataFrame({"id": ids, **telco})


def write(folder: Path) -> None:
    """Write the four files."""
    folder.mkdir(parents=True, exist_ok=True)
    bank, telco = customers(2000, seed=1)
    bank.to_csv(folder / "bank.csv", index=False)
    telco.sample(1800, random_state=0).to_csv(folder / "telco.csv", index=False)  # other customers, another order
    bank, telco = customers(300, seed=2)
    bank.drop(columns="default").to_csv(folder / "new_bank.csv", index=False)
    telco.sample(frac=1, random_state=0).to_csv(folder / "new_telco.csv", index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "customers"))
