"""Files in the form of tables that people have: Titanic passengers of a ferry and a bank, and FATE's guest and host."""

from pathlib import Path

import numpy as np
import pandas as pd


def write_titanic(folder: Path, records: int = 891, seed: int = 0, first: int = 1) -> pd.DataFrame:
    """A ferry's list of passengers, with their survival, and the bank that sold their tickets; both joined.

    Ages, cabins and ports are missing, names differ, cabins and tickets are many texts, bookings are dates, and the
    price is unknown or free for some. Survival depends on sex, class, age, price, port and the month of booking.
    """
    rng = np.random.default_rng(seed)
    sex, level = (
        rng.choice(["male", "female"], records, p=[0.65, 0.35]),
        rng.choice([1, 2, 3], records, p=[0.24, 0.21, 0.55]),
    )
    age = np.where(rng.random(records) < 0.2, np.nan, rng.gamma(6, 5, records).round(1))
    port = rng.choice(["S", "C", "Q"], records, p=[0.72, 0.19, 0.09])
    fare = (rng.lognormal(4.2 - 0.9 * level, 0.7)).round(2)
    booked = pd.Timestamp("1911-11-01") + pd.to_timedelta(rng.integers(0, 150, records), "D")
    score = 2.8 * (sex == "female") - 1.1 * (level - 2) - 0.03 * (np.nan_to_num(age, nan=30) - 30)
    score += 0.4 * np.log(fare / 20 + 0.1) + 0.5 * (port == "C") + 0.6 * (booked.month == 12) - 1.0
    ids = [f"{first + i:04d}" for i in range(records)]
    cabin = pd.Series([f"{'ABCDE'[i % 5]}{i % 60}" for i in rng.integers(0, 300, records)])
    ferry = pd.DataFrame({
        "id": ids,
        "Survived": np.where(2 * score + rng.logistic(size=records) > 0, "yes", "no"),
        "Pclass": level,
        "Name": [f"{'Mrs' if s == 'female' else 'Mr'}. Passenger {i}" for i, s in enumerate(sex)],
        "Sex": sex,
        "Age": age,
        "Cabin": cabin.where(pd.Series(rng.random(records) < 0.25)),
        "Embarked": pd.Series(port).where(pd.Series(rng.random(records) < 0.98)),
        "Alone": rng.choice([True, False], records),
    })  # fmt: skip
    bank = pd.DataFrame({
        "id": ids,
        "Fare": pd.Series(fare.astype(str)).where(pd.Series(rng.random(records) < 0.95), "free"),
        "Booked": booked.strftime("%Y-%m-%d"),
        "Ticket": rng.integers(10_000, 400_000, records),
    })  # fmt: skip
    write(folder, {"ferry": ferry, "bank": bank.sample(frac=1, random_state=seed)})
    return ferry.merge(bank, on="id").set_index("id").sort_index()


def write_hetero(folder: Path, records: int = 2000, seed: int = 0) -> pd.DataFrame:
    """FATE's form: ``x0``, ``x1``, ... with guest (who has ``y``) and host alike; some missing. Both joined."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(records, 3))
    x = hidden @ rng.normal(size=(3, 12)) + rng.normal(size=(records, 12))
    y = (hidden @ [2.0, -1.0, 1.0] + 0.7 * hidden[:, 0] * hidden[:, 1] + 0.3 * rng.normal(size=records) > 0.5) * 1
    table = pd.DataFrame(x.round(6), columns=[f"x{i}" for i in range(12)]).mask(rng.random(x.shape) < 0.03)
    ids = rng.permutation(records)
    guest, host = table.iloc[:, :7], table.iloc[:, 7:].set_axis([f"x{i}" for i in range(5)], axis=1)
    guest.insert(0, "y", y)
    for part in (guest, host):
        part.insert(0, "id", ids)
    write(folder, {"guest": guest, "host": host.sample(frac=1, random_state=seed)})
    return guest.merge(host, on="id", suffixes=("_guest", "_host")).set_index("id").sort_index()


def write(folder: Path, tables: dict[str, pd.DataFrame]) -> None:
    """One CSV file for each table."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)


def files(folder: Path, *names: str) -> dict[str, str]:
    """Party -> its file."""
    return {name: str(folder / f"{name}.csv") for name in names}
