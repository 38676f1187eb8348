"""The files of a run that its report needs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_vfl.errors import ConfigurationError, on_one_line

RECORDS = {"fit": "record-fit.json", "test": "record-test.json"}


@dataclass(frozen=True)
class RunFiles:
    """What a run has left in its folder.

    Args:
        folder: of the run.
        recipe: the text of its config.yaml; empty if there is none.
        records: the records of ``fit`` and ``test``, of those that were made.
    """

    folder: Path
    recipe: str
    records: dict[str, dict[str, Any]]

    @property
    def latest(self) -> dict[str, Any]:
        """The record of the fit, or of the test if there is no fit."""
        return next(iter(self.records.values()))

    def outcomes(self) -> list[dict[str, Any]]:
        """Outcomes of the test, and before them those of the last validation."""
        found = (record["outcomes"] for record in self.records.values())
        return [one for one in found if {"confusion", "pairs"} & one.keys()]


def read_run(folder: Path) -> RunFiles:
    """Read the folder of a run.

    Raises:
        ConfigurationError: if it holds no record, or one that cannot be read.
    """
    found = {stage: folder / name for stage, name in RECORDS.items() if (folder / name).is_file()}
    if not found:
        raise ConfigurationError(
            f"{folder} holds no {RECORDS['fit']}; give the folder of a run of lightning-vfl fit, which has config.yaml "
            "and metrics.csv (a run with record.enabled: false writes no record)"
        )
    records = {}
    for stage, path in found.items():
        try:
            records[stage] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read ({on_one_line(error)}); run it again") from None
    recipe = folder / "config.yaml"
    return RunFiles(folder, recipe.read_text(encoding="utf-8") if recipe.is_file() else "", records)
