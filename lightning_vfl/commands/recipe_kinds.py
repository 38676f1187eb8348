"""A packaged recipe of data, of a protocol or of a policy is complete: a run takes one of each kind."""

from collections.abc import Sequence

from lightning_vfl.configs import packaged_name
from lightning_vfl.errors import ConfigurationError

_ONE_OF = "data", "protocol", "policy"  # several recipes of faults add up, and those of the trainer overlay


def refuse_two_of_a_kind(files: Sequence[str]) -> None:
    """Accept recipes that overlay: at most one packaged recipe of each of these kinds, and any files of a user.

    Two recipes of a kind would mix, because the parser keeps the settings that only the first one gives
    (``protocol/mean`` after ``protocol/fedvs`` would wait for a threshold).

    Args:
        files: of the recipes, as ``find_recipe`` gives them.

    Raises:
        ConfigurationError: names the two recipes.
    """
    names = dict.fromkeys(name for name in map(packaged_name, files) if name is not None)
    for kind in _ONE_OF:
        first, *others = [name for name in names if name.partition("/")[0] == kind] or [""]
        if others:
            raise ConfigurationError(
                f"--config {first} and --config {others[0]}: a run takes one recipe of {kind}/, and the settings of "
                "these two would mix; leave one of them out"
            )
