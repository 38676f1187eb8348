"""Read the arguments of a command that runs without torch and Lightning, whose imports take seconds."""

from argparse import ArgumentError
from collections.abc import Callable, Sequence

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.command import with_both_spellings
from lightning_vfl.commands.usage import UsageError


def parse_alone(command: str, add_options: Callable[[ArgumentParser], None], arguments: Sequence[str]) -> Namespace:
    """The values of a command's options; errors are those of the whole program.

    Args:
        command: the word on the command line.
        add_options: adds the options to a parser.
        arguments: behind the word.

    Raises:
        UsageError: for arguments that cannot be read.
    """
    parser = ArgumentParser(prog=f"lightning-vfl {command}", exit_on_error=False)
    add_options(parser)
    with_both_spellings(parser)
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        from lightning_vfl.commands.parse_errors import ParserError, one_line  # 0.02 s, which errors alone need

        message = str(error).replace("are required: ", f"are required: {command}.")  # as the program says it
        raise UsageError(one_line(ParserError(message, parser._option_string_actions))) from None
