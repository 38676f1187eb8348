"""Make up a setting to decide for: four companies with customers in common, and a log of their calls.

``python examples/make_setting.py FOLDER`` writes ``bank.csv``, ``telco.csv``, ``shop.csv`` and ``insurer.csv`` with the
same 4,000 customers, and ``calls.csv`` with 400 calls of every company: how late the answer was, and whether it came.
The bank knows who could not pay back a loan. For a setting of your own, put your tables and your log in their place.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

CALLS = 400
SECONDS = {"bank": 0.02, "telco": 0.4, "shop": 0.05, "insurer": 0.05}  # the median delay of an answer


def customers(number: int, seed: int) -> dict[str, pd.DataFrame]:
    """The table of every company."""
    rng = np.random.default_rng(seed)
    income, debt = rng.lognormal(10.4, 0.4, number).round(-2), rng.gamma(2.0, 4000.0, number).round(-2)
    late, minutes = rng.poisson(1.2, number), rng.gamma(3.0, 60.0, number).round(1)
    basket, returns = rng.gamma(4.0, 15.0, number).round(2), rng.binomial(10, 0.2, number)
    claims, years = rng.poisson(0.7, number), rng.integers(0, 30, number)
    burden = debt / income * 4
    risk = burden + 0.8 * late + 0.5 * returns * (burden > 1) + 0.9 * claims - years / 10 - basket / 40
    default = risk + rng.normal(0, 0.7, number) > 1.4
    tables = {
        "bank": {"income": income, "debt": debt, "default": np.where(default, "yes", "no")},
        "telco": {"late_bills": late, "minutes": minutes},
        "shop": {"basket": basket, "returns": returns},
        "insurer": {"claims": claims, "years": years},
    }
    ids = [f"c{i:05d}" for i in rng.permutation(number)]
    return {name: pd.DataFrame({"id": ids, **columns}) for name, columns in tables.items()}


def calls(seed: int) -> pd.DataFrame:
    """The log: the telephone company is slow, and the shop's computer is down for about a quarter of the time."""
    rng = np.random.default_rng(seed)
    parts = []
    for party, median in enumerate(SECONDS.values()):
        delay = median * np.exp(0.6 * rng.standard_normal(CALLS))
        parts.append(pd.DataFrame({"round": range(CALLS), "party": party, "delay": delay.round(4), "up": True}))
    down = False
    for number in range(CALLS):
        down = rng.random() < (0.7 if down else 0.1)
        parts[2].loc[number, "up"] = not down
    log = pd.concat(parts)
    return log.assign(down=log["up"]).sort_values(["round", "party"])


def write(folder: Path) -> None:
    """Write the tables and the log."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in customers(4000, seed=1).items():
        table.sample(frac=1, random_state=len(name)).to_csv(folder / f"{name}.csv", index=False)
    calls(seed=1).to_csv(folder / "calls.csv", index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "setting"))
