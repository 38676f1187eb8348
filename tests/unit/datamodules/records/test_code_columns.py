"""Codes of digits stay texts, and numbers that may be codes are told."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.datamodules import CSVTables
from lightning_vfl.datamodules.records import code_columns
from lightning_vfl.datamodules.records.auto_steps import ColumnKind, choose_steps
from lightning_vfl.datamodules.records.code_columns import coded_columns
from lightning_vfl.datamodules.records.party_tables import CSVForm
from lightning_vfl.limits import TextFile
from tests.own_tables import files, write

N = 120
COLUMNS = {
    "id": [f"{i:03d}" for i in range(N)],
    "zip": [["0150", "7001", "5003", ""][i % 4] for i in range(N)],
    "late": ["7"] * (N - 30) + ["07"] * 30,
    "whole": [str(i % 4) for i in range(N)],
    "price": ["00.5"] * N,
    "day": ["01.02.2020"] * N,
    "mixed": ["07"] * (N - 1) + ["x"],
    "zero": ["0", "0.5"] * (N // 2),
}


@pytest.mark.parametrize("size", [7, 1 << 24])
def test_columns_of_digits_with_a_zero_in_front_are_codes(tmp_path, size, monkeypatch):
    monkeypatch.setattr(code_columns, "_BYTES", size)
    monkeypatch.setattr(code_columns, "_ROWS", 50)
    for separator in (",", ";"):
        pd.DataFrame(COLUMNS).to_csv(tmp_path / "t.csv", index=False, sep=separator)
        assert coded(tmp_path / "t.csv", separator) == ["zip", "late"]
        pd.DataFrame(COLUMNS)[["id", "whole", "zero"]].to_csv(tmp_path / "t.csv", index=False, sep=separator)
        assert coded(tmp_path / "t.csv", separator) == []


def coded(path: Path, separator: str) -> list[str]:
    with TextFile(path) as file:
        return coded_columns(file, CSVForm(separator), ("id",))


def test_codes_are_categories_and_few_whole_numbers_are_told(tmp_path, told):
    bank = pd.DataFrame(COLUMNS).drop(columns=["price", "day", "mixed"])
    shop = pd.DataFrame({"id": COLUMNS["id"], "y": np.arange(N) % 2, "amount": np.arange(N)})
    write(tmp_path, {"bank": bank, "shop": shop})
    data = CSVTables(files(tmp_path, "bank", "shop"), "shop", "y", preprocess="auto", batch_size=8)
    data.setup("fit")
    assert {"zip=0150", "zip=7001", "zip=5003", "zip=(missing)", "late=7"} <= set(data.layout.columns)
    table = re.sub(r"\n +", " ", "\n".join(told))  # long cells go on below
    lines = {line.split()[1]: line for line in table.splitlines() if line.startswith(("bank ", "shop "))}
    assert "only 4 different numbers: if they are codes, give one_hot" in lines["whole"]
    assert not any("codes" in lines[name] for name in ("amount", "zero"))


def test_mostly_numbers_with_codes_among_them_are_texts():
    chosen = choose_steps(pd.Series(["150", "151", "152", "153", "0154"] * 20, name="zip"))
    assert chosen.kind is ColumnKind.CATEGORIES
