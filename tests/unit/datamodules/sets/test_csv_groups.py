"""Tables that form a group: against pandas, and every refusal."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.datamodules import ContiguousColumns, CSVTables, Groups, Unchanged, Views
from lightning_vfl.errors import ConfigurationError

from ..miniature import write_csv

SPLITS = ("train", "val", "test")
JOBS = ("clerk", "farmer", "cook")
GROUPS = [["north", "south"]]


def bank(records: int = 60) -> dict[str, list[Any]]:
    """Ids, a label and two numbers, in an order that is not sorted."""
    ids = [(7 * i) % records for i in range(records)]
    return {"id": ids, "y": [i % 3 % 2 for i in ids], "age": [20 + i for i in ids], "income": [i * 1.5 for i in ids]}


def shop(ids: Any, **more: Any) -> dict[str, list[Any]]:
    """Two numbers of some ids, none of them 0."""
    ids = list(ids)
    columns = {"id": ids, "visits": [i % 5 + 1 for i in ids], "spent": [i / 4 + 1 for i in ids]}
    return columns | {name: [value(i) for i in ids] for name, value in more.items()}


NORTH, SOUTH, TAX = range(39, 9, -2), range(10, 70, 2), range(55)  # odd 11..39, even 10..68, 0..54


@pytest.fixture
def files(tmp_path):
    south = shop(SOUTH)
    tables = {
        "north": shop(NORTH),
        "bank": bank(),
        "south": {name: south[name] for name in ("spent", "id", "visits")},  # the same columns in another order
        "tax": {"id": list(TAX), "paid": [i * 2 + 1 for i in TAX]},
    }
    return {party: write_csv(tmp_path / f"{party}.csv", columns) for party, columns in tables.items()}


def open_tables(files, **settings: Any):
    usual: dict[str, Any] = {"label_party": "bank", "label_column": "y", "normaliser": Unchanged(), "batch_size": 4}
    data = CSVTables(files, **usual | {"groups": GROUPS} | settings)
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def joined(data) -> pd.DataFrame:
    """All records of all splits, sorted by id: features, labels and who holds what."""
    parts = []
    for name in SPLITS:
        records = data.records(name)
        part = pd.DataFrame(records.features.numpy(), index=records.ids, columns=list(data.layout.columns))
        held = pd.DataFrame(records.present.numpy(), index=records.ids, columns=list(data.layout.view_names))
        parts.append(part.assign(label=records.labels.numpy()).join(held.add_prefix("holds ")))
    return pd.concat(parts).sort_index()


def oracle(overlap: str) -> pd.DataFrame:
    both = pd.DataFrame(bank()).rename(columns={"y": "label"})
    for party, columns in (("north", shop(NORTH)), ("south", shop(SOUTH))):
        own = pd.DataFrame(columns).rename(columns={"visits": f"{party}.visits", "spent": f"{party}.spent"})
        both = both.merge(own, on="id", how="left")
    both = both.merge(pd.DataFrame({"id": TAX, "paid": [i * 2 + 1 for i in TAX]}), on="id", how="left")
    both = both.set_index("id").sort_index()
    held = both[["north.visits", "income", "south.visits", "paid"]].notna()
    held.columns = ["holds north", "holds bank", "holds south", "holds tax"]
    wanted = ["north.visits", "north.spent", "age", "income", "south.visits", "south.spent", "paid"]
    both = both[wanted].fillna(0).astype(np.float32).assign(label=both["label"]).join(held)
    common = (held["holds north"] | held["holds south"]) & held["holds tax"]
    return both[common] if overlap == "inner" else both


@pytest.mark.parametrize("overlap", ["inner", "keep"])
def test_the_join_equals_pandas(files, overlap):
    data = open_tables(files, overlap=overlap)
    pd.testing.assert_frame_equal(joined(data), oracle(overlap), check_names=False)
    assert data.party_shapes == ((2,), (2,), (2,), (1,))
    assert data.layout.view_names == ("north", "bank", "south", "tax")
    assert data.party_groups == ((0, 2), (1,), (3,))


def test_a_common_record_is_with_one_table_of_every_group(files):
    data = open_tables(files)
    table = joined(data)
    assert table.index.tolist() == sorted(set(bank()["id"]) & (set(NORTH) | set(SOUTH)) & set(TAX))
    assert (table["holds north"] ^ table["holds south"]).all()
    assert table[["holds bank", "holds tax"]].all(axis=None)


def test_without_groups_the_same_tables_have_nothing_in_common(files):
    with pytest.raises(ConfigurationError, match="the tables have no id in common"):
        open_tables(files, groups=())
    data = open_tables(files, groups=(), overlap="keep")
    assert data.party_groups == ((0,), (1,), (2,), (3,))


def test_the_order_of_tables_in_a_group_changes_nothing(files):
    one, other = open_tables(files), open_tables(files, groups=[["south", "north"]])
    pd.testing.assert_frame_equal(joined(one), joined(other))
    assert one.party_groups == other.party_groups
    other.load_state_dict(one.state_dict())


def test_the_label_party_may_be_a_group_alone_and_hold_the_labels_alone(files, tmp_path):
    assert open_tables(files, groups=[*GROUPS, ["bank"]]).party_groups == ((0, 2), (1,), (3,))
    write_csv(tmp_path / "bank.csv", {name: bank()[name] for name in ("id", "y")})
    data = open_tables(files)
    assert data.party_groups == ((0, 1), (2,))
    assert data.layout.view_names == ("north", "south", "tax")


def test_a_group_of_a_single_table_changes_nothing(files):
    tables = {party: files[party] for party in ("bank", "tax")}
    usual: dict[str, Any] = {"tables": tables, "label_party": "bank", "label_column": "y"}
    data = CSVTables(**usual, groups=[["bank"], ["tax"]])
    data.setup("fit")
    assert data.records("train").present is None
    assert data.party_groups == ((0,), (1,))
    data.load_state_dict(CSVTables(**usual).state_dict())


def test_a_group_that_has_only_ids_is_no_feature_party(files, tmp_path):
    for party, ids in (("north", NORTH), ("south", SOUTH)):
        write_csv(tmp_path / f"{party}.csv", {"id": list(ids)})
    data = open_tables(files)
    assert data.layout.view_names == ("bank", "tax")
    assert data.party_groups == ((0,), (1,))
    assert joined(data).index.tolist() == oracle("inner").index.tolist()


# ---- categories


def with_jobs(tmp_path, north, south, **more: Any):
    for party, ids, job in (("north", NORTH, north), ("south", SOUTH, south)):
        write_csv(tmp_path / f"{party}.csv", shop(ids, job=job))
    return more


def test_categories_are_those_of_all_training_rows_of_the_group(files, tmp_path):
    with_jobs(tmp_path, lambda i: JOBS[i // 2 % 2], lambda i: JOBS[1 + i // 2 % 2])  # clerk, farmer; farmer, cook
    data = open_tables(files, categorical=["job"])
    names = [f"job={job}" for job in sorted(JOBS)]
    assert data.party_shapes == ((5,), (2,), (5,), (1,))
    assert list(data.layout.columns[:5]) == [f"north.{name}" for name in ("visits", "spent", *names)]
    assert list(data.layout.columns[7:12]) == [f"south.{name}" for name in ("visits", "spent", *names)]
    table = joined(data)
    for i in table.index:
        party, job = ("north", JOBS[i // 2 % 2]) if i in NORTH else ("south", JOBS[1 + i // 2 % 2])
        hot = [name for name in data.layout.columns if "job=" in name and table.loc[i, name] == 1]
        assert hot == [f"{party}.job={job}"]


def test_a_category_that_no_training_row_of_the_group_has_is_zeros(files, tmp_path):
    rare = int(open_tables(files).records("test").ids[0])
    with_jobs(tmp_path, *[lambda i: "astronaut" if i == rare else JOBS[i % 3]] * 2)
    data = open_tables(files, categorical=["job"])
    party = "north" if rare in NORTH else "south"
    assert [name for name in data.layout.columns if "astronaut" in name] == []
    assert joined(data).loc[rare, [f"{party}.job={job}" for job in JOBS]].tolist() == [0.0] * 3


def test_codes_are_text_whatever_the_other_rows_of_a_file_are(files, tmp_path):
    """Alone, the codes of north would be read as the numbers 1 and 2."""
    with_jobs(tmp_path, lambda i: f"0{i // 2 % 2 + 1}", lambda i: ("01", "02", "x")[i // 2 % 3])
    data = open_tables(files, categorical=["job"])
    assert [name for name in data.layout.columns if "north.job" in name] == [
        f"north.job={c}" for c in ("01", "02", "x")
    ]


# ---- refusals


def refused(files, message: str, **settings: Any) -> None:
    with pytest.raises(ConfigurationError) as error:
        open_tables(files, **settings)
    assert str(error.value) == message


def test_other_columns(files, tmp_path):
    write_csv(
        tmp_path / "south.csv", {name: values for name, values in shop(SOUTH, tax=int).items() if name != "spent"}
    )
    refused(
        files,
        "tables 'north' and 'south' of a group have different columns (only 'north' has spent; only 'south' has tax); "
        "give the tables of a group the same columns",
    )
    write_csv(tmp_path / "south.csv", shop(SOUTH, tax=int))
    refused(
        files,
        "tables 'north' and 'south' of a group have different columns (only 'south' has tax); give the tables of a "
        "group the same columns",
    )


def test_a_record_in_two_tables(files, tmp_path):
    write_csv(tmp_path / "south.csv", shop([69, 68, 31, 11, 12]))
    refused(
        files,
        "2 ids are in several tables of the group 'north', 'south', first 11 in 'north' and 'south'; tables of a group "
        "hold different records, so leave each in one of them",
    )


def test_a_record_in_two_tables_matters_even_where_it_is_not_joined(files, tmp_path):
    write_csv(tmp_path / "north.csv", shop([*NORTH, 999]))
    write_csv(tmp_path / "south.csv", shop([*SOUTH, 999]))
    with pytest.raises(ConfigurationError, match=r"1 ids are in several tables .* first 999 in 'north' and 'south'"):
        open_tables(files)


def test_bad_values_are_named_with_their_table(files, tmp_path):
    write_csv(tmp_path / "south.csv", shop(SOUTH, visits=lambda i: "?" if i == 20 else i))
    with pytest.raises(
        ConfigurationError, match=r"column 'visits' of party 'south' are not numbers, first '\?' of record 20"
    ):
        open_tables(files)
    write_csv(tmp_path / "south.csv", shop(SOUTH, visits=lambda i: None if i == 22 else i))
    with pytest.raises(ConfigurationError, match=r"1 values of column 'visits' of party 'south' are missing, .*ord 22"):
        open_tables(files)


@pytest.mark.filterwarnings("ignore:label 'y' has classes of fewer than 10 records")
def test_a_table_without_training_records(files, tmp_path):
    write_csv(tmp_path / "north.csv", shop(range(501, 530, 2)))
    with pytest.raises(
        ConfigurationError,
        match=r"party 'north' holds none of the \d+ training records; use another seed or overlap, or leave its table",
    ):
        open_tables(files)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": [["north", "east"]]}, "groups names the unknown table 'east'; use north, bank, south, tax"),
        ({"groups": [["north", "south"], ["tax", "south"]]}, "groups names table 'south' 2 times; name it once"),
        ({"groups": [["north", "north"]]}, "groups names table 'north' 2 times; name it once"),
        ({"groups": [["north", "south"], []]}, "groups has an empty group; name its tables or leave it out"),
        (
            {"groups": [["north", "bank"]]},
            "groups has label_party 'bank' in a group with other tables; take it out of the group",
        ),
        (
            {"partitioner": ContiguousColumns(2)},
            "with groups the tables must be the parties; leave out ContiguousColumns or groups",
        ),
        (
            {"partitioner": Groups(Views(), [1, 1, 1, 1])},
            "with groups the tables must be the parties; leave out Groups or groups",
        ),
    ],
)
def test_impossible_settings(files, settings, message):
    refused(files, message, **settings)


def test_a_single_table_written_as_text_is_no_group(files):
    with pytest.raises(ConfigurationError, match="groups must be a list of lists of table names; got 'north'"):
        open_tables(files, groups=["north", "south"])


def test_records_may_be_shared_out_by_groups_of_columns_instead(files):
    """Without groups of tables, the joined columns may be cut and shared out like those of any data."""
    tables = {party: files[party] for party in ("bank", "tax")}
    data = open_tables(tables, groups=(), partitioner=Groups(None, [1, 2]))
    assert data.party_shapes == ((2,), (1,), (1,))
    assert data.party_groups == ((0,), (1, 2))
    assert data.records("train").present[:, 1:].sum(1).tolist() == [1] * len(data.records("train"))
