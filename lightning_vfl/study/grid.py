"""The runs of a study: their names, their arguments, and the fingerprint that identifies their results."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lightning_vfl import __version__
from lightning_vfl.configs import find_recipe
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study.spec import Study

# A study reads a run from its history. Other outputs are switched off to save time; settings may switch them on.
_QUIET = {
    "trainer.logger": False,
    "trainer.enable_checkpointing": False,
    "trainer.enable_progress_bar": False,
    "trainer.enable_model_summary": False,
    "summary.enabled": False,
}

MACHINE = "machine/"  # begins the metrics that differ from machine to machine


@dataclass(frozen=True)
class Run:
    """One cell of the grid.

    Args:
        recipe: name of its recipes in the study.
        override: name of its override; empty where the study has none.
        seed: of ``seed_everything``.
        arguments: of the command line.
        test: whether the last weights are evaluated on the test records.
        machine: whether the study names a metric of the machine.
        folder: where its result, its log and its failure are written.
        fingerprint: hash of recipes, settings and version; only a result with the same fingerprint is used again.
    """

    recipe: str
    override: str
    seed: int
    arguments: tuple[str, ...]
    test: bool
    machine: bool
    folder: Path
    fingerprint: str

    @property
    def name(self) -> str:
        """Recipe and override; the figures draw one line a name."""
        return line_name(self.recipe, self.override)

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    @property
    def result(self) -> Path:
        return self.folder / "result.parquet"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def failure(self) -> Path:
        return self.folder / "failed.json"

    @property
    def under_way(self) -> Path:
        """Exists while the run is being carried out; after a worker has died, it shows which runs were affected."""
        return self.folder / "under_way"


def line_name(recipe: str, override: str) -> str:
    """The name of the runs of a recipe with an override.

    Examples:
        >>> line_name("VAFL", ""), line_name("VAFL", "batch 32")
        ('VAFL', 'VAFL, batch 32')
    """
    return f"{recipe}, {override}" if override else recipe


def grid(study: Study, out: Path) -> Iterator[Run]:
    """The runs of a study, recipe by recipe.

    Raises:
        ConfigurationError: if a recipe is not found.
    """
    for recipe, entry in study.recipes.items():
        found = [_found(name, f"recipes.{recipe}") for name in entry.recipes]
        found += [_found(name, "common") for name in study.common]
        for (override, settings), seed in product(study.overrides.items(), study.seeds):
            # layers are not merged: of an option that is repeated, the last counts, and `trainer.callbacks+` adds up
            layers = (_QUIET, study.settings, entry.settings, settings, {"seed_everything": seed})
            options = [f"--{key}={_text(value)}" for layer in layers for key, value in layer.items()]
            yield Run(
                recipe,
                override,
                seed,
                ("fit", *(f"--config={path}" for path in found), *options),
                study.test,
                any(name.startswith(MACHINE) for name in study.metrics),
                out / "runs" / recipe / override / f"seed-{seed}",
                _fingerprint(found, options, study.test),
            )


def _found(name: str, where: str) -> str:
    try:
        found = find_recipe(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return str(Path(found).resolve()) if Path(found).is_file() else found  # workers may have another current folder


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _fingerprint(recipes: list[str], options: list[str], test: bool) -> str:
    """The hash of the recipes' texts, not of their paths, so that results stay valid when the checkout is moved."""
    contents = [Path(path).read_text(encoding="utf-8") if Path(path).is_file() else path for path in recipes]
    return hashlib.sha256(json.dumps([__version__, contents, options, test]).encode()).hexdigest()
