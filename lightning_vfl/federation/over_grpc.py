"""A federation over gRPC, with the pinned certificates of ``federation.yaml``."""

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.connections import party_credentials, server_credentials
from lightning_vfl.federation.grpc_client import Dialled
from lightning_vfl.federation.grpc_server import Port
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.identity import Identity
from lightning_vfl.federation.link import Way
from lightning_vfl.federation.versions import about


class OverGRPC(Way):
    """The server listens at the address of ``federation.yaml``, and parties call it.

    Args:
        charter: of the federation.
        identity: of this host.
        proxy: as ``calling`` takes it.
    """

    last_words = 5.0

    def __init__(self, charter: Charter, identity: Identity, proxy: str | None = None) -> None:
        self.charter = charter
        self.identity = identity
        self.proxy = proxy
        self.place = charter.server.address

    def port(self, hub: Hub) -> Port:
        charter = self.charter
        secret = server_credentials(self.identity, charter)
        return Port(hub, self.place, self._holder, secret, charter.patience.silence, lambda: about(charter))

    def transport(self, party: int) -> Dialled:
        return Dialled(
            self.place,
            party_credentials(self.identity, self.charter),
            reconnect=self.charter.patience.reconnect,
            silence=self.charter.patience.silence,
            expected=self.charter.server.name,
            proxy=self.proxy,
        )

    def _holder(self, shown: bytes | None) -> int:
        """The number of the party whose certificate a caller has shown."""
        if shown is None:
            raise ConfigurationError(f"{self.charter.federation} needs a certificate of each party")
        return self.charter.holder(shown)
