"""Law: partitioners and normalisers print as they did before; checkpoints keep these texts and are held to them."""

import pytest

from lightning_vfl.datamodules import (
    BankMarketing,
    ColumnsByCorrelation,
    ColumnsByImportance,
    ContiguousColumns,
    DirichletColumns,
    Grid,
    Groups,
    LabelPartition,
    LimitedOverlap,
    MissingAtTest,
    NamedColumns,
    OverlappingColumns,
    RandomColumns,
    RowStrips,
    Standardise,
    StandardiseNumbers,
    StandardiseParty,
    Unchanged,
    Views,
)

TWO = ContiguousColumns(2)
PRINTED = {
    "ContiguousColumns(parties=2)": TWO,
    "RandomColumns(parties=5, seed=0)": RandomColumns(5),
    "NamedColumns(columns={'a': ['x', 'y']}, drop_rest=False)": NamedColumns({"a": ["x", "y"]}),
    "RowStrips(parties=4)": RowStrips(4),
    "Grid(rows=2, columns=2)": Grid(),
    "Views()": Views(),
    "Views(parties=6)": Views(6),
    "DirichletColumns(parties=4, alpha=0.5, seed=0)": DirichletColumns(4, 0.5),
    "DirichletColumns(parties=2, alpha=(1.0, 3.0), seed=7)": DirichletColumns(2, [1, 3], 7),
    "ColumnsByCorrelation(parties=3, beta=1.0, seed=0)": ColumnsByCorrelation(3, 1),
    "ColumnsByImportance(parties=3, alpha=1.0, importance='mutual_information', seed=0)": ColumnsByImportance(3),
    "ColumnsByImportance(parties=2, alpha=1.0, importance=(1.0, 0.0), seed=0)": ColumnsByImportance(
        2, importance=[1, 0]
    ),
    "ColumnsByImportance(parties=2, alpha=1.0, importance={'x': 0.5}, seed=1)": ColumnsByImportance(
        2, importance={"x": 0.5}, seed=1
    ),
    "Groups(partitioner=ContiguousColumns(parties=2), members=(1, 2), seed=0)": Groups(TWO, [1, 2]),
    "LimitedOverlap(partitioner=ContiguousColumns(parties=2), aligned=128, seed=0, only_aligned=False)": (
        LimitedOverlap(TWO)
    ),
    "LabelPartition(partitioner=ContiguousColumns(parties=2), active=None, classes=None, file=None, seed=0)": (
        LabelPartition(TWO)
    ),
    "LabelPartition(partitioner=None, active=None, classes=((0, 1), (1, 2)), file=None, seed=0)": LabelPartition(
        classes=[[0, 1], [1, 2]]
    ),
    "LabelPartition(partitioner=None, active=None, classes=None, file='labels.csv', seed=3)": LabelPartition(
        file="labels.csv", seed=3
    ),
    "MissingAtTest(partitioner=ContiguousColumns(parties=2), parties=(1,), splits=('val', 'test', 'predict'))": (
        MissingAtTest(TWO, [1])
    ),
    "OverlappingColumns(partitioner=ContiguousColumns(parties=2), shared=0.2, holders=None, seed=0)": (
        OverlappingColumns(TWO)
    ),
    "OverlappingColumns(partitioner=None, shared=('age',), holders=2, seed=0)": OverlappingColumns(
        shared=["age"], holders=2
    ),
    "Standardise()": Standardise(),
    "StandardiseNumbers()": StandardiseNumbers(),
    "StandardiseParty()": StandardiseParty(),
    "Unchanged()": Unchanged(),
}


@pytest.mark.parametrize("text", PRINTED)
def test_printed_forms_are_those_of_earlier_checkpoints(text):
    assert repr(PRINTED[text]) == text


def test_the_usual_cut_is_printed_too():
    assert BankMarketing().state_dict() == {
        "partitioner": (
            "NamedColumns(columns={'active': ['housing', 'loan', 'contact', 'day', 'month', 'campaign', 'pdays', "
            "'previous', 'poutcome'], 'clients_1_2': ['default', 'balance'], 'clients_3_4': ['age', 'job', 'marital', "
            "'education']}, drop_rest=False)"
        ),
        "normaliser": "StandardiseNumbers()",
        "seed": 0,
        "drop": ("duration",),
        "categorical": (
            *("job", "marital", "education", "default", "housing", "loan"),
            *("contact", "day", "month", "poutcome"),
        ),
        "val_share": 0.1,
        "test_share": 0.2,
    }
