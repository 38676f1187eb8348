"""Requests that need no run are answered without torch and Lightning."""

import os
import subprocess
import sys

import pytest

from lightning_vfl import __version__
from lightning_vfl.commands.light import answer


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--version"], 0, f"lightning-vfl {__version__}\n"),
        (["-V"], 0, f"lightning-vfl {__version__}\n"),
        (["--help"], 0, "Train the model of a recipe."),
        (["list"], 0, "studies/overall"),
        (["list", "faults"], 0, "faults/cvfl_slow_50"),
        (["test", "--help"], 0, "--absent ABSENT"),
        ([], 2, "lightning-vfl: error: no command is given; give one of fit, validate,"),
        (["fti"], 2, "lightning-vfl: error: unknown command 'fti'; did you mean fit?\n"),
        (["list", "dta"], 2, "list: there are no recipes of kind 'dta'; did you mean data?\n"),
        (["list", "data", "faults"], 2, "list takes one kind of recipe; got data faults\n"),
        (["--print_completion", "fish"], 2, "needs the name of a shell; give one of bash, zsh, tcsh\n"),
        (["--print_completion"], 2, "needs the name of a shell; give one of bash, zsh, tcsh\n"),
    ],
)
def test_answers(arguments, status, said, capsys):
    assert answer(arguments) == status
    printed = capsys.readouterr()
    assert said in (printed.err if status else printed.out)


@pytest.mark.parametrize(
    "arguments", [["fit"], ["fit", "--help", "--config", "x"], ["-c", "all.yaml"], ["--confg", "x"]]
)
def test_other_requests_are_left(arguments, capsys):
    assert answer(arguments) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.processes
def test_neither_torch_nor_lightning_is_imported():
    code = "import sys; from lightning_vfl.commands.light import answer\n"
    code += (
        "for words in ('', '--version', '--help', 'list', 'fti', '--print_completion bash'): answer(words.split())\n"
    )
    code += "found = {'torch', 'lightning', 'numpy', 'jsonargparse'} & {*sys.modules}\n"
    code += "from lightning_vfl.commands.table import COMMANDS\n"
    code += "for name in COMMANDS: answer([name, '--help'])\n"
    code += "found |= {'torch', 'lightning', 'numpy', 'jsonargparse'} & {*sys.modules}; answer(['score', 'x'])\n"
    code += "answer(['align', 'mask'])\n"
    code += "sys.exit(len(found) + len({'torch', 'lightning', 'sklearn'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    none, *others = done.stderr.splitlines()
    assert none.startswith("lightning-vfl: error: no command is given; give one of fit, ")
    assert others == [
        "lightning-vfl: error: unknown command 'fti'; did you mean fit?",
        "lightning-vfl: error: score needs --tables; see score --help",
        "lightning-vfl: error: align mask needs --party and --parties and --table; see align mask --help",
    ]
    assert done.returncode == 0


def test_an_output_that_lacks_a_letter_gets_a_question_mark():
    say = "from lightning_vfl.commands.endings import orderly_end\nwith orderly_end(): print('ε = 1')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", say], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"? = 1\n", b"")
