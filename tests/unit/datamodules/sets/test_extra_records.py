"""Records that the parties do not share: prepared as training records, and used by nothing in silence."""

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback

from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import ContiguousColumns, CSVTables, Digits, LimitedOverlap
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Seat
from tests.subjects import split, trainer
from tests.unit.datamodules.test_seats import PARTIES, arranged, federation, set_up

SETTINGS = {"label_party": "bank", "label_column": "default", "preprocess": "auto"}


def frames():
    """Two parties with 80 records in common, and 40 more of the bank's."""
    draw = np.random.default_rng(0)
    bank = pd.DataFrame({"id": draw.permutation(120), "income": draw.normal(5.0, 2.0, 120)})
    bank["city"] = draw.choice(["a", "b", "c"], 120)
    bank["default"] = draw.choice(["no", "yes"], 120)
    bank.loc[bank["id"] == 100, "income"] = np.nan
    telco = pd.DataFrame({"id": draw.permutation(80), "calls": draw.integers(0, 9, 80).astype(float)})
    return bank, telco


def divided():
    """The tables, and the bank's other records with columns in another order and one that no step takes."""
    bank, telco = frames()
    shared = bank["id"] < 80
    more = bank[~shared].assign(note="new")[["note", "city", "id", "income"]]
    return {"bank": bank[shared], "telco": telco}, more


def test_they_are_prepared_with_what_the_training_records_gave(tmp_path):
    """As plain pandas does it: the median for missing values, mean and deviation, the cities."""
    tables, more = divided()
    data = CSVTables(tables, extra={"bank": more}, **SETTINGS)
    data.setup("fit")
    found = dict(zip(data.layout.columns, data.extra_of(0).T, strict=False))
    train = tables["bank"][tables["bank"]["id"].isin(data.records("train").ids)]["income"]
    income = (more["income"].fillna(train.median()) - train.mean()) / train.std(ddof=0)
    np.testing.assert_allclose(found["income"], income, rtol=1e-5, atol=1e-6)
    for city in "abc":
        np.testing.assert_array_equal(found[f"city={city}"], more["city"] == city)
    assert len(more) == 40
    assert data.extra_of(1) is None
    more.to_csv(tmp_path / "more.csv", index=False)
    from_file = CSVTables(tables, extra={"bank": "more.csv"}, data_dir=tmp_path, **SETTINGS)
    from_file.setup("fit")
    assert torch.equal(from_file.extra_of(0), data.extra_of(0))
    from_file.extra = {"bank": tmp_path / "none.csv"}
    with pytest.raises(ConfigurationError, match=r"none\.csv of party 'bank' cannot be read"):
        from_file.extra_of(0)


def test_the_own_table_gives_the_records_that_are_not_joined(told):
    bank, telco = frames()
    whole = CSVTables({"bank": bank, "telco": telco}, extra={"bank": bank}, **SETTINGS)
    tables, more = divided()
    apart = CSVTables(tables, extra={"bank": more}, **SETTINGS)
    for data in (whole, apart):
        data.setup("fit")
    assert torch.equal(whole.extra_of(0), apart.extra_of(0))
    assert any(
        "40 extra records of party 'bank', 80 joined ones are left out; prepared as its" in text for text in told
    )
    assert any("training records: income, city" in text for text in told)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (False, "1 of the 41 extra records of party 'bank' have ids of joined records"),
        (
            True,
            "records of party 'bank' are texts such as .*, and those of joined records whole numbers such as .* form",
        ),
    ],
)
def test_ids_of_joined_records_and_missing_columns_are_refused(text, line):
    tables, more = divided()
    again = pd.concat([more, tables["bank"][tables["bank"]["id"] == 7].drop(columns="default")])
    if text:
        again["id"] = again["id"].map("{:06}".format)  # 000007 is record 7, and not found among numbers
    data = CSVTables(tables, extra={"bank": again}, **SETTINGS)
    data.setup("fit")
    with pytest.raises(ConfigurationError, match=line):
        data.extra_of(0)
    data = CSVTables(tables, extra={"bank": more.drop(columns="city")}, **SETTINGS)
    data.setup("fit")
    with pytest.raises(ConfigurationError, match="extra records of party 'bank' are without city, which its table has"):
        data.extra_of(0)


def test_refusals_at_once():
    tables, more = divided()
    for wrong in ([more], more):
        with pytest.raises(ConfigurationError, match="extra must be a dictionary from party to file or frame; got a"):
            CSVTables(tables, extra=wrong, **SETTINGS)
    with pytest.raises(ConfigurationError, match="extra must give party 'bank' a file or a frame of pandas, polars or"):
        CSVTables(tables, extra={"bank": None}, **SETTINGS)
    with pytest.raises(ConfigurationError, match="the frame of party 'bank' in extra has no rows; give it records"):
        CSVTables(tables, extra={"bank": more[:0]}, **SETTINGS)
    with pytest.raises(ConfigurationError, match="extra names party 'bnk', which has no table"):
        CSVTables(tables, extra={"bnk": more}, **SETTINGS)
    with pytest.raises(ConfigurationError, match="extra records need tables that are parties of their own"):
        CSVTables(tables, extra={"bank": more}, partitioner=ContiguousColumns(2), **SETTINGS)


class Using(Callback):
    uses_extra = True


def test_nothing_uses_them_in_silence_and_training_has_the_same_bits(tmp_path):
    tables, more = divided()
    modules = []
    for extra in ({}, {"bank": more}):
        module = split(Mean(), width=4)
        data = CSVTables(tables, extra=extra, batch_size=16, **SETTINGS)
        if extra:
            with pytest.warns(UserWarning, match="extra records of bank are given and not used; add the callback"):
                trainer(tmp_path).fit(module, datamodule=data)
        else:
            trainer(tmp_path).fit(module, datamodule=data)
        modules.append(module)
    pairs = zip(*(module.state_dict().values() for module in modules), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    trainer(tmp_path, callbacks=[Using()]).fit(split(Mean(), width=4), datamodule=data)  # warnings are errors here


@pytest.mark.parametrize(("label_party", "labels_at"), [("labels", None), ("bank", 0)])
def test_a_seat_reads_its_own_extra_records_alone(tmp_path, label_party, labels_at):
    paths, settings = arranged(tmp_path, "auto", False, label_party)
    own = {name: path for name, path in paths.items() if name in PARTIES}
    whole = set_up(CSVTables(paths, extra=own, **settings))
    settings["extra"] = {name: path.name for name, path in own.items()}
    for party, data in federation(tmp_path, paths, labels_at, **settings).items():
        for m in range(len(PARTIES)):
            if m == party:
                assert torch.equal(data.extra_of(m), whole.extra_of(m))
                assert len(data.extra_of(m)) == (0 if PARTIES[m] == label_party else 4)


@pytest.mark.parametrize("party", [None, 2])
def test_records_that_a_partitioner_leaves_out_are_those_that_the_party_holds(party):
    every, few = Digits(LimitedOverlap(aligned=100)), Digits(LimitedOverlap(aligned=100, only_aligned=True))
    for data in (every, few):
        if party is not None and data is few:
            data.take_seat(Seat(party))
        data.setup("fit")
    train = every.records("train")
    alone = ~train.present.all(1)
    assert len(few.records("train")) == 100
    for m in range(4) if party is None else [party]:
        rows = (alone & train.present[:, m]).nonzero().flatten()
        assert torch.equal(few.extra_of(m), train.features_of(m, rows))
    assert every.extra_of(0) is None
