"""``lightning-vfl``: LightningCLI over recipes that overlay, commands for studies and privacy, errors of one line."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pickle import UnpicklingError
from typing import Any, NoReturn, TypeVar

import torch
import yaml
from jsonargparse import get_loader, set_loader
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightning_vfl import __version__
from lightning_vfl.callbacks import PredictionWriter, RunSummary, SparseProgressBar
from lightning_vfl.commands import keys as keys_command
from lightning_vfl.commands import privacy as privacy_command
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.commands.parse_errors import one_line
from lightning_vfl.commands.recipes import expand_arguments, with_full_paths
from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import VFLModule

T = TypeVar("T")

_SUBCOMMANDS = ("fit", "validate", "test", "predict")
_ABOUT = (
    "Vertical federated learning from recipes that overlay: --config data/digits --config protocol/mean. "
    "More commands: `study STUDY` runs a grid of recipes and seeds, `plot RESULTS` draws its figures again, `privacy` "
    "tells what a recipe costs its records, `keys FOLDER --parties M` draws the parties' identity keys."
)
_PARSER: dict[str, Any] = {"exit_on_error": False, "parser_mode": "recipe"}


class VFLCLI(LightningCLI):
    """LightningCLI with two callbacks that every run has: a summary at the end, and predictions written to a file.

    Args:
        called: the subcommand, where the arguments begin with it. The others then keep their names, for ``--help``, and
            are spared their settings, which take a third of the time that parsing takes.
    """

    def __init__(self, *args: Any, called: str | None = None, **settings: Any) -> None:
        self._called = called
        super().__init__(*args, **settings)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if self._called in (None, subcommand):
            return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        return self.init_parser(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(RunSummary, "summary")
        parser.add_lightning_class_args(PredictionWriter, "predictions")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """As LightningCLI, less its warning about ``sys.argv``: the arguments are always handed over expanded."""
        self.config = parser.parse_args(args)  # type: ignore[arg-type]  # always a list, see run

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """With the progress bar that is moved every 20th round, unless the recipe has one of its own."""
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
        for position, callback in enumerate(callbacks):
            if type(callback) in (RichProgressBar, TQDMProgressBar):  # Lightning's defaults
                chosen = [type(c) for c in self._get(self.config_init, "trainer").callbacks or ()]
                if type(callback) not in chosen:
                    callbacks[position] = SparseProgressBar()
        return trainer

    def _parse_ckpt_path(self) -> None:
        """Look at the checkpoint before anything is built. The recipe decides what is built, not the checkpoint.

        LightningCLI would overrule the recipe and the command line silently; here the loaded module is held to the
        checkpoint instead, see ``VFLModule.on_load_checkpoint``.
        """
        path = self.config[self.config.subcommand].get("ckpt_path")
        if path is None and self.config.subcommand != "fit":
            raise ConfigurationError(
                f"{self.config.subcommand} needs a trained model; give --ckpt_path FILE, which the summary of fit names"
            )
        if path is None or path in ("best", "last", "hpc", "registry"):
            return
        try:
            known = "pytorch-lightning_version" in torch.load(path, weights_only=True, map_location="cpu")
        except FileNotFoundError:
            raise ConfigurationError(f"--ckpt_path {path}: no such file; give the .ckpt that fit has written") from None
        except (OSError, RuntimeError, LookupError, TypeError, UnpicklingError):
            known = False
        if not known:
            raise ConfigurationError(f"--ckpt_path {path} is no checkpoint; give the .ckpt that fit has written")


class _BuildOnly(VFLCLI):
    """Everything is built as for the subcommand, and nothing is run."""

    def _run_subcommand(self, subcommand: str) -> None:
        return


class _Parsed(Exception):
    """The arguments are right."""


class _ParserOnly(VFLCLI):
    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        raise _Parsed


def main(args: Sequence[str] | None = None) -> None:
    """The program: a study, or ``run`` without a result."""
    arguments = list(sys.argv[1:] if args is None else args)
    if arguments[:1] == ["privacy"]:
        _quieten()
        _told(lambda: privacy_command.execute(arguments[1:], lambda recipe: _build(_BuildOnly, recipe, ())))
        return
    if arguments[:1] == ["keys"]:
        _told(lambda: keys_command.execute(arguments[1:]))
        return
    if arguments[:1] not in (["study"], ["plot"]):
        run(arguments)
        return
    from lightning_vfl.commands.study import execute  # joblib and pandas: 0.5 s, where they are used

    try:
        status = execute(arguments, run, check)
    except ConfigurationError as error:
        _fail(" ".join(str(error).split()), status=1)
    except KeyboardInterrupt:
        _fail("interrupted; the same command goes on from here", status=130)
    if status:
        raise SystemExit(status)


def run(args: Sequence[str] | None = None, callbacks: Sequence[Callback] = ()) -> VFLCLI:
    """Run the command line; ``args`` default to those of the process, ``callbacks`` come after the recipe's.

    Returns:
        The finished command line, with its ``trainer``, ``model`` and ``datamodule``.

    Raises:
        SystemExit: with status 2 for a recipe that cannot be read, 1 for one that cannot be run, after ONE line on
            standard error that names the fix.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    if arguments in (["--version"], ["-V"]):
        print(f"lightning-vfl {__version__}")
        raise SystemExit(0)
    keep_freed_memory()
    _quieten()
    return _told(lambda: _build(VFLCLI, arguments, callbacks))


def _told(work: Callable[[], T]) -> T:
    """What this returns; whatever ends it is told in one line."""
    try:
        return work()
    except argparse.ArgumentError as error:
        _fail(one_line(str(error)), status=2)
    except (ConfigurationError, MisconfigurationException) as error:
        _fail(" ".join(str(error).split()), status=1)
    except (ValueError, RuntimeError, OSError) as error:
        cause = _configuration_error(error)
        if cause is None and os.environ.get("LIGHTNING_VFL_TRACEBACK"):
            raise
        hint = "" if cause else f" ({type(error).__name__}; LIGHTNING_VFL_TRACEBACK=1 shows where)"
        _fail(" ".join(str(cause or error).split()) + hint, status=1)


def check(args: Sequence[str]) -> None:
    """Parse arguments, and build and run nothing.

    Raises:
        ConfigurationError: if they cannot be read.
    """
    try:
        _build(_ParserOnly, args, ())
    except _Parsed:
        return
    except argparse.ArgumentError as error:
        raise ConfigurationError(one_line(str(error))) from None


def _build(kind: type[VFLCLI], arguments: Sequence[str], callbacks: Sequence[Callback]) -> VFLCLI:
    load_yaml = get_loader("yaml")
    set_loader("recipe", lambda text: with_full_paths(load_yaml(text)), exceptions=(yaml.YAMLError,))
    first = next(iter(arguments), None)
    return kind(
        VFLModule,
        VerticalDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        auto_configure_optimizers=False,  # the optimiser is the module's, so that checkpoints rebuild it
        save_config_kwargs={"overwrite": True},
        trainer_defaults={
            "max_epochs": 20,  # Lightning would go on to 1000
            "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs"}},
            "callbacks": list(callbacks),
        },
        parser_kwargs={**_PARSER, "description": _ABOUT, **{name: dict(_PARSER) for name in _SUBCOMMANDS}},
        args=expand_arguments(arguments),
        called=first if first in _SUBCOMMANDS else None,
    )


def _configuration_error(error: BaseException | None) -> ConfigurationError | None:
    """The complaint of ours that the parser has wrapped into one of its own."""
    while error is not None and not isinstance(error, ConfigurationError):
        error = error.__cause__ or error.__context__
    return error


def _fail(message: str, status: int) -> NoReturn:
    print(f"lightning-vfl: error: {message}", file=sys.stderr)
    raise SystemExit(status)


def _quieten() -> None:
    """Warnings that tell our users nothing."""
    for message in (
        r".*does not have many workers",  # the data are in memory: workers would be slower
        r".*isinstance\(treespec, LeafSpec\)",  # between torch and lightning
        r"The number of training batches .* is smaller than the logging interval",  # train/loss_epoch comes anyway
        r"The dirpath has changed from .*",  # every run has a folder of its own
        r"Be aware that when using `ckpt_path`",  # testing needs no checkpoint callback
    ):
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_no_tips)


def _no_tips(record: logging.LogRecord) -> bool:
    return "Tip: " not in record.getMessage()
