"""The recipe of the run that a checkpoint belongs to, so that the checkpoint is enough to use a trained model."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_vfl.commands.checkpoints import Pick, find_checkpoint, folders_of
from lightning_vfl.commands.optimizers import model_named
from lightning_vfl.commands.option_order import data_named
from lightning_vfl.commands.run_config import RUNS
from lightning_vfl.errors import ConfigurationError

ANEW = ("audit", "privacy")  # train, or plan a training, of the recipe from the start
_READERS = ("fit", "validate", "test", "predict", "contribution", "robustness", *ANEW)
_OPTION = "--ckpt_path"
_FOLDERS = ("--trainer.default_root_dir", "--trainer.logger.save_dir", "--trainer.logger.init_args.save_dir")
_ALL = ("seed_everything", "data", "model", "trainer", "experiment", "summary", "record", "predictions")
_BY_TRAINER = ("hpc", "registry")

Option = tuple[Sequence[str], Mapping[str, Any]]  # its words, and its recipe (empty: it is none)


def with_recipe_of_run(options: Sequence[Option]) -> list[Option]:
    """The options with the recipe of the checkpoint's run in front, as far as no option names what it gives.

    A model that an option names takes the place of the whole recipe but the data; data that an option names take the
    place of its data. So options on top of the run's recipe win, and the recipes of a whole run are used as they are.

    Args:
        options: of a command, the command first, recipes before other options.

    Raises:
        ConfigurationError: if there is no such checkpoint, or its folder has no recipe or several.
    """
    command = "".join(options[0][0]) if options else ""
    given = next((_value(words) for words, _ in options if words[0].partition("=")[0] == _OPTION), "")
    model, data = any(model_named(*one) for one in options), any(data_named(*one) for one in options)
    if command not in _READERS or not given or given.partition(":")[0] in _BY_TRAINER or (model and data):
        return list(options)
    pick = Pick.LAST if command == "fit" else Pick.BEST
    checkpoint = find_checkpoint(given, list(map(Path, {RUNS: None, **dict.fromkeys(_folders(options))})), pick)
    parts = [part for part in _ALL if part not in (("data",) if data else ()) and (part == "data" or not model)]
    recipe = {part: value for part, value in _recipe_of(Path(checkpoint)).items() if part in parts}
    text = yaml.safe_dump(recipe, default_flow_style=True, sort_keys=False, width=float("inf"))
    others = [one for one in options[1:] if one[0][0].partition("=")[0] != _OPTION]
    found: list[Option] = [] if command in ANEW else [([f"{_OPTION}={checkpoint}"], {})]
    return [options[0], (["--config", text], recipe), *others, *found]


def _value(words: Sequence[str]) -> str:
    return words[1] if len(words) > 1 else words[0].partition("=")[2]


def _folders(options: Sequence[Option]) -> Iterator[str]:
    """The folders of runs that the options name."""
    for words, recipe in options:
        if words[0].partition("=")[0] in _FOLDERS:
            yield _value(words)
        trainer = recipe.get("trainer")
        if isinstance(trainer, dict) and trainer.get("default_root_dir"):
            yield str(trainer["default_root_dir"])


def _recipe_of(checkpoint: Path) -> dict[str, Any]:
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
            recipe: dict[str, Any] = yaml.safe_load(files[0].read_text(encoding="utf-8"))
            return recipe
    raise ConfigurationError(
        f"{_OPTION} {checkpoint}: no config.yaml of its fit is beside it; give the recipe: --config data/digits "
        "--config protocol/mean"
    )
