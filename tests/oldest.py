"""``python -m tests.oldest``: train with the oldest releases of packages that pyproject.toml allows.

They are installed into ``.oldest``. Torch alone is the release of constraints.txt: other builds take gigabytes.
Then every recipe of a protocol is fitted for an epoch, and commands of each kind run once.
"""

import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".oldest"
BIN = FOLDER / "bin"
QUIET = ("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")
DIGITS = ("--config", "data/digits", "--config", "protocol/mean")
PHASES = {
    "dvfl": ("--model.guest_epochs", "1", "--model.replay_epochs", "0", "--trainer.max_epochs", "2"),
    "one_shot": ("--model.local_epochs", "1", "--trainer.max_epochs", "3"),
}


def oldest() -> Iterator[str]:
    """The oldest release of each dependency, as pip's constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for wanted in map(Requirement, project["dependencies"]):
        bounds = [bound.version for bound in wanted.specifier if bound.operator == ">="]
        if wanted.name != "torch":
            yield f"{wanted.name}=={bounds[0]}"
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    yield next(line for line in pinned if line.startswith("torch=="))


def install() -> None:
    """Make the environment anew."""
    venv.create(FOLDER, clear=True, with_pip=True)
    constraints = FOLDER / "oldest.txt"
    constraints.write_text("\n".join(oldest()) + "\n", encoding="utf-8")
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(constraints), "-e", str(ROOT)], check=True)


def commands() -> Iterator[tuple[str, ...]]:
    """What is run, one after the other, in one folder."""
    for recipe in sorted((ROOT / "configs/protocol").glob("*.yaml")):
        more = PHASES.get(recipe.stem, ("--trainer.max_epochs", "1"))
        yield "fit", "--config", "data/digits", "--config", f"protocol/{recipe.stem}", *more, *QUIET
    yield (
        "fit",
        *DIGITS,
        "--config",
        "policy/stale",
        "--config",
        "faults/unreliable",
        "--trainer.max_epochs",
        "1",
        *QUIET,
    )
    yield "fit", *DIGITS, "--trainer.max_epochs", "1", *QUIET
    yield "fit", *DIGITS, "--ckpt_path", "last", "--trainer.max_epochs", "2", *QUIET
    yield "test", *DIGITS, "--ckpt_path", "best", "--absent", "all", *QUIET
    yield "predict", *DIGITS, "--ckpt_path", "best", "--predictions.path", "p.parquet", *QUIET
    yield "privacy", "--config", "data/digits", "--config", "protocol/pbm"
    yield "audit", *DIGITS, "--attacker", "server", "--trainer.max_epochs", "1", "--report", "audit.html", *QUIET
    yield "report", "runs/lightning_logs/version_0"
    yield "cut", "--config", "data/digits", "--out", "parts"
    yield "fit", "--help"
    yield "fit", *DIGITS, "--print_config"


def main() -> int:
    """Exit status 1 if a command fails."""
    install()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for words in commands():
            done = subprocess.run([str(BIN / "lightning-vfl"), *words], cwd=folder, capture_output=True, text=True)
            told = "" if done.returncode == 0 else f": {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            print(f"{'failed' if told else 'works'}  {' '.join(words)[:90]}{told}", flush=True)
            failed += bool(told)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
