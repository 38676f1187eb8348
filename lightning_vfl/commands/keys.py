"""``lightning-vfl keys``: the parties' long-lived identity keys, as PEM files in a folder."""

from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI, Command

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_ABOUT = (
    "Generate a long-lived identity key (Ed25519) for every party: party-0.key.pem (private, mode 0600) and "
    "party-0.pub.pem in FOLDER, and so on. Existing files are never overwritten. A recipe uses the keys with "
    "--model.aggregator.init_args.identities FOLDER. In a deployment, every party generates its own pair, keeps the "
    "private key and gives the public key to all others."
)


class KeysCommand(Command):
    """Generate the keys and write them."""

    about = _ABOUT

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument("folder", type=str, metavar="FOLDER", help="folder of the files; made if it does not exist")
        parser.add_argument("--parties", type=int, required=True, help="number of parties")

    def run(self, cli: CLI) -> int:
        from lightning_vfl.crypto import Identities  # torch

        made = Identities.make(cli.given.folder, cli.given.parties)
        print(f"{made.folder}: identity keys of parties 0 to {cli.given.parties - 1}")
        return 0
