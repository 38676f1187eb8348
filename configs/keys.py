"""YAML in which a key that is given twice is an error: a YAML reader would silently keep the last one."""

from pathlib import Path
from typing import Any

import yaml

from lightning_vfl.errors import ConfigurationError, on_one_line

MERGED = "tag:yaml.org,2002:merge"  # of the key <<


class RepeatedKey(yaml.MarkedYAMLError):
    """A mapping of a YAML file has a key twice."""


def refuse_repeated_keys(text: str) -> None:
    """Accept YAML whose mappings have every key once.

    Raises:
        RepeatedKey: for a key that is given twice, naming it and its line.
        yaml.YAMLError: for a text that is not YAML.

    Examples:
        >>> refuse_repeated_keys("trainer: {max_epochs: 1}")
    """
    pending = [yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
    seen: set[int] = set()  # an alias may name a mapping again, even one that it is part of
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
        if not isinstance(node, yaml.MappingNode):
            continue
        keys: set[tuple[str, str]] = set()
        for key, value in node.value:
            pending += [key, value]
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGED:  # of several merges, none is lost
                continue
            if (key.tag, key.value) in keys:  # the tag tells the number 1 from the text '1'
                raise RepeatedKey(None, None, f"the key '{key.value}' is given twice", key.start_mark)
            keys.add((key.tag, key.value))


def read_yaml(path: Path, what: str = "a YAML file") -> Any:
    """The content of a YAML file; ``what``: what to give in place of a file that cannot be read.

    Raises:
        ConfigurationError: for a file that cannot be read, that is not YAML, or that has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        refuse_repeated_keys(text)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: {on_one_line(error)}; correct the YAML") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{path} cannot be read ({reason}); give {what}") from None
