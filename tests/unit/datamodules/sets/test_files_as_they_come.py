"""Columns as people write them: what is given, and what comes out: numbers, or the one line that stops.

The numbers that must come out are those of ``decimal`` and ``datetime``.
"""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lightning_vfl.datamodules import CSVTables, GivenSplit, Standardise, Unchanged
from lightning_vfl.errors import ConfigurationError

N = 400
RNG = np.random.default_rng(0)
AMOUNTS = [Decimal(int(cents)).scaleb(-2) for cents in RNG.integers(-500_000, 500_000, N)]
AMOUNTS[::3] = [Decimal(int(amount)).quantize(Decimal("0.01")) for amount in AMOUNTS[::3]]  # a third has no cents
WHOLE = [int(amount) for amount in AMOUNTS]
DAYS = [
    date.fromordinal(int(day)) for day in RNG.integers(date(2010, 1, 1).toordinal(), date(2030, 1, 1).toordinal(), N)
]


def german(amount):
    return f"{amount:,.2f}".translate(str.maketrans(",.", ".,"))


NUMBERS = {
    "1000,50": lambda a: f"{a:.2f}".replace(".", ","),
    "2.703,00": german,
    "2,703.00": lambda a: f"{a:,.2f}",
    "45.3%": lambda a: f"{a * 100:.0f}%",
    "€45": lambda a: f"€{a}",
    "-$68.3": lambda a: f"{'-' if a < 0 else ''}${abs(a):,.2f}",
    "45,00 €": lambda a: f"{german(a)} €",
    "(500)": lambda a: f"({-a})" if a < 0 else f"{a}",
    "500-": lambda a: f"{-a}-" if a < 0 else f"{a}",
    "−5": lambda a: f"{a}".replace("-", "\u2212"),
    "1 234.50": lambda a: f"{a:,.2f}".replace(",", "\u202f"),
    "1'234.50": lambda a: f"{a:,.2f}".replace(",", "'"),
    "CHF 11.- beside CHF 11.50": lambda a: f"CHF {f'{a:.2f}'.replace('.00', '.-')}",
    "11,- beside 11,50": lambda a: f"{a:.2f}".replace(".00", ".\u2013").replace(".", ","),
    "11.--": lambda a: f"{a:.2f}".replace(".00", ".--"),
    "digits of Arabic": lambda a: f"{a}".translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")),
    "decimals of Arabic": lambda a: f"{a:,.2f}".translate(str.maketrans("0123456789.,", "٠١٢٣٤٥٦٧٨٩٫٬")),
    "wide digits": lambda a: f"{a}".translate(str.maketrans("0123456789-", "０１２３４５６７８９－")),
    "234円": lambda a: f"{a}円",
    "₱234": lambda a: f"₱{a}",
}
DATES = {
    "18/07/11": "%d/%m/%y",
    "07/18/11": "%m/%d/%y",
    "31.12.2024": "%d.%m.%Y",
    "31.12.24": "%d.%m.%y",
    "20150130T000000": "%Y%m%dT%H%M%S",
    "30 Jan 2015": "%d %b %Y",
    "30-JAN-15": "%d-%b-%y",
    "Jan 30, 2015": "%b %d, %Y",
    "January 30, 2015 at noon": "%B %d, %Y 12:00",
}


def tables(folder, cells, labels=None, **settings):
    """A bank whose table has this column, or these by name, and a shop with the labels; set up without scaling."""
    columns = cells if isinstance(cells, dict) else {"x": cells}
    records = len(next(iter(columns.values())))
    bank = pd.DataFrame({"id": range(records), **columns, "other": np.arange(records) % 97})
    shop = pd.DataFrame({"id": range(records), "y": labels or ["No", "Yes"] * (records // 2)})
    bank.to_csv(folder / "bank.csv", index=False)
    shop.to_csv(folder / "shop.csv", index=False)
    files = {"bank": folder / "bank.csv", "shop": folder / "shop.csv"}
    usual = {"preprocess": "auto", "val_share": 0.1, "test_share": 0.2, "normaliser": Unchanged()}
    data = CSVTables(files, "shop", "y", **usual | settings)
    data.setup("fit")
    return data


def column(data, name="x"):
    """The training ids and the numbers of a column."""
    records = data.records("train")
    (features,) = records.rows(torch.arange(len(records)))
    return records.ids, features[:, data.layout.columns.index(name)].double().numpy()


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_numbers_as_people_write_them(where, tmp_path):
    cells = {written: list(map(form, AMOUNTS)) for written, form in NUMBERS.items()}
    data = tables(tmp_path, cells, work_dir=tmp_path if where == "disk" else None)
    for written in NUMBERS:
        ids, found = column(data, written)
        np.testing.assert_allclose(found, [float(AMOUNTS[i]) for i in ids], rtol=1e-6, err_msg=written)


def test_dates_are_decided_on_the_whole_column(tmp_path):
    """Also if all of them are in May, the short name of which is the long one."""
    in_may = [date(2020, 5, 1 + n % 31) for n in range(N)]
    cells = {form: [day.strftime(way) for day in DAYS] for form, way in DATES.items()}
    data = tables(tmp_path, cells | {"in May": [day.strftime("%d %B %Y") for day in in_may]})
    for form in (*DATES, "in May"):
        ids, found = column(data, f"{form}.days")
        days = in_may if form == "in May" else DAYS
        expected = [(days[i] - date(1970, 1, 1)).days for i in ids]
        np.testing.assert_array_equal(found, expected, err_msg=form)


def test_one_bad_date_is_one_missing_cell(tmp_path, told):
    bad = ("unknown", "2024-02-30", "0000-00-00")
    days = [day.isoformat() for day in DAYS]
    data = tables(tmp_path, {text: [text if i % 50 == 0 else day for i, day in enumerate(days)] for text in bad})
    for text in bad:
        ids, found = column(data, f"{text}.days")
        _, marks = column(data, f"{text}=(missing)")
        bad_ones = ids % 50 == 0
        np.testing.assert_array_equal(marks, bad_ones, err_msg=text)
        np.testing.assert_array_equal(found[~bad_ones], [(DAYS[i] - date(1970, 1, 1)).days for i in ids[~bad_ones]])
        assert f"texts such as '{text}' are missing" in " ".join("\n".join(told).split())


def test_marks_for_missing_are_missing_whatever_their_share(tmp_path, told):
    marks = ("-", "?", ".", "#DIV/0!", "unknown")
    data = tables(tmp_path, {mark: [str(n) if i % 5 < 2 else mark for i, n in enumerate(WHOLE)] for mark in marks})
    for mark in marks:
        ids, missing = column(data, f"{mark}=(missing)")
        np.testing.assert_array_equal(missing, ids % 5 >= 2, err_msg=mark)
        assert f"texts such as '{mark}' are missing" in " ".join("\n".join(told).split())


def test_the_share_of_missing_cells_counts_the_texts_that_are_missing(tmp_path, told):
    """The table before training agrees with its own notes, and with the cells of the training records."""
    cells = {
        "numbers": [("?" if i % 7 == 0 else "" if i % 7 == 1 else str(n)) for i, n in enumerate(WHOLE)],
        "dates": [("unknown" if i % 50 == 0 else day.isoformat()) for i, day in enumerate(DAYS)],
        "words": [["a", "b", ""][i % 3] for i in range(N)],
    }
    data = tables(tmp_path, cells)
    train = data.records("train").ids.astype(int)
    shares = dict.fromkeys(cells, 0.0)
    for name, column in cells.items():
        shares[name] = np.mean([column[i] in ("", "?", "unknown") for i in train])
    lines = {line.split()[1]: line for line in "\n".join(told).splitlines() if line.split()[1:2] and line.count(" %")}
    for name, share in shares.items():
        assert f" {share:.1%}".replace("%", " %") in lines[name], lines[name]


STOPPED = {  # more of them: STOPS of test_tables_page.py
    "a comma": (["12,345", "987", "23,456", "45"], "may be 12.345 or 12345; give the decimal mark of the file"),
    "units of another script": ([f"{i} кг" for i in range(400)], "and would be left out; if these are numbers"),
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_can_be_read_in_two_ways_stops_with_an_example(name, tmp_path):
    cells, message = STOPPED[name]
    with pytest.raises(ConfigurationError) as error:
        tables(tmp_path, cells * (400 // len(cells)))
    assert message in str(error.value)
    assert "column 'x' of party 'bank'" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("work_dir", [False, True])
def test_one_such_number_far_down_a_file_stops_too(work_dir, tmp_path):
    cells = ["987", "45"] * 1500
    cells[2500:2504] = ["1.234"] * 4  # some are training records
    with pytest.raises(ConfigurationError, match=r"has '1\.234' beside '987', so '1\.234' may be 1\.234 or 1234"):
        tables(tmp_path, cells, work_dir=tmp_path if work_dir else None)


@pytest.mark.parametrize("split", ["validate", "test"])
@pytest.mark.parametrize("written", ["1.234", "12,345"])
def test_such_a_number_in_a_validation_or_test_record_alone_stops_too(written, split, tmp_path):
    records = tables(tmp_path, ["987", "45"] * 200, val_share=0.1, test_share=0.2)
    records.setup(split)
    (there,) = records.records("val" if split == "validate" else "test").ids[:1].tolist()
    cells = ["987", "45"] * 200
    cells[there] = written
    with pytest.raises(ConfigurationError, match=rf"has '{written}' beside '(987|45)', so '{written}' may be"):
        tables(tmp_path, cells)


def test_the_form_of_numbers_in_test_records_is_that_of_the_whole_column(tmp_path):
    cells = ["987", "45"] * 200
    data = tables(tmp_path, cells)
    data.setup("test")
    (first, second) = data.records("test").ids[:2].tolist()
    cells[first] = "2.703,50"  # no training record has a mark
    cells[second] = "1.234"
    data = tables(tmp_path, cells)
    data.setup("test")
    records = data.records("test")
    found = dict(zip(records.ids.tolist(), records.rows(torch.arange(len(records)))[0][:, 0].tolist(), strict=True))
    assert (found[first], found[second]) == (2703.5, 1234.0)


@pytest.mark.parametrize(("mark", "number"), [(",", 1234.0), (".", 1.234)])
def test_a_setting_decides_what_the_column_cannot(mark, number, tmp_path):
    data = tables(tmp_path, ["1.234", "987"] * 200, decimal={"bank": mark})
    ids, found = column(data)
    np.testing.assert_allclose(found, np.where(ids % 2, 987.0, number), rtol=1e-6)
    step = {"bank": {"x": {"numbers": {"decimal": mark}}}}
    np.testing.assert_array_equal(column(tables(tmp_path, ["1.234", "987"] * 200, preprocess=step))[1], found)


def test_new_tables_are_read_with_the_decimal_mark_of_the_training(tmp_path):
    trained = tables(tmp_path, list(map(german, AMOUNTS)))
    new = pd.DataFrame({"id": [7, 8], "x": ["1.234", "987"], "other": [1, 2]})
    new.to_csv(tmp_path / "bank.csv", index=False)
    pd.DataFrame({"id": [7, 8]}).to_csv(tmp_path / "shop.csv", index=False)
    files = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    data = CSVTables(files, "shop", "y", preprocess="auto", normaliser=Unchanged())
    data.use(trained.fitted)
    data.setup("predict")
    assert data.records("predict").features[:, 0].tolist() == [1234.0, 987.0]


def test_a_constant_column_is_left_out_and_a_party_with_nothing_else_is_named(tmp_path):
    assert tables(tmp_path, ["5"] * N).layout.columns == ("other",)
    assert {"x=5", "x=(missing)"} < set(tables(tmp_path, ["5", None] * (N // 2)).layout.columns)
    steps = {"bank": {"other": "drop"}}
    with pytest.raises(ConfigurationError, match="every column of party 'bank' is left out"):
        tables(tmp_path, ["5"] * N, preprocess=steps)


@pytest.mark.parametrize("twice", ["y", "id"])
def test_a_repeated_name_is_refused(twice, tmp_path):
    names = ["id", "y", twice]
    rows = [[i, i % 2, i if twice == "id" else i % 2] for i in range(40)]
    (tmp_path / "bank.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in [names, *rows]))
    frame = pa.Table.from_arrays([pa.array(map(str, cells)) for cells in zip(*rows, strict=True)], names)
    pq.write_table(frame, tmp_path / "bank.parquet")
    for table in (tmp_path / "bank.csv", tmp_path / "bank.parquet", frame):
        for work_dir in (None, tmp_path):
            data = CSVTables({"bank": table}, "bank", "y", work_dir=work_dir)
            with pytest.raises(ConfigurationError, match=f"has 2 columns called '{twice}', of which one may be a copy"):
                data.setup("fit")


LABELS = {
    "codes": (["01", "02"], ("01", "02")),
    "truths": (["True", "False"], ("False", "True")),
    "numbers": (["1", "0"], (0, 1)),
    "texts": (["Yes", "No"], ("No", "Yes")),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_come_back_as_they_were_written(name, tmp_path):
    labels, classes = LABELS[name]
    assert tables(tmp_path, WHOLE, labels * (N // 2)).classes == classes


def test_shares_of_classes_are_printed(tmp_path, told):
    tables(tmp_path, WHOLE, ["No", "No", "No", "Yes"] * (N // 4))
    assert "CSVTables: label y: train (280) No 75 %, Yes 25 %; val (40) No 75 %, Yes 25 %; test (80)" in "\n".join(told)


DOUBTS = {
    "case": (["No", "Yes", "yes", "No"], "the classes 'Yes' and 'yes' of label 'y' differ by case, space"),
    "space": (["No", "Yes", "No", "Yes "], "the classes 'Yes' and 'Yes ' of label 'y' differ by case, space"),
    "form": (["1", "1.0", "0", "0"], "label 'y' of party 'shop' has '1' and '1.0', which are the same class"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTS)
def test_classes_that_are_nearly_equal_are_warned_of(name, tmp_path):
    labels, message = DOUBTS[name]
    with pytest.warns(UserWarning, match=message):
        tables(tmp_path, WHOLE, labels * (N // 4))


def test_few_records_of_a_class_and_a_split_without_it_are_warned_of(tmp_path):
    labels = ["No"] * (N - 6) + ["Yes"] * 6
    with pytest.warns(UserWarning, match="label 'y'") as warned:
        tables(tmp_path, WHOLE, labels, split=Latest())
    said = "\n".join(str(one.message) for one in warned)
    assert "has classes of fewer than 10 records: Yes (6)" in said
    assert "the 280 train records have no record of the class Yes of label 'y'" in said


class Latest:
    """By the place of the records: the last are for testing."""

    column = None

    def rows(self, given):
        every = np.arange(given.records)
        return {"train": every[:280], "val": every[280:320], "test": every[320:], "predict": every[320:]}


def test_the_day_of_a_time_is_that_of_datetime(tmp_path):
    times = [datetime(day.year, day.month, day.day, i % 24, 30) for i, day in enumerate(DAYS)]
    ids, found = column(tables(tmp_path, [time.strftime("%d/%m/%Y %H:%M") for time in times]), "x.hour")
    np.testing.assert_allclose(found, [times[i].hour + 0.5 for i in ids])


ZONED = {
    "an offset": lambda time: time.isoformat(),
    "no colon": lambda time: time.strftime("%Y-%m-%d %H:%M:%S%z"),
    "another form": lambda time: time.strftime("%d/%m/%Y %H:%M %z"),
}


@pytest.mark.parametrize("form", ZONED)
def test_the_hour_of_a_zoned_time_is_that_of_its_clock(form, tmp_path):
    zones = [timezone(timedelta(hours=2)), timezone(timedelta(hours=-5, minutes=-30))]
    times = [datetime(d.year, d.month, d.day, i % 24, 15, tzinfo=zones[i % 2]) for i, d in enumerate(DAYS)]
    date_step = {"parts": ["hour", "day"]} | ({"format": "%d/%m/%Y %H:%M %z"} if form == "another form" else {})
    data = tables(tmp_path, list(map(ZONED[form], times)), preprocess={"bank": {"x": {"date": date_step}}})
    ids, hours = column(data, "x.hour")
    np.testing.assert_allclose(hours, [times[i].hour + 0.25 for i in ids])
    np.testing.assert_array_equal(column(data, "x.day")[1], [times[i].day for i in ids])


def test_the_hour_of_a_zoned_column_of_parquet_is_that_of_its_zone(tmp_path):
    zone = ZoneInfo("Europe/Berlin")
    times = [datetime(d.year, d.month, d.day, 4 + i % 19, tzinfo=zone) for i, d in enumerate(DAYS)]
    pd.DataFrame({"id": range(N), "x": times, "y": ["No", "Yes"] * (N // 2)}).to_parquet(tmp_path / "bank.parquet")
    steps = {"bank": {"x": {"date": ["hour"]}}}
    data = CSVTables({"bank": tmp_path / "bank.parquet"}, "bank", "y", preprocess=steps, normaliser=Unchanged())
    data.setup("fit")
    ids, hours = column(data, "x.hour")
    np.testing.assert_array_equal(hours, [times[i].hour for i in ids])


@pytest.mark.parametrize("work_dir", [False, True])
def test_an_id_may_be_called_na(work_dir, tmp_path):
    names = ["NA", "null", "None", *map(str, range(97))]
    cells = pd.DataFrame({"id": names, "x": ["NA", *range(99)], "y": ["No", "Yes"] * 50})
    cells.to_csv(tmp_path / "bank.csv", index=False)
    settings = {"preprocess": "auto", "test_share": 0.0, "val_share": 0.0, "work_dir": tmp_path if work_dir else None}
    data = CSVTables({"bank": tmp_path / "bank.csv"}, "bank", "y", normaliser=Unchanged(), **settings)
    data.setup("fit")
    assert sorted(data.records("train").ids) == sorted(names)
    ids, marks = column(data, "x=(missing)")
    assert ids[marks == 1].tolist() == ["NA"]  # a cell NA is missing as before


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_empty_id_is_no_id(ending, tmp_path):
    cells = pd.DataFrame({"id": ["a", None, "c"], "x": [1, 2, 3], "y": ["No", "Yes", "No"]})
    getattr(cells, f"to_{ending}")(tmp_path / f"bank.{ending}", index=False)
    data = CSVTables({"bank": tmp_path / f"bank.{ending}"}, "bank", "y")
    with pytest.raises(ConfigurationError, match="1 records of party 'bank' have no id"):
        data.setup("fit")


SPLITS = {
    "one class": (["No"] * N, "all 400 labels 'y' of party 'shop' are 'No', and a classification needs two classes"),
    "one record": (["No"] * (N - 1) + ["Yes"], r"\(class 'Yes' has one record among them, and both sides need one\)"),
    "more classes than records": (
        [f"c{i % 100}" for i in range(N)],
        r"400 records give no test split of 20% \(80 would be drawn, and there are 100 classes\)",
    ),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.filterwarnings("ignore:label 'y' has classes of fewer than")
def test_labels_that_cannot_be_divided_are_told_by_class(name, tmp_path):
    labels, message = SPLITS[name]
    with pytest.raises(ConfigurationError, match=message):
        tables(tmp_path, WHOLE, labels)


@pytest.mark.parametrize("name", ["x", "y"])
def test_lists_in_cells_are_refused(name, tmp_path):
    cells = {"id": range(40), "x": range(40), "y": ["No", "Yes"] * 20}
    cells[name] = [[i, i + 1] for i in range(40)]
    pd.DataFrame(cells).to_parquet(tmp_path / "bank.parquet")
    data = CSVTables({"bank": tmp_path / "bank.parquet"}, "bank", "y", preprocess="auto")
    message = rf"cells of column '{name}' of party 'bank' are lists, first \[\d+, \d+\] of record"
    with pytest.raises(ConfigurationError, match=message):
        data.setup("fit")


def test_numbers_outside_those_of_the_training_are_counted_by_column(tmp_path, told):
    trained = tables(tmp_path, WHOLE, normaliser=Standardise())
    new = pd.DataFrame({"id": [7, 8, 9], "x": [10**9, WHOLE[0], -(10**9)], "other": [1, 2, 3]})
    new.to_csv(tmp_path / "bank.csv", index=False)
    files = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    data = CSVTables(files, "shop", "y", preprocess="auto", normaliser=Standardise())
    data.use(trained.fitted)
    data.setup("predict")
    said = "of 3 records of party 'bank', numbers lie outside those of the training records in: x 2"
    assert said in told


TIMES = [datetime(2024, 1, 1, 8) + timedelta(minutes=37 * i) for i in range(N)]
MORE = "values are missing, more than in the training records, in: x"
UNLIKE = {
    "a column without values": (WHOLE, [None] * 3, f"{MORE} 3 (training 0.0 %)"),
    "a value that no training record lacks": (WHOLE, [WHOLE[0], None, WHOLE[1]], f"{MORE} 1 (training 0.0 %)"),
    "as many as in the training": ([None, *WHOLE[1:3]] * (N // 4) + WHOLE[: N // 4], [None, *WHOLE[:2]], None),
    "marks for missing": ([*WHOLE[10:], *["-"] * 10], ["-", "unknown", WHOLE[0]], f"{MORE} 2 (training "),
    "truths": (["yes", "no"] * (N // 2), [None, None, "no"], f"{MORE} 2 (training 0.0 %)"),
    "dates in another form": (
        [*TIMES[10:], *["unknown"] * 10], [f"{time:%d.%m.%Y %H:%M}" for time in TIMES[:3]], f"{MORE} 3 (training ",
    ),
    "dates without times": (
        TIMES, [time.date() for time in TIMES[:3]],
        "no date has a time of the day, as dates of the training records have, in: x",
    ),
    "dates with times": (TIMES, TIMES[-3:], None),
    "days": ([time.date() for time in TIMES[::4]] * 4, [time.date() for time in TIMES[:3]], None),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLIKE)
def test_values_that_the_training_had_are_told_where_new_tables_lack_them(name, tmp_path, told):
    cells, new, line = UNLIKE[name]
    trained = tables(tmp_path, cells, normaliser=Standardise())
    pd.DataFrame({"id": [7, 8, 9], "x": new, "other": [1, 2, 3]}).to_csv(tmp_path / "bank.csv", index=False)
    files = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    data = CSVTables(files, "shop", "y", preprocess="auto", normaliser=Standardise())
    data.use(trained.fitted)
    data.setup("predict")
    said = [text for text in told if "values are missing" in text or "no date" in text]
    assert len(said) == (line is not None)
    assert not said or said[0].startswith(f"of 3 records of party 'bank', {line}")


IN_A_SPLIT = {  # how many of the first 50 validation records have another cell -> the line
    "all missing": (None, 50, f"{MORE} 50 (training 10.0 %)"),
    "some missing": (None, 20, f"{MORE} 20 (training 10.0 %)"),
    "as many missing as by chance": (None, 12, None),
    "another unit": (10_000_000, 50, "numbers lie outside those of the training records in: x 50"),
    "a few large ones": (10_000_000, 20, None),
}


@pytest.mark.parametrize("name", IN_A_SPLIT)
@pytest.mark.parametrize("overlap", ["inner", "keep"])
def test_a_split_whose_records_are_unlike_those_of_the_training_is_told(overlap, name, tmp_path, told):
    cell, number, line = IN_A_SPLIT[name]
    ids = np.arange(N)
    x = pd.Series(WHOLE, dtype=float).mask(ids % 10 == 9)
    x[:50] = pd.Series([cell] * number + WHOLE[number:50], dtype=float)
    pd.DataFrame({"id": ids, "x": x}).iloc[::-1].to_csv(tmp_path / "bank.csv", index=False)
    split = np.where(ids < 50, "val", "train")
    pd.DataFrame({"id": ids, "split": split, "y": ids % 2}).to_csv(tmp_path / "shop.csv", index=False)
    files = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    if overlap == "keep":  # 20 training records of the shop are none of the bank's
        more = pd.DataFrame({"id": np.arange(-20, 0), "split": "train", "y": np.arange(20) % 2})
        pd.concat([pd.read_csv(files["shop"]), more]).to_csv(files["shop"], index=False)
    data = CSVTables(files, "shop", "y", preprocess="auto", split=GivenSplit("split"), overlap=overlap)
    data.setup("fit")
    said = [text for text in told if "of the training records" in text or "values are missing" in text]
    assert said == ([] if line is None else [f"of 50 val records of party 'bank', {line}"])


def test_an_infinite_label_stops_before_training(tmp_path):
    labels = [*map(float, range(N - 1)), float("inf")]
    with pytest.raises(
        ConfigurationError, match=r"1 of the labels 'y' of party 'shop' are infinite .* first of record 399"
    ):
        tables(tmp_path, WHOLE, labels, task="regression")


def test_every_party_has_its_own_id_column_and_separator(tmp_path):
    """The same records as of files that agree, bit for bit; other parties keep the usual column and separator."""
    ids, rng = np.arange(60), np.random.default_rng(0)
    bank = pd.DataFrame({"id": ids, "x": rng.normal(size=60), "y": ids % 2})
    telco = pd.DataFrame({"id": ids[::-1], "z": rng.normal(size=60)})
    bank.to_csv(tmp_path / "bank.csv", index=False)
    telco.to_csv(tmp_path / "same.csv", index=False)
    telco.rename(columns={"id": "customer"}).to_csv(tmp_path / "other.csv", index=False, sep=";")
    about = {"label_party": "bank", "label_column": "y", "data_dir": tmp_path}
    alike = CSVTables({"bank": "bank.csv", "telco": "same.csv"}, **about)
    given = {"id_column": {"telco": "customer"}, "separator": {"bank": ",", "telco": ";"}}
    different = CSVTables({"bank": "bank.csv", "telco": "other.csv"}, **about, **given)
    for data in (alike, different):
        data.setup("fit")
    one, other = alike.records("train"), different.records("train")
    rows = torch.arange(len(one))
    assert [*one.ids] == [*other.ids]
    for party in range(2):
        assert torch.equal(one.features_of(party, rows), other.features_of(party, rows))
    with pytest.raises(
        ConfigurationError, match="id_column names party 'tleco', which has no table; did you mean telco"
    ):
        CSVTables({"bank": "bank.csv", "telco": "other.csv"}, **about, id_column={"tleco": "customer"})


def test_codes_of_letters_and_digits_are_no_numbers(tmp_path):
    """The cabins of the Titanic: nearly all differ, and the letters say that they are no numbers."""
    assert tables(tmp_path, [f"{'ABCDEF'[i % 6]}{i}" for i in range(N)]).layout.columns == ("other",)
    with pytest.raises(ConfigurationError, match=r"such as 'no \d+', and would be left out"):
        tables(tmp_path, [f"no {i}" for i in range(N)])
