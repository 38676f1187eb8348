"""What a process of a federation keeps of a model: the networks of its own seat."""

from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.halved_top import HalvedTop
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.protocols.parameters import refuse_shared
from lightning_vfl.protocols.place import Behind, Elsewhere
from lightning_vfl.types import Seat


def keep_own(module: SplitModel, seat: Seat) -> None:
    """Replace the networks of other processes, after the costs of rounds are known from all of them.

    With ``weights: secret`` the networks of others have been built for their sizes alone. With ``weights: seeded`` all
    networks are built here, in order of their owners: every process then has the initial weights of the simulation.

    Raises:
        ConfigurationError: for parties that share a bottom.
    """
    if module.roster.shared:
        raise ConfigurationError(
            f"parties {list(module.roster.shared[0])} share a bottom, which runs simulated only; give each party "
            "columns of its own between processes"
        )
    refuse_shared(module.owners(), module.roster.parties)
    module.costs.know()
    for party in range(module.roster.parties):
        if party != seat.party:
            module.bottoms.parties[party] = Elsewhere(f"party {party}")
    module.bottoms.groups = ()
    active = module.roster.active
    if isinstance(module.top, HalvedTop) and seat.party is None:
        module.top.active = Behind(f"party {active}")
    elif isinstance(module.top, HalvedTop) and seat.party == active:
        module.top.server = Elsewhere("the server")
    elif isinstance(module.top, nn.ModuleList):  # a head of each party
        for party in range(module.roster.parties):
            if party != seat.party:
                module.top[party] = Elsewhere(f"party {party}")
    else:
        holder = active if module.labels_stay and not module.halved else None
        if seat.party != holder:
            module.top = Elsewhere("the server" if holder is None else f"party {holder}")
