"""The planted bugs can be planted: `make test-slow` does it, and needs minutes."""

from collections import Counter
from pathlib import Path

from tests.bugs import BUGS

ROOT = Path(__file__).parents[2]


def test_the_code_of_every_bug_occurs_once():
    times = {bug.wrong: (ROOT / bug.file).read_text(encoding="utf-8").count(bug.text) for bug in BUGS}
    assert {wrong: count for wrong, count in times.items() if count != 1} == {}
    assert all(bug.instead != bug.text for bug in BUGS)
    assert max(Counter(bug.wrong for bug in BUGS).values()) == 1
