"""``lightning-vfl keys``: the parties' long-lived identity keys, as PEM files in a folder."""

from collections.abc import Sequence

from lightning_vfl.commands.parse_errors import OneLineParser
from lightning_vfl.crypto import Identities


def execute(arguments: Sequence[str]) -> None:
    """Draw and write the keys.

    Args:
        arguments: of ``lightning-vfl``, behind ``keys``.

    Raises:
        ConfigurationError: for fewer than one party, and for files that exist already.
    """
    parser = OneLineParser(
        prog="lightning-vfl keys",
        description="Draw a long-lived identity key (Ed25519) for every party: party-0.key.pem (private, mode 0600) "
        "and party-0.pub.pem in FOLDER, and so on; existing files are never overwritten. A recipe uses them with "
        "--model.aggregator.init_args.identities FOLDER. In a deployment every party draws its own pair, keeps the "
        "private key and gives the public one to all others.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the files are written; made if it does not exist")
    parser.add_argument("--parties", type=int, required=True, help="how many parties there are")
    own = parser.parse_args(list(arguments))
    made = Identities.make(own.folder, own.parties)
    print(f"{made.folder}: identity keys of parties 0 to {own.parties - 1}")
