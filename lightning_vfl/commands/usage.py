"""The error of arguments that cannot be read. It imports nothing, because every command needs it."""

from lightning_vfl.errors import ConfigurationError


class UsageError(ConfigurationError):
    """Arguments or a recipe that the parser cannot read; the command line exits with status 2."""
