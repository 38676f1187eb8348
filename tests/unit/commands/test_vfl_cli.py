"""The settings that a command reads are those that the parser of all commands reads."""

import os
import subprocess
import sys

import pytest

from lightning_vfl.commands.recipes import merge_arguments
from lightning_vfl.commands.vfl_cli import VFLCLI
from tests.further import few

COMMANDS = {
    "recipes, faults and options": (
        *("fit", "--config", "data/digits", "--config", "protocol/fedvs", "--config", "faults/unreliable"),
        *("--config", "trainer/demo", "--model.width", "7", "--trainer.callbacks+", "LearningCurve"),
    ),
    "no recipe": ("test", "--data", "Digits", "--model", "SplitVFL", "--model.aggregator", "MaskedSum"),
    "a command without recipes": ("keys", "somewhere", "--parties", "3"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_settings_are_those_of_the_parser_of_all_commands(name):
    cli = VFLCLI(COMMANDS[name])
    assert cli.config == cli.parser.parse_args(merge_arguments(COMMANDS[name]))


STOPPED = """
import importlib.abc, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
number, place, sent = getattr(signal, sys.argv[1]), sys.argv[2], []

def send(*_):
    if not sent:
        sent.append(place)
        os.kill(os.getpid(), number)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == place:
            send()

sys.meta_path.insert(0, Finder())
from lightning_vfl.cli import main
if place.startswith("on_"):
    from lightning.pytorch import Callback
    setattr(Callback, place, send)
main(["fit", "--config", "data/digits", "--config", "protocol/mean", "--trainer.max_epochs", "2",
      "--trainer.limit_train_batches", "2", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"])
"""
PLACES = ("lightning_vfl.commands.light", "torch", "on_sanity_check_start", "on_train_batch_end", "on_validation_end")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("name", "word", "status"), [("SIGINT", "interrupted", 130), ("SIGTERM", "terminated", 143)])
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_ends_the_program_in_one_line(tmp_path, name, word, status, place):
    """While it imports, and in each phase of a fit; the trainer alone would end with status 1 or 0."""
    command = [sys.executable, "-W", "ignore", "-c", STOPPED, name, place]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    told = [line for line in done.stderr.splitlines() if not line.startswith(("Seed set", "GPU av", "TPU av"))]
    assert told == [f"lightning-vfl: error: {word}"]
    assert done.returncode == status


def piped(arguments, output):
    command = [sys.executable, "-m", "lightning_vfl", *arguments]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=300)


PRINTING = {
    "an answer without torch": ["list"],
    "a recipe": ["fit", "--config", "data/digits", "--config", "protocol/mean", "--print_config"],
}


@pytest.mark.processes
@pytest.mark.parametrize("name", few(PRINTING, "an answer without torch"))
def test_a_reader_that_has_ended_ends_the_program_without_a_word(name):
    """As of ``| head -1``: with the status of a program that SIGPIPE ends."""
    reader, output = os.pipe()
    os.close(reader)
    done = piped(PRINTING[name], output)
    os.close(output)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.processes
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full device")
def test_an_output_on_a_full_disk_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        done = piped(["list"], full)
    told = "lightning-vfl: error: [Errno 28] No space left on device (OSError; LIGHTNING_VFL_TRACEBACK=1 shows where)\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(("apple", "chosen"), [(True, "cpu"), (False, "auto")])
def test_a_machine_of_apple_trains_on_its_cpu(apple, chosen, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: apple)
    cli = VFLCLI(merge_arguments(["fit", "--config", "data/digits", "--config", "protocol/mean"]))
    assert cli.given.trainer.accelerator == chosen
