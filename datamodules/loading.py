"""What a data set loads, and what its constructor has made, in the form that the base class needs."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_vfl.errors import ConfigurationError

from .records.records import Split, SplitName


def loaded(
    load: Callable[[tuple[SplitName, ...]], Mapping[SplitName, Split]], names: tuple[SplitName, ...], who: str
) -> Mapping[SplitName, Split]:
    """The records of these splits, which may lack some of them, but not ``train``.

    Args:
        load: of the data set.
        names: of the splits.
        who: the name of the data set, for errors.

    Raises:
        ConfigurationError: for anything but a mapping of names to ``Split``.
    """
    try:
        splits = load(names)
    except KeyError as error:
        if error.args and error.args[0] in names:
            raise ConfigurationError(
                f"load of {who} has nothing for the split {error}, which it is asked for; leave a split that the data "
                "do not have out of what it returns"
            ) from error
        raise
    given = list(splits.values()) if isinstance(splits, Mapping) else [splits]
    if wrong := [value for value in given if not isinstance(value, Split)]:
        raise ConfigurationError(
            f"load of {who} must return a Split by the name of each split, such as {{'train': Split(features, labels, "
            f"ids)}}; got {type(wrong[0]).__name__}"
        )
    if "train" in names and "train" not in splits:
        raise ConfigurationError(
            f"load of {who} returns no split 'train', to which columns and scaling are fitted; return it when it is "
            "asked for"
        )
    return splits


def refuse_unmade(data: Any) -> None:
    """Accept a data set whose constructor has called that of ``VerticalDataModule``.

    Raises:
        ConfigurationError: naming the class.
    """
    if "_parts" not in vars(data):
        raise ConfigurationError(
            f"{type(data).__name__} has no partitioner and no batch size; call super().__init__(partitioner, **loader) "
            "in its __init__"
        )
