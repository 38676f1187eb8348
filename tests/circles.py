"""``python -m tests.circles``: refuse modules that import each other, imports for types alone included."""

import sys
from graphlib import CycleError, TopologicalSorter

import grimp


def circle(package: str) -> list[str]:
    """The modules of one circle of imports, the first one at both ends; empty if there is none."""
    graph = grimp.build_graph(package, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


if __name__ == "__main__":
    sys.path.insert(0, ".lint")  # where the mapped folders are one tree
    if found := circle("lightning_vfl"):
        sys.exit("these modules import each other: " + " <- ".join(found))
