"""LightningCLI with recipes that overlay, and with all sub-commands of ``lightning-vfl`` in one parser."""

from argparse import ArgumentError
from collections.abc import Sequence
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import torch
import yaml
from jsonargparse import Namespace, set_loader
from jsonargparse._typehints import ActionTypeHint
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_vfl import __version__
from lightning_vfl.callbacks import ExperimentRecord, PredictionWriter, RunRecord, RunSummary, SparseProgressBar
from lightning_vfl.callbacks.logger_records import records_of
from lightning_vfl.commands.checkpoints import FIT, Pick, find_checkpoint
from lightning_vfl.commands.command import Command, loaded
from lightning_vfl.commands.endings import Terminated
from lightning_vfl.commands.light import ABOUT, MORE
from lightning_vfl.commands.own_code import failed_import, note_own_modules, untyped_setting, watched_imports
from lightning_vfl.commands.parse_errors import ParserError, one_line
from lightning_vfl.commands.readable import make_readable
from lightning_vfl.commands.recipes import as_list, load, merge_arguments, with_full_paths
from lightning_vfl.commands.run_config import RUNS, RunConfig
from lightning_vfl.commands.table import COMMANDS
from lightning_vfl.commands.threads import FewThreads
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.checks import refuse_trainer
from lightning_vfl.protocols.loading import fitted_in

_PARSER: dict[str, Any] = {"exit_on_error": False, "parser_mode": "recipe"}


def read_whole_numbers(parser: LightningArgumentParser) -> None:
    """Read ``--trainer.limit_train_batches 1`` as one batch, and 1.0 as all of them, whoever was imported first.

    ``typing`` hands out one object for ``Union[int, float]`` and ``Union[float, int]``: the one that any package of the
    process has made first. With the second, the parser would read 1 as 1.0.
    """
    typed = [action for action in parser._actions if isinstance(action, ActionTypeHint)]
    for action in typed:
        hint = action._typehint
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        if {int, float} <= {*kinds}:
            action._typehint = reduce(
                or_, sorted(kinds, key=lambda kind: kind is not int)
            )  # which typing does not keep


def _refuse_repeated(parser: LightningArgumentParser, arguments: Sequence[str]) -> None:
    """Refuse an option that takes several words and is given twice, of which the parser would take the last alone.

    Raises:
        UsageError: with the option as it is to be written.
    """
    for action in parser._actions:
        given = [word for word in arguments if word.partition("=")[0] in action.option_strings]
        if action.nargs in ("+", "*") and len(given) > 1:
            option = action.option_strings[-1]
            raise UsageError(f"{option} is given {len(given)} times; write it once, with all its words behind it")


class VFLCLI(LightningCLI):
    """The command line: ``VFLCLI(arguments)`` parses, ``build()`` makes trainer, data and model, ``train()`` uses them.

    Only the sub-command that is called builds its options: those of a recipe take most of the time of parsing.

    Args:
        arguments: of ``lightning-vfl``.
        callbacks: added to those of the recipe.

    Raises:
        UsageError: if the arguments cannot be read.
        ConfigurationError: if a recipe is not found.
    """

    def __init__(self, arguments: Sequence[str], callbacks: Sequence[Callback] = ()) -> None:
        set_loader("recipe", lambda text: with_full_paths(load(text)), exceptions=(yaml.YAMLError,))
        self.arguments = list(arguments)
        self._first = next(iter(arguments), "--help")
        super().__init__(
            VFLModule,
            VerticalDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,  # the module makes the optimiser, so that checkpoints rebuild it
            save_config_callback=None,  # RunConfig is ours, see _instantiate_trainer
            trainer_defaults={
                "max_epochs": 20,  # Lightning's default is 1000
                "default_root_dir": RUNS,
                "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": RUNS}},
                "callbacks": list(callbacks),
                # "auto" would choose a device that refuse_trainer refuses
                **({"accelerator": "cpu"} if torch.backends.mps.is_available() else {}),
            },
            parser_kwargs={**_PARSER, "prog": "lightning-vfl", "description": ABOUT},
            args=merge_arguments(arguments),
        )

    @cached_property
    def command(self) -> Command:
        """The sub-command that is called."""
        name: str = self.config.subcommand
        return loaded(name)

    @property
    def given(self) -> Namespace:
        """The values of the sub-command's options."""
        given: Namespace = self.config[self.command.name]
        return given

    def empty_parser(self) -> LightningArgumentParser:
        """A parser without options, for a command that reads no recipe."""
        return LightningArgumentParser(description="", **_PARSER)

    def data_parser(self) -> LightningArgumentParser:
        """A parser of recipes of data alone: --config, and every setting of the data."""
        parser = self.init_parser(description="", **_PARSER)
        parser.add_lightning_class_args(VerticalDataModule, "data", subclass_mode=True)
        return parser

    def trainer_parser(self, method: str) -> LightningArgumentParser:
        """A parser of recipes and of the arguments that a method of the trainer takes."""
        parser = self._prepare_subcommand_parser(Trainer, method, description="", add_help=False, **_PARSER)
        if method in ("validate", "test"):
            parser.set_defaults(verbose=False)  # the summary has these numbers
        read_whole_numbers(parser)
        make_readable(parser)
        return parser

    def build(self) -> "VFLCLI":
        """Make ``trainer``, ``model`` and ``datamodule`` of the recipe; run nothing.

        Raises:
            ConfigurationError: for settings that do not fit together, and for a checkpoint that is none.
        """
        self._find_checkpoint()
        super()._set_seed()
        self._dump_config()
        for logger in self._loggers():
            logger["init_args"]["save_dir"] = self._folder_of(logger)
        super().instantiate_classes()
        refuse_trainer(self.trainer, compiled=False)  # here too, because some strategies build the model elsewhere
        path = self.given.get("ckpt_path")
        if path is not None and Path(path).is_file():  # not hpc or registry, which the trainer finds itself
            self.model.fitted = fitted_in(Path(path))
        return self

    def run_trainer(self) -> None:
        """Call the method of the trainer that is named like the sub-command, in a folder of its own."""
        self.take_folder()
        super()._run_subcommand(self.command.name)

    def take_folder(self) -> None:
        """Choose the folder of this run."""
        for callback in self._run_configs():
            callback.take_folder(self.trainer)

    def run_command(self) -> int:
        """Run the sub-command and return its exit status; a failure leaves no folder without results."""
        try:
            return self.command.run(self)
        except BaseException as error:
            for callback in self._run_configs():
                callback.remove_unused()
            if isinstance(error, SIGTERMException):
                raise Terminated from None
            if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # the trainer has turned Ctrl-C into status 1
            raise

    def _run_configs(self) -> list[RunConfig]:
        callbacks = getattr(getattr(self, "trainer", None), "callbacks", [])
        return [callback for callback in callbacks if isinstance(callback, RunConfig)]

    def _loggers(self) -> list[Namespace]:
        """The loggers of the recipe that have a ``save_dir``."""
        loggers = as_list(self.given.trainer.logger)
        return [one for one in loggers if isinstance(one, Namespace) and one.get("init_args.save_dir") is not None]

    def _folder_of(self, logger: Namespace) -> str:
        """The ``save_dir`` of a logger; the default follows ``trainer.default_root_dir``."""
        folder = logger["init_args"]["save_dir"]
        return self.given.trainer.default_root_dir or RUNS if folder == RUNS else folder

    def _find_checkpoint(self) -> None:
        """Replace ``best``, ``last`` and the folder of a run by the checkpoint that is meant, before anything is built.

        The recipe decides what is built; the loaded module is compared with the checkpoint in
        ``VFLModule.on_load_checkpoint``.
        """
        given = self.given.get("ckpt_path")
        name = self.command.name
        fitted = self.given.get("do", COMMANDS[name].method) in ("validate", "test", "predict")
        found_by_trainer = ("hpc", "registry", *(("best", "last") if name == "fit" and self._has_own_folder() else ()))
        if given is None or str(given).partition(":")[0] in found_by_trainer:
            return
        roots = [
            Path(self.given.trainer.default_root_dir or RUNS),
            *(Path(self._folder_of(one)) for one in self._loggers()),
        ]
        command = name if name in ("serve", "party", "replay") else FIT  # halves of a model, or a repetition
        self.given["ckpt_path"] = find_checkpoint(str(given), roots, Pick.BEST if fitted else Pick.LAST, command)

    def _has_own_folder(self) -> bool:
        """Whether a ModelCheckpoint of the recipe names its folder, which is the same in every run."""
        callbacks = as_list(self.given.trainer.callbacks or [])
        return any(isinstance(one, Namespace) and one.get("init_args.dirpath") is not None for one in callbacks)

    # LightningCLI's constructor parses, builds and runs. Its steps behind parsing are put off:

    def _parse_ckpt_path(self) -> None:
        """Nothing: LightningCLI would overrule the recipe by the checkpoint's settings; see ``build``."""

    def _set_seed(self) -> None:
        """Nothing: see ``build``."""

    def instantiate_classes(self) -> None:
        """Nothing: see ``build``."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing: see ``run_trainer``."""

    def _dump_config(self) -> None:
        """As LightningCLI, but the settings are not checked once more, which takes as long as half of the building."""
        if not hasattr(self, "config_dump"):
            text = self.parser.dump(self.config, skip_link_targets=False, skip_none=False, skip_validation=True)
            self.config_dump = load(text)[self.command.name]

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """All commands, in place of LightningCLI's four."""
        parser.add_argument("-V", "--version", action="version", version=f"%(prog)s {__version__}")
        self._subcommand_parsers = {}
        commands = parser.add_subcommands(title="commands", metavar="COMMAND", description=MORE)
        for name, entry in COMMANDS.items():
            one = loaded(name).parser(self) if self._is_called(name) else self.empty_parser()
            one.description = one.description or entry.about
            self._subcommand_parsers[name] = one
            commands.add_subcommand(name, one, help=entry.about)

    def _is_called(self, name: str) -> bool:
        """Whether a command needs its options: it comes first, or a recipe does, which may say which command it is."""
        return self._first == name or self._first.partition("=")[0] in ("-c", "--config")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """What every run has: the summary, the records for loggers and for the report, and the file of predictions."""
        parser.add_lightning_class_args(ExperimentRecord, "experiment")
        parser.add_lightning_class_args(RunSummary, "summary")
        parser.add_lightning_class_args(RunRecord, "record")
        parser.add_lightning_class_args(PredictionWriter, "predictions")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """As LightningCLI, without its warning about ``sys.argv``; what cannot be read is told in one line."""
        with watched_imports() as imported:
            try:
                self.config = self._parse(parser, list(args))  # type: ignore[arg-type]  # always a list, see __init__
            except ArgumentError as error:
                options = self._subcommand_parsers.get(self._first, parser)._option_string_actions
                message = str(error)
                if self._first.startswith("-") and self._first.partition("=")[0] not in options:
                    message = f"unrecognized arguments: {self._first}"  # argparse takes its value for the command
                told = failed_import(message, imported) or one_line(ParserError(message, options))
                raise UsageError(told) from None
        note_own_modules(imported)
        if (untyped := untyped_setting(self.config)) is not None:
            raise UsageError(untyped)
        seed = self.config.get(f"{self.config.subcommand}.seed_everything")
        if type(seed) is int and not 0 <= seed < 2**32:  # True: Lightning draws one
            raise UsageError(f"--seed_everything must be from 0 to {2**32 - 1}; got {seed}")

    def _parse(self, parser: LightningArgumentParser, arguments: list[str]) -> Namespace:
        """The settings. A command that comes first is asked itself.

        The parser of all commands would fill in and check each setting of a recipe twice. It names the command in its
        message about what is missing, and prints a recipe unchecked, so it is asked for these two.
        """
        one = self._subcommand_parsers.get(self._first)
        if one is not None:
            _refuse_repeated(one, arguments)
            try:
                given = one.parse_args(arguments[1:])
            except ArgumentError as error:
                if "arguments are required" not in str(error) and not hasattr(parser, "print_config"):
                    raise
            else:
                if not hasattr(parser, "print_config"):
                    return Namespace({"config": None, "subcommand": self._first, self._first: given})  # type: ignore[no-untyped-call]
        settings: Namespace = parser.parse_args(arguments)
        return settings

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """With the number of threads, and the settings in the folder of the run; a trial run has no folder."""
        callbacks = [*callbacks, FewThreads()]
        if not config.get("fast_dev_run"):
            header = "".join(f"# {line}\n" for line in self.parser.dump_header or ())
            text = header + yaml.safe_dump(self.config_dump, sort_keys=False, allow_unicode=True)
            callbacks = [*callbacks, RunConfig(text, self.command.name)]
        return super()._instantiate_trainer(config, callbacks)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """With a progress bar that is refreshed every 20th round, unless the recipe has one of its own."""
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
        for position, callback in enumerate(callbacks):
            if isinstance(callback, ExperimentRecord) and records_of(trainer.loggers):
                callback.recipe = self.config_dump
            if type(callback) in (RichProgressBar, TQDMProgressBar):  # Lightning's defaults
                chosen = [type(c) for c in self._get(self.config_init, "trainer").callbacks or ()]
                if type(callback) not in chosen:
                    callbacks[position] = SparseProgressBar()
        return trainer
