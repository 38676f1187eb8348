"""Write the table of coalitions into docs/results/coalitions.md: ``python -m tests.coalitions``."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.recovery import Recovery
from lightning_vfl.types import Roster
from tests.collusion import Slot, fallen, tolerated

PAGE = Path(__file__).parents[1] / "docs" / "results" / "coalitions.md"
BEGIN, END = "<!-- coalitions: made by python -m tests.coalitions -->", "<!-- coalitions end -->"
HEAD = (
    "| parties | layout | `recovery` | tolerated, the server tells the truth | tolerated, the server lies, and a "
    "record is always in sums of one set | tolerated, a record is in sums of all sets that the server chooses | what "
    "one more reads, if the server tells the truth |\n| --- | --- | --- | --- | --- | --- | --- |"
)


def cases(parties: int) -> Iterator[tuple[str, SecureLayer]]:
    """The settings that are told, by what is said of their recovery."""
    auto, majority = Recovery().needed(parties), parties // 2 + 1
    yield "none", SecureLayer("sum")
    if majority != auto:
        yield f"t = {majority}", SecureLayer("sum", recovery=Recovery(majority))
    yield f"`auto`, t = {auto}", SecureLayer("sum", recovery=Recovery())
    yield "none", SecureLayer("segments")


def kind(colluders: tuple[int, ...]) -> str:
    """A coalition by its roles; party 0 is C_0."""
    passive = len(colluders) - (0 in colluders)
    return " and ".join(["C_0"] * (0 in colluders) + [f"{passive} passive"] * bool(passive))


def described(read: frozenset[Slot], layer: SecureLayer, roster: Roster, colluders: tuple[int, ...]) -> str:
    """What has fallen."""
    slots = [slot for slot in layer.segments(roster).slots if slot[0] not in colluders]
    if read == set(slots):
        return "every other embedding"
    if {m for m, _ in read} == {0}:
        return f"C_0's columns of {len(read)} of {sum(m == 0 for m, _ in slots)} segments"
    return f"{len(read)} of {len(slots)} embeddings"


def table() -> str:
    """The Markdown table."""
    lines = [HEAD]
    for parties in (3, 4, 5, 6):
        roster = Roster.singles(parties, active=0)
        for recovery, layer in cases(parties):
            truth, lies = tolerated(layer, roster), tolerated(layer, roster, lies=True)
            found: dict[str, str] = {}
            for who in combinations(range(parties), truth + 1):
                if read := fallen(layer, roster, who):
                    name = kind(who) if layer.layout == "segments" else f"{len(who)}"
                    found[name] = f"{name}: {described(read, layer, roster, who)}"
            several = tolerated(layer, roster, lies=True, unchanged=True)
            alone = "none: the server alone reads every embedding" if several < 0 else str(several)
            numbers = (str(truth), str(lies), alone)
            cells = (str(parties), f"`{layer.layout}`", recovery, *numbers, "; ".join(found.values()))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
