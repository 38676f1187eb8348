"""How large the package is: ``python -m tests.size`` prints it; nothing depends on the numbers.

A token is what Python's ``tokenize`` gives, without comments, docstrings, ends of lines and indents; an f-string is one
token for Python 3.11, and several from Python 3.12 on. Lines are all lines of a file, empty ones, comments and
docstrings too. Validation is the tokens of refusals: ``raise`` statements, and the ``if`` whose body ends in one. The
core is what trains, protects and audits: not the commands, studies, reports, exports, trained models, serving,
federations and alignments.
"""

import ast
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_vfl"
NOT_CORE = ("commands", "study", "export", "report", "serving", "trained", "federation", "align")
BESIDE = "beside the packages"
NOT_COUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
Span = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Size:
    """The size of some files."""

    tokens: int
    validation: int
    lines: int
    classes: int
    files: int = 1

    def row(self, name: str) -> str:
        """A line of the table."""
        share, by_line = self.validation / max(self.tokens, 1), self.tokens / max(self.lines, 1)
        return f"{name:20}{self.tokens:9,}{self.lines:8,}{by_line:8.2f}{self.classes:9}{self.files:7}{share:12.1%}"


def total(sizes: Sequence[Size]) -> Size:
    """The size of all of them."""
    return Size(
        sum(size.tokens for size in sizes),
        sum(size.validation for size in sizes),
        sum(size.lines for size in sizes),
        sum(size.classes for size in sizes),
        sum(size.files for size in sizes),
    )


def measure(source: str) -> Size:
    """The size of a file with this text."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    docstrings, refusals = set(_docstrings(nodes)), list(_refusals(nodes))
    tokens = [
        token.start
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type not in NOT_COUNTED and token.start not in docstrings
    ]
    validation = [start for start in tokens if any(first <= start < last for first, last in refusals)]
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    return Size(len(tokens), len(validation), len(source.splitlines()), classes)


def _docstrings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, int]]:
    """Where docstrings begin. ast counts columns in bytes: a docstring begins a line, so this makes no difference."""
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                yield first.lineno, first.col_offset


def _refusals(nodes: Sequence[ast.AST]) -> Iterator[Span]:
    for node in nodes:
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            yield (node.lineno, node.col_offset), _end(node.body[-1])
        elif isinstance(node, ast.Raise):
            yield (node.lineno, node.col_offset), _end(node)


def _end(node: ast.stmt) -> tuple[int, int]:
    """Behind the statement, whatever its last line holds: a statement of this package ends its line."""
    return (node.end_lineno or node.lineno) + 1, 0


def packages(root: Path = PACKAGE) -> dict[str, Size]:
    """The sizes by package, the largest first."""
    files: dict[str, list[Size]] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = parts[0] if len(parts) > 1 else BESIDE
        files.setdefault(name, []).append(measure(path.read_text(encoding="utf-8")))
    sizes = {name: total(each) for name, each in files.items()}
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1].tokens))


def main() -> None:
    """Print the table."""
    sizes = packages()
    core = {name: size for name, size in sizes.items() if name not in NOT_CORE}
    rest = {name: size for name, size in sizes.items() if name in NOT_CORE}
    print(f"{'':20}{'tokens':>9}{'lines':>8}{'a line':>8}{'classes':>9}{'files':>7}{'validation':>12}")
    for title, part in (("core", core), ("not core", rest)):
        print(total(list(part.values())).row(title))
        for name, size in part.items():
            print(size.row(f"  {name}"))
    print(total(list(sizes.values())).row("all"))


if __name__ == "__main__":
    main()
