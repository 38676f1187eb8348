"""What a command prints as a warning."""

import json
import warnings

import lightning.pytorch

from lightning_vfl import datamodules
from lightning_vfl.commands import quiet


def test_a_warning_of_the_toolkit_is_one_line_without_a_place_in_its_code(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    usual = {
        module: warnings.formatwarning("slow", UserWarning, module.__file__, 1) for module in (json, lightning.pytorch)
    }
    quiet.one_line_each()
    for module in (quiet, datamodules):
        assert warnings.formatwarning("few records", UserWarning, module.__file__, 7) == "warning: few records\n"
    for module, form in usual.items():  # those of others say where they are from
        assert warnings.formatwarning("slow", UserWarning, module.__file__, 1) == form
        assert module.__file__ in form
