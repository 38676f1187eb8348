"""What is counted as the size of a file."""

from tests.size import NOT_CORE, PACKAGE, Size, measure, packages, total

SOURCE = '''"""A docstring."""

# a comment


class Half:
    """Another docstring."""

    def of(self, x):
        if x < 0:  # why
            raise ValueError("x")
        return x / 2
'''


def test_what_is_counted():
    head = ["class", "Half", ":", "def", "of", "(", "self", ",", "x", ")", ":"]
    refusal = ["if", "x", "<", "0", ":", "raise", "ValueError", "(", '"x"', ")"]
    rest = ["return", "x", "/", "2"]
    expected = Size(tokens=len(head + refusal + rest), validation=len(refusal), lines=12, classes=1)
    assert measure(SOURCE) == expected
    assert total([expected, expected]) == Size(50, 20, 24, 2, 2)


def test_every_package_is_counted_once(monkeypatch):
    monkeypatch.setattr("tests.size.measure", lambda source: Size(len(source), 0, 0, 0))
    sizes = packages()
    assert set(NOT_CORE) < set(sizes)
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    assert sum(size.files for size in sizes.values()) == len(sources)
    assert sum(size.tokens for size in sizes.values()) == sum(map(len, sources))
