"""The local training of all guests, or of all hosts, in decoupled training."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.local_objectives import Call, LocalObjective
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.flops import work_of
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols.owner_keys import Keys, build_for
from lightning_vfl.streams import Seed, secret_bytes, seed_of, seed_torch
from lightning_vfl.types import Parties, RoundNames, Shape, Tensors, numbers_in


class Learners:
    """Encoders with a local objective; encoders of the same architecture run in one call, as a team.

    Args:
        who: ``guests`` or ``hosts``, for the names of streams.
        encoders: the members' networks.
        objective: the local objective.
        shapes: per-record shape of each member's input.
        widths: the widths of the members' embeddings.
        owners: whose process has the networks of each member; None: the server's.
        keys: by owner, the secret that replaces the seed in a federation; empty: there is none.
    """

    def __init__(
        self,
        who: str,
        encoders: Sequence[nn.Module],
        objective: LocalObjective,
        shapes: Sequence[Shape],
        widths: Sequence[int],
        owners: Sequence[int | None],
        keys: Keys,
    ) -> None:
        self.who = who
        self.objective = objective
        self.shapes = list(shapes)
        self.widths = list(widths)
        self.owners = tuple(owners)
        self.keys = keys
        self.bank = PartyBank(encoders, batch_from=2)
        self.partners = PartyBank(list(map(self.partner_of, range(len(encoders)), encoders)), batch_from=2)
        if keys:  # networks of other processes have no numbers, so nothing is computed together with them
            self.bank.groups = ()
        here = [team for team in self.teams if not keys or self.owners[team[0]] in keys]
        if not here:
            return
        team = here[0]
        with evaluating(self.bank), evaluating(self.partners):  # two rows must not change running statistics
            calls = partial(self.bank.together, team), partial(self.partners.together, team)
            try_objective(objective, *calls, len(team), self.shapes[team[0]], self.widths[team[0]])

    def partner_of(self, member: int, encoder: nn.Module) -> nn.Module:
        """A new partner network for a member, with its initial weights.

        Raises:
            ConfigurationError: if the objective makes no network.
        """
        width = self.widths[member]

        def build() -> nn.Module:
            partner: object = self.objective.partner(encoder, self.shapes[member], width)
            if isinstance(partner, nn.Module):
                return partner
            raise ConfigurationError(
                f"partner of {type(self.objective).__name__} must return a network; got {partner!r}; return "
                "torch.nn.Identity() if the objective needs none"
            )

        return build_for(self.owners[member], f"partner {self.who} {member}", self.keys, (width,), build)

    @property
    def teams(self) -> list[Parties]:
        """The members that run in one call; without ``bank.groups``, every member runs alone."""
        equal = [team for team in self.bank.groups if team in self.partners.groups]
        teams = [team for team in equal if len({self.shapes[member] for member in team}) == 1]
        grouped = {member for team in teams for member in team}
        return [*teams, *((m,) for m in range(len(self.bank)) if m not in grouped)]

    def losses(
        self,
        learn: Tensor,
        names: RoundNames,
        seed: int,
        inputs: Callable[[Parties], Tensor],
        weights: Callable[[Parties], Tensor | None] = lambda team: None,
    ) -> Iterator[tuple[Parties, Tensor, Tensor]]:
        """The losses of each team with a member that learns.

        Args:
            learn: bool, by member.
            names: the names of the round's random streams.
            seed: the seed of the run.
            inputs: gives the inputs (T, B, ...) of a team of T members.
            weights: gives the weights (T, B) of the records; None: equal weights.

        Yields:
            The team, its losses (T,) and its embeddings (T, B, D).
        """
        for team in self.teams:
            if not learn[list(team)].any():
                continue
            x = inputs(team)
            key = self.keys.get(self.owners[team[0]], seed)
            if len(team) == 1:  # networks with random layers (dropout) run alone, so they depend on no other member
                seed_torch(x.device, key, "networks", names.stage, names.round, self.who, team[0])
            draws = _number_of(key, "local objective", names.stage, names.round, self.who)
            encode = partial(self.bank.together, team)
            beside = partial(self.partners.together, team)
            yield team, *self.objective.losses(encode, beside, x, weights(team), partial(_generator, x.device, draws))

    def networks_of(self, members: Tensor) -> list[nn.Module]:
        """The networks of the ``members``, bool by member."""
        numbers = numbers_in(members)
        return [bank.parties[number] for bank in (self.bank, self.partners) for number in numbers]

    def flops(self) -> Tensor:
        """FLOPs of an iteration with one record, forward and backward pass, float64 by member."""
        networks = zip(self.bank.parties, self.partners.parties, strict=True)
        flops = []
        for (encoder, partner), shape, width in zip(networks, self.shapes, self.widths, strict=True):
            encoding = sum(work_of(encoder, shape, input_gradient=False))
            beside = sum(work_of(partner, (width,), input_gradient=True))
            flops.append((encoding + beside) * self.objective.passes)
        return torch.tensor(flops, dtype=torch.float64)


def try_objective(
    objective: LocalObjective, encode: Call, partner: Call, members: int, shape: Shape, width: int
) -> None:
    """Compute the losses of two records of zeros at each member, with and without weights; nothing is drawn or learnt.

    Raises:
        ConfigurationError: for losses and embeddings that no participant could learn from, naming the objective.
    """
    who = f"losses of {type(objective).__name__}"
    x = torch.zeros(members, 2, *shape)
    for weight in (None, torch.ones(members, 2)):
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                told = objective.losses(encode, partner, x, weight, lambda: torch.Generator(x.device).manual_seed(0))
        except ConfigurationError:
            raise
        except Exception as error:
            with_it = "" if weight is None else " with weights (n, B) of the rows"
            raise ConfigurationError(f"{who} cannot take records {(*x.shape,)}{with_it}: {reason(error)}") from error
        losses, h = told if isinstance(told, tuple) and len(told) == 2 else (told, None)
        forms = [f"{(*part.shape,)}" if isinstance(part, Tensor) else repr(part) for part in (losses, h)]
        wanted = [f"{(members,)}", f"{(members, 2, width)}"]
        if forms != wanted:
            raise ConfigurationError(
                f"{who} must return a loss for each of {members} participants, {wanted[0]}, and their embeddings, "
                f"{wanted[1]}; got {' and '.join(forms)}"
            )
        if not losses.requires_grad:
            raise ConfigurationError(f"{who} returns losses without a graph, so nobody would learn; do not detach them")
        if h is None or h.requires_grad:
            raise ConfigurationError(f"{who} returns embeddings with a graph; return h.detach()")


def guest_losses(
    guests: Learners, features: Tensors, alive: Tensor, names: RoundNames, seed: int
) -> tuple[Tensor, list[Tensor]]:
    """Losses (M,) of the guests, and their embeddings (B, D_m); zeros for guests that are not ``alive``, (M,) bool."""
    losses: dict[int, Tensor] = {}
    embeddings: dict[int, Tensor] = {}

    def stacked(team: Parties) -> Tensor:
        return torch.stack([features[m] for m in team])

    for team, own, h in guests.losses(alive, names, seed, stacked):
        if len(team) == len(alive) and alive.all():  # the usual case: all guests in one team
            return own, list(h.unbind(0))
        losses.update(zip(team, own.unbind(0), strict=True))
        embeddings.update(zip(team, h.unbind(0), strict=True))
    rows = len(features[0])
    device = features[0].device
    no_loss = next(iter(losses.values())).detach() * 0 if losses else torch.zeros((), device=device)
    of_guests = torch.stack([losses.get(guest, no_loss) for guest in range(len(alive))])
    for guest, width in enumerate(guests.widths):
        if guest not in embeddings:
            embeddings[guest] = torch.zeros(rows, width, device=device)
    return of_guests, [embeddings[guest] for guest in range(len(alive))]


def host_losses(
    hosts: Learners, inputs: Tensor, known: Tensor | None, learn: Tensor, names: RoundNames, seed: int
) -> Tensor:
    """Compute the losses of the hosts that learn.

    Args:
        hosts: the hosts.
        inputs: (1 or H, B, Σ D_m) the buffered embeddings.
        known: (1 or H, B) bool, the records of which a host has received an embedding; None: all records.
        learn: (H,) bool, at least one.
        names: of the round.
        seed: of the run.
    """
    x = inputs.to(next(hosts.bank.parameters()).dtype)

    def buffered(team: Parties) -> Tensor:
        return x.expand(len(team), -1, -1) if len(x) == 1 else x[list(team)]

    def weights(team: Parties) -> Tensor | None:
        return None if known is None else known.to(x.dtype).expand(len(hosts.bank), -1)[list(team)]

    losses = []
    for team, own, _ in hosts.losses(learn, names, seed, buffered, weights):
        learning = learn[list(team)]
        losses.append(own if learning.all() else own[learning.to(own.device)])
    return torch.cat(losses)


def _number_of(seed: Seed, *names: str | int) -> int:
    """A number for another generator, from a seed or a secret key and names."""
    if isinstance(seed, bytes):
        return int.from_bytes(secret_bytes(seed, 8, *names), "little") >> 1
    return seed_of(seed, *names)


def _generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
