"""Help and completion offer exactly what the parsers accept, although they read a file alone."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lightning_vfl import datamodules
from lightning_vfl.commands.completion import SHELLS, options, script
from lightning_vfl.commands.known_classes import settings_of
from lightning_vfl.commands.short_help import known_options
from lightning_vfl.commands.table import COMMANDS
from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import AsyncVFL, CascadeVFL, DecoupledVFL, SplitVFL
from tests.further import further
from tests.options import of_command, of_recipes

QUICK = "fit", "privacy", "audit", "federate", "score", "align", "cut"


@pytest.mark.parametrize("command", [name if name in QUICK else further(name) for name in COMMANDS])
def test_the_file_of_options_is_what_the_parsers_say(command):
    """``python -m tests.options`` writes it again."""
    assert known_options()["commands"][command] == of_command(command)


def test_the_options_of_recipes_are_those_of_the_parser_and_the_classes():
    assert known_options()["recipe"] == of_recipes()
    offered = set(options("fit"))
    models = {name for kind in (SplitVFL, AsyncVFL, CascadeVFL, DecoupledVFL) for name in settings_of(kind)}
    assert {f"--model.{name}" for name in models} <= offered
    sets = [getattr(datamodules, name) for name in datamodules.__all__]
    data = {name for kind in sets if hasattr(kind, "layout") for name in settings_of(kind)}
    assert {f"--data.{name}" for name in data} <= offered
    assert {"--trainer.max_epochs", "--ckpt_path", "--config", "--model.help", "--seed_everything"} <= offered


COMPLETED = [
    ("fi", ["fit"]),
    ("fit --trainer.max_ep", ["--trainer.max_epochs"]),
    ("fit --model.aggr", ["--model.aggregator"]),
    ("test --config protocol/vf", ["protocol/vfedsec"]),
    ("privacy --target", ["--target-epsilon"]),
    ("list pol", ["policy"]),
    ("study studies/overa", ["studies/overall"]),
]


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("words", "expected"), [case if i < 4 else further(*case) for i, case in enumerate(COMPLETED)])
def test_bash_completes(words, expected, tmp_path):
    (tmp_path / "script").write_text(script("bash"))
    given = f"COMP_WORDS=(lightning-vfl {words}); COMP_CWORD={len(words.split())}"
    code = f'source ./script; {given}; _shtab_lightning_vfl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == expected


STARTS = {  # arguments, the terminal, and what a user has in the file of the shell
    "zsh": (["-f", "-i"], "dumb", 'unsetopt prompt_sp; autoload -Uz compinit; compinit -D -u; eval "$(cat script)"'),
    "tcsh": (["-f"], "vt100", "set edit; source script"),
}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("shell", STARTS)
def test_the_key_tab_completes(shell, tmp_path):
    """In the shell itself, at a terminal of its own."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(script(shell))
    options, kind, start = STARTS[shell]
    process, terminal = pty.fork()
    if not process:
        os.chdir(tmp_path)
        os.execvpe(shell, [shell, *options], os.environ | {"TERM": kind, "HOME": str(tmp_path)})
    try:
        typed(terminal, f"{start}; echo rea''dy\n", "ready")
        for words, (expected,) in COMPLETED:
            if shell == "zsh" or not {"--config", "study"} & set(words.split()):  # tcsh knows no names of recipes
                typed(terminal, f"lightning-vfl {words}\t", f"{' '.join(words.split()[:-1])} {expected} ".lstrip())
                os.write(terminal, b"\x15")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def typed(terminal, keys, awaited):
    """Type keys, and wait until the terminal shows a text."""
    os.write(terminal, keys.encode())
    shown, end = "", time.monotonic() + 20
    while awaited not in shown:
        assert time.monotonic() < end, f"{awaited!r} is not in {shown!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_with_commands_and_options(shell):
    text = script(shell)
    assert all(name in text for name in COMMANDS)
    assert "trainer.max_epochs" in text
    assert shell == "tcsh" or all(name in text for name in packaged())


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(ConfigurationError, match=r"needs the package shtab; pip install 'lightning-vfl\[completion\]'"):
        script("bash")
