"""The notebook of ``examples`` is executed in a kernel of its own; a mistake in it is one line and no exit."""

import os
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The code cells of the notebook after its execution."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    folder = tmp_path_factory.mktemp("notebook")
    os.environ.pop("PL_GLOBAL_SEED", None)  # of an earlier test; the kernel would inherit it
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        os.environ[name] = str(folder / name)
    kernels = folder / "JUPYTER_DATA_DIR" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    start = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernels / "kernel.json").write_text(f'{{"argv": {start}, "display_name": "tests", "language": "python"}}')
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Proactor event loop"),
]


def test_every_cell_but_the_last_runs(cells):
    assert not [cell.source for cell in cells[:-1] if any(out.output_type == "error" for out in cell.outputs)]
    assert "Digits (" in printed(cells[0])
    assert "'val/accuracy': 0.9" in printed(cells[1])
    assert any("image/png" in out.get("data", {}) for out in cells[2].outputs)
    assert int(printed(cells[4]).split()[-1]) > 0  # rounds


def test_a_mistake_is_one_line_and_no_exit(cells):
    (error,) = [out for out in cells[-1].outputs if out.output_type == "error"]
    assert error.ename == "UsageError"
    assert error.traceback == ["UsageError: model.aggregator: 'Meen' is not a known class; did you mean Mean?"]
