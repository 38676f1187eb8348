"""The recipe of the run that a checkpoint belongs to, so that the checkpoint is enough to use a trained model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import get_loader

from lightning_vfl.commands.checkpoints import Pick, find_checkpoint, folders_of
from lightning_vfl.commands.run_config import RUNS
from lightning_vfl.commands.usage import value_of
from lightning_vfl.errors import ConfigurationError

ANEW = ("audit", "privacy")  # train, or plan a training, of the recipe from the start
_READERS = ("fit", "validate", "test", "predict", "contribution", "robustness", *ANEW)
_OPTION = "--ckpt_path"
_FOLDERS = ("--trainer.default_root_dir", "--trainer.logger.save_dir", "--trainer.logger.init_args.save_dir")
_ALL = ("seed_everything", "data", "model", "trainer", "experiment", "summary", "record", "predictions")
_BY_TRAINER = ("hpc", "registry")


def recipe_of_run(
    command: str, options: Sequence[list[str]], recipe: Mapping[str, Any]
) -> tuple[dict[str, Any], list[list[str]]]:
    """The recipe of the checkpoint's run, as far as no other recipe names what it gives, and the options without it.

    A model that another recipe names takes the place of the whole recipe but the data; data that it names take the
    place of its data. So recipes on top of the run's win, and the recipes of a whole run are used as they are.

    Args:
        command: that reads the recipes.
        options: of the command that are no recipes, each with its value.
        recipe: all that was given, merged.

    Raises:
        ConfigurationError: if there is no such checkpoint, or its folder has no recipe or several.
    """
    value = next((value_of(words) for words in options if words[0].partition("=")[0] == _OPTION), "")
    model = _names_class(recipe.get("model"))
    data = _names_class(recipe.get("data"))
    if command not in _READERS or not value or value.partition(":")[0] in _BY_TRAINER or (model and data):
        return {}, list(options)
    folders = [value_of(words) for words in options if words[0].partition("=")[0] in _FOLDERS]
    folders.append((recipe.get("trainer") or {}).get("default_root_dir") or RUNS)
    pick = Pick.LAST if command == "fit" else Pick.BEST
    checkpoint = find_checkpoint(value, [Path(folder) for folder in dict.fromkeys([RUNS, *folders])], pick)
    parts = [part for part in _ALL if (not data if part == "data" else not model)]
    of_run = {part: setting for part, setting in recipe_of(Path(checkpoint)).items() if part in parts}
    others = [words for words in options if words[0].partition("=")[0] != _OPTION]
    return of_run, others if command in ANEW else [*others, [f"{_OPTION}={checkpoint}"]]


def _names_class(spec: Any) -> bool:
    return isinstance(spec, dict) and "class_path" in spec


def recipe_of(checkpoint: Path) -> dict[str, Any]:
    """The recipe in the folder of the run that has written a checkpoint.

    The folder is searched and not the checkpoint: a recipe runs code, and a checkpoint may come from others.
    """
    for folder in folders_of(checkpoint):
        files = sorted(folder.glob("config*.yaml"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ConfigurationError(
                f"{_OPTION}: several runs have left their recipes in {folder} ({names}); give one with --config"
            )
        if files:
            recipe: dict[str, Any] = get_loader("yaml")(files[0].read_text(encoding="utf-8"))
            return recipe
    raise ConfigurationError(
        f"{_OPTION} {checkpoint}: no config.yaml of its fit is beside it; give the recipe: --config data/digits "
        "--config protocol/mean"
    )
