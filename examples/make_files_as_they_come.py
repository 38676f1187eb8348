"""Make up tables whose numbers and dates are written for people, for the page "Your own tables".

``python examples/make_files_as_they_come.py FOLDER`` writes ``bank.csv`` and ``shop.csv`` with 2,000 customers.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd


def german(number: float) -> str:
    """``2.703,00``."""
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


def write(folder: Path, records: int = 2000) -> None:
    """Write both files."""
    rng = np.random.default_rng(0)
    amount, change = rng.lognormal(8, 1, records), rng.normal(0, 500, records).round()
    days = pd.Timestamp("2011-01-01") + pd.to_timedelta(rng.integers(0, 3000, records), unit="D")
    churn = np.where(change + rng.normal(0, 300, records) < -300, "Yes", "No")
    bank = {
        "amount": [german(number) for number in amount],
        "change": [f"({-number:.0f})" if number < 0 else f"{number:.0f}" for number in change],
        "opened": days.strftime("%d/%m/%y").where(rng.random(records) > 0.02, "unknown"),
        "churn": churn,
    }
    shop = {
        "price": [f"€{number:,.2f}" if number < 9000 else "-" for number in amount],
        "share": [f"{percent}%" for percent in rng.integers(0, 101, records)],
        "last_order": days.strftime("%Y%m%dT%H%M%S"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.arange(records)
    pd.DataFrame({"id": ids, **bank}).to_csv(folder / "bank.csv", index=False)
    pd.DataFrame({"id": ids, **shop}).to_csv(folder / "shop.csv", index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "as_they_come"))
