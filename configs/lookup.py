"""Recipes by name.

The rule for ``--config NAME``: if a file called NAME exists, it is the recipe. Otherwise NAME is looked up among the
recipes that ship with the package, where a leading ``configs/`` and the ending ``.yaml`` may be left out:
``--config data/digits``.
"""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from lightning_vfl.errors import ConfigurationError, nearest


def packaged() -> dict[str, Traversable]:
    """The recipes that ship with the package, by name: ``data/digits`` -> its file."""

    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                yield prefix + entry.name.removesuffix(".yaml"), entry

    return dict(sorted(walk(files("lightning_vfl.configs"), "")))


def packaged_name(path: str) -> str | None:
    """The name of the packaged recipe with this path, as ``find_recipe`` gives it; None: it is a file of a user.

    Examples:
        >>> packaged_name(find_recipe("data/digits"))
        'data/digits'
    """
    file, folder = Path(path), Path(str(files("lightning_vfl.configs")))
    if path.lstrip().startswith("{") or not file.resolve().is_relative_to(folder.resolve()):
        return None
    return file.resolve().relative_to(folder.resolve()).as_posix().removesuffix(".yaml")


def find_recipe(name: str) -> str:
    """The path of a recipe: the file itself, or the packaged recipe of that name.

    Text that begins with ``{`` is a recipe written as JSON on the command line, and is returned as it is.

    Raises:
        ConfigurationError: if there is neither; the message names the nearest recipes.
    """
    if name.lstrip().startswith("{"):
        return name
    try:
        if Path(name).is_file():
            return name
    except OSError:
        raise ConfigurationError(
            f"{name[:40]}… has {len(name)} characters, too many for the name of a file; give a file, or a recipe as "
            "JSON, which begins with {"
        ) from None
    recipes = packaged()
    short = name.replace("\\", "/").removeprefix("./").removeprefix("configs/").removesuffix(".yaml")
    if short in recipes:
        return str(recipes[short])
    inside = [recipe for recipe in recipes if short.strip("/") in recipe.split("/")]
    folders = ", ".join(dict.fromkeys(recipe.split("/")[0] for recipe in recipes))
    other = f"give a file, or a recipe from one of: {folders}"
    if inside:
        hint = f"did you mean {' or '.join(inside)}?"
    else:
        files = [str(file) for file in Path(name).parent.glob("*.y*ml")]  # a user's own have the better chance
        hint = nearest(name, files, nearest(short, recipes, other, most=3), most=1)
    raise ConfigurationError(f"{name}: no such file, and no packaged recipe of that name; {hint}")
