"""The rows that the scripts of results keep, and the part of a page that they write."""

import importlib
import sys

import pytest

from .checkout import ROOT

sys.path.append(str(ROOT / "docs" / "results"))
kept_rows = importlib.import_module("kept_rows")


def test_rows_are_kept_and_read_again(tmp_path):
    table = tmp_path / "rows.csv"
    assert kept_rows.read(table) == []
    kept_rows.add(table, ("name", "value"), [{"name": "a, b", "value": 1}])
    kept_rows.add(table, ("name", "value"), [{"name": "c", "value": 0.1}, {"name": "d", "value": ""}])
    rows = [{"name": "a, b", "value": "1"}, {"name": "c", "value": "0.1"}, {"name": "d", "value": ""}]
    assert kept_rows.read(table) == rows
    assert table.read_text().splitlines()[0] == "name,value"


def test_only_what_is_between_the_marks_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin -->\nold\n<!-- end -->\nafter\n")
    kept_rows.write_between(page, "<!-- begin -->", "<!-- end -->", "new")
    once = page.read_text()
    assert once == "before\n<!-- begin -->\n\nnew\n\n<!-- end -->\nafter\n"
    kept_rows.write_between(page, "<!-- begin -->", "<!-- end -->", "new")
    assert page.read_text() == once


def test_a_page_without_the_marks_is_left_as_it_is(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("without marks\n")
    with pytest.raises(ValueError, match="has no <!-- begin --> before <!-- end -->"):
        kept_rows.write_between(page, "<!-- begin -->", "<!-- end -->", "new")
    assert page.read_text() == "without marks\n"
