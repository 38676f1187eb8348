"""Every example of the page ``docs/tables.md``, part "Files as they come", is what the page says.

The numbers and days that must come out are written here, apart from the page. An example that the page gains, and that
is not tried here, fails the first test.
"""

import re
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.datamodules import CSVTables, Given, Unchanged
from lightning_vfl.errors import ConfigurationError

PAGE = Path(__file__).parents[4] / "docs" / "tables.md"
PART = PAGE.read_text(encoding="utf-8").split("### Files as they come\n")[1].split("### What it is worth\n")[0]
N = 120


def day(written: date) -> int:
    return (written - date(1970, 1, 1)).days


# example: cells of the rest of the column, the name of the column that is made of it, and what its cell becomes
COMMAS = [f"{n},25" for n in range(N)]
POINTS = [f"{n}.25" for n in range(N)]
WHOLE = [str(n) for n in range(N)]
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
ISO = [f"2015-01-{1 + n % 28:02d}" for n in range(N)]
READ = {
    "1000,50": (COMMAS, "x", 1000.5),
    "2.703,00": (COMMAS, "x", 2703.0),
    "1 234,5": (COMMAS, "x", 1234.5),
    "1'234.5": (POINTS, "x", 1234.5),
    "(500)": (WHOLE, "x", -500.0),
    "500-": (WHOLE, "x", -500.0),
    "−500": (WHOLE, "x", -500.0),
    "45%": ([f"{n}%" for n in range(N)], "x", 0.45),
    "€45": ([f"€{n}" for n in range(N)], "x", 45.0),
    "$68.3": ([f"${n}.5" for n in range(N)], "x", 68.3),
    "45 EUR": ([f"{n} EUR" for n in range(N)], "x", 45.0),
    "45.-": (POINTS, "x", 45.0),
    "45,-": (COMMAS, "x", 45.0),
    "234円": ([f"{n}円" for n in range(N)], "x", 234.0),
    "٤٥": ([str(n).translate(ARABIC) for n in range(N)], "x", 45.0),
    "19 Jan 2021": ([f"{1 + n % 28} Jan 2021" for n in range(N)], "x.days", day(date(2021, 1, 19))),
    "January 19, 2021": ([f"January {1 + n % 28}, 2021" for n in range(N)], "x.days", day(date(2021, 1, 19))),
    "18/07/11": ([f"{1 + n % 28}/07/11" for n in range(N)], "x.days", day(date(2011, 7, 18))),
    "31.12.2024": ([f"{1 + n % 28}.12.2024" for n in range(N)], "x.days", day(date(2024, 12, 31))),
    "20150130T000000": ([f"201501{1 + n % 28:02d}T000000" for n in range(N)], "x.days", day(date(2015, 1, 30))),
    "unknown": (ISO, "x=(missing)", 1.0),
    "2024-02-30": (ISO, "x=(missing)", 1.0),
    "0000-00-00": (ISO, "x=(missing)", 1.0),
    "-": (WHOLE, "x=(missing)", 1.0),
    "?": (WHOLE, "x=(missing)", 1.0),
    ".": (WHOLE, "x=(missing)", 1.0),
    "unknown among numbers": (WHOLE, "x=(missing)", 1.0),
    "#DIV/0!": (WHOLE, "x=(missing)", 1.0),
    "12,345": ([f"{n + 10},{n + 100}" for n in range(N)], "x", 12345.0),
    "2015-01-30T09:30+02:00": ([f"{iso}T{n % 24:02d}:30+02:00" for n, iso in enumerate(ISO)], "x.hour", 9.5),
}
STOPS = {
    "1.234 beside 987": (["1.234", "987"] * (N // 2), "may be 1.234 or 1234; give the decimal mark of the file"),
    "1.234 after thousands of whole numbers": (["987", "45"] * 1200 + ["1.234"] * 4, "may be 1.234 or 1234"),
    "no day above 12": ([f"0{1 + i % 9}/0{1 + i // 9 % 9}/2020" for i in range(N)], "as %d/%m/%Y and as %m/%d/%Y"),
    "12abc": ([*WHOLE[:-1], "12abc"], "other texts with digits, such as '12abc'"),
    "12 kg": ([f"{n} kg" for n in range(N)], "and would be left out; if these are numbers or dates, write them"),
    "every column is left out": (["5"] * N, "every column of party 'bank' is left out"),
}


def written(folder, cells, **settings):
    """A bank with this column alone, or these by name, and a shop with the labels."""
    columns = cells if isinstance(cells, dict) else {"x": cells}
    records = len(next(iter(columns.values())))
    bank = pd.DataFrame({"id": range(records), **columns})
    bank.to_csv(folder / "bank.csv", index=False)
    shop = pd.DataFrame({"id": bank["id"], "size": bank["id"] % 7, "y": ["No", "Yes"] * (records // 2)})
    shop.to_csv(folder / "shop.csv", index=False)
    usual = {"preprocess": "auto", "val_share": 0.0, "test_share": 0.0, "normaliser": Unchanged()}
    return CSVTables({"bank": "bank.csv", "shop": "shop.csv"}, "shop", "y", data_dir=folder, **usual | settings)


def test_every_example_of_the_table_is_tried():
    rows = [line.split("|")[1] for line in PART.splitlines() if line.startswith("| `")]
    on_page = [example for row in rows for example in re.findall(r"`([^`]+)`", row)]
    assert len(on_page) == len(READ)
    assert set(on_page) == {example.removesuffix(" among numbers") for example in READ}


def test_the_examples_of_the_table(tmp_path):
    data = written(tmp_path, {e: [e.removesuffix(" among numbers"), *cells[1:]] for e, (cells, _, _) in READ.items()})
    data.setup("fit")
    records = data.records("train")
    (row,) = np.flatnonzero(records.ids == 0)
    for example, (_, name, expected) in READ.items():
        column = data.layout.columns.index(f"{example}{name.removeprefix('x')}")
        assert records.features[int(row), column].item() == pytest.approx(expected, rel=1e-6), example


@pytest.mark.parametrize("example", STOPS)
def test_what_stops_before_training(example, tmp_path):
    cells, line = STOPS[example]
    with pytest.raises(ConfigurationError) as error:
        written(tmp_path, cells).setup("fit")
    assert line in str(error.value)
    assert "every column" in line or "column 'x' of party 'bank'" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_comma_for_decimals_is_a_setting(tmp_path):
    data = written(tmp_path, READ["12,345"][0], decimal={"bank": ","})
    data.setup("fit")
    assert data.records("train").features[:, 0].max().item() == pytest.approx(N + 9 + (N + 99) / 1000)


def test_an_empty_mark_for_decimals_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"decimal must be '.' or ','; got '' for party 'bank'"):
        written(tmp_path, READ["12,345"][0], decimal="")


@pytest.mark.parametrize("step", ["drop", "one_hot"])
def test_a_column_that_stops_takes_steps(step, tmp_path):
    bank = {"x": step, "other": "numbers"}
    data = written(tmp_path, STOPS["12 kg"][0], preprocess={"bank": bank})
    frame = pd.read_csv(tmp_path / "bank.csv")
    frame.assign(other=frame["id"] % 5).to_csv(tmp_path / "bank.csv", index=False)
    data.setup("fit")
    assert ("x=3 kg" in data.layout.columns) == (step == "one_hot")


def test_a_normaliser_that_takes_nothing_from_the_records_keeps_no_ends(tmp_path, told):
    """With ``Given`` nothing of the training is kept, so that ``predict`` counts no number outside of it."""
    for normaliser, count in ((None, 1), (Given({"x": 0.0, "size": 0.0}, {"x": 200.0, "size": 9.0}), 0)):
        data = written(tmp_path, WHOLE, normaliser=normaliser)
        data.setup("fit")
        new = written(tmp_path, [*WHOLE[:-1], "150"], normaliser=normaliser)
        new.use(data.fitted)
        told.clear()
        new.setup("predict")
        assert sum("numbers lie outside those of the training records in: x 1" in line for line in told) == count
