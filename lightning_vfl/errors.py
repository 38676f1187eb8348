"""What is raised: for what a user asked for and cannot have, and for a message that cannot be used."""


class ConfigurationError(ValueError):
    """What was asked for cannot be done; the message is one sentence that names the fix.

    The command line prints it on one line and exits with status 1; from Python it is an ordinary ``ValueError``.

    Examples:
        >>> raise ConfigurationError("batch_size 64 exceeds the 20 training records; lower batch_size to at most 20")
        Traceback (most recent call last):
        ...
        lightning_vfl.errors.ConfigurationError: batch_size 64 exceeds the 20 training records; ...
    """


class MalformedMessage(ValueError):
    """A message that its receiver cannot use; the message of the exception names the party that sent it.

    The round ends with it, because a result that was computed from such a message would be wrong.
    """
