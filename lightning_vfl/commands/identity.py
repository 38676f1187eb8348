"""``lightning-vfl identity``: the key and the certificate of a server or a party."""

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.alone import AloneCommand
from lightning_vfl.federation.identity import make_identity, paths, renew_identity

_ABOUT = (
    "Generate the identity of the server or of a party of a federation: NAME.key (private key, mode 0600), which stays "
    "on this host, and NAME.crt (certificate), which all other hosts get and name in federation.yaml. Existing files "
    "are never overwritten. The fingerprint is printed; tell it to the others over another channel, such as the "
    "telephone, so that they can compare it with the file that has arrived. --renew makes a new identity in place of "
    "an old one, which no host accepts any more that has the new certificate."
)


class IdentityCommand(AloneCommand):
    """Make key and certificate and write them."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the server or the party in federation.yaml")
        parser.add_argument("--out", default="keys", help="folder of the files; made if it does not exist")
        parser.add_argument(
            "--renew", action="store_true", help="in place of the identity that is there, which is kept"
        )

    def work(self, given: Namespace) -> int:
        kept = None
        if given.renew:
            made, kept = renew_identity(given.name, given.out)
        else:
            made = make_identity(given.name, given.out)
        key, certificate = paths(given.name, given.out)
        print(f"{key}: private key; keep it on this host")
        print(f"{certificate}: certificate; give it to all other hosts")
        print(f"sha256 fingerprint: {made.certificate.fingerprint}")
        if kept is not None:
            print(f"{kept[0]}, {kept[1]}: the old identity, which is refused where the new certificate is")
        return 0
