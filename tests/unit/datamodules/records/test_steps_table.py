"""The table of what is done with each column fits a terminal, and loses no word."""

from lightning_vfl.datamodules.records.steps_table import TableRow, steps_table
from lightning_vfl.terminal import WIDEST


def test_long_names_and_long_notes_go_on_below():
    note = (
        "numbers (decimal .), impute median; such as '$1.87'; only 8 different numbers: if they are codes, give one_hot"
    )
    rows = [
        *(
            TableRow("insurance", f"claims_of_the_year_{year}", "numbers and text", 0.125, note)
            for year in range(2000, 2020)
        ),
        TableRow("vet", "age", "numbers", 0.0, "numbers"),
    ]
    lines = steps_table(rows).splitlines()
    assert max(map(len, lines)) <= WIDEST
    for start, words in ((lines[0].index("column"), "claims_of_the_year_2000, claims"), (lines[0].index("what"), note)):
        end = lines[0].find("kind") if start < lines[0].index("kind") else None
        assert words in " ".join(line[start:end].strip() for line in lines[1:-1])
    assert lines[-1].split() == ["vet", "age", "numbers", "0.0", "%", "numbers"]
    assert [line.partition(" ")[0] for line in lines if line[0] != " "] == ["party", "insurance", "vet"]
