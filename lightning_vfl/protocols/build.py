"""Build bottoms and tops from factories; each is run on two rows before training, to report a wrong width early.

The networks exist when the data are known, and not before. Every parameter that is trained belongs to one owner.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError, nearest, reason, refuse_other_kind
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.column_aware import column_aware
from lightning_vfl.networks.flops import takes_whole_numbers
from lightning_vfl.networks.halved_top import HalvedTop
from lightning_vfl.protocols.owner_keys import Keys, build_for
from lightning_vfl.rebuildable import NotPlain, is_plain, plain_form
from lightning_vfl.types import Roll, Roster, Shape, Widths
from lightning_vfl.wire import LinearForms

BottomFactory = Callable[[Shape, int], nn.Module]
TopFactory = Callable[..., nn.Module]
T = TypeVar("T")


class Halves(TypedDict):
    """A top in two halves: the factories of the server's and of the active party's."""

    server: TopFactory
    active: TopFactory


SHAPES = ("party_shapes", "num_classes", "party_groups")  # what the datamodule tells
_NOTED = ("seed", *SHAPES)  # the base class notes these for every protocol
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"  # rebuilds parts in load_from_checkpoint


def several(groups: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
    """Groups of parties as sorted plain lists; None if every group has one party."""
    plain = sorted(sorted(int(party) for party in group) for group in groups or ())
    return plain if any(len(group) != 1 for group in plain) else None


def note_shapes(hparams: Any, data: Any) -> None:
    """Take shapes, classes and groups from the data, unless the module already has them.

    Raises:
        ConfigurationError: if neither the module nor the data have shapes.
    """
    if hparams["party_shapes"] is not None:
        return
    if data is None:
        raise ConfigurationError(
            "the networks cannot be built without the shapes of the data; give the trainer a datamodule, "
            "or the module party_shapes= and num_classes="
        )
    hparams["party_shapes"] = [list(shape) for shape in data.party_shapes]
    hparams["num_classes"] = data.num_classes
    hparams["party_groups"] = several(getattr(data, "party_groups", None))


def party_names_of(data: Any, parties: int) -> tuple[str, ...]:
    """The names of the parties in the data; without data, their numbers."""
    return tuple(map(str, range(parties))) if data is None else tuple(data.party_names)


def by_number(
    setting: str, named: Mapping[int | str, T], hparams: Any, data: Any, others: Collection[str] = ()
) -> dict[Any, T]:
    """The values of a setting by party number; names are those of the data, and are noted as numbers.

    Raises:
        ConfigurationError: for a name that no party has and that is none of ``others``, which stay as they are.
    """
    names = () if data is None else tuple(data.party_names)
    numbers = {name: number for number, name in enumerate(names)}
    for party in named:
        if isinstance(party, str) and party not in (*numbers, *others):
            first, _, inner = party.partition(".")
            if inner:
                fix = f"write {{{first}: {{{inner}: ...}}}}"
            elif names:
                fix = nearest(party, (*names, *others), "use numbers")
            else:
                fix = "the parties have no names here; use numbers"
            raise ConfigurationError(f"{setting} names party '{party}', which does not exist; {fix}")
    noted = hparams.get(setting)
    if noted:
        hparams[setting] = {numbers.get(party, party): value for party, value in noted.items()}
    numbered = {numbers.get(party, party): value for party, value in named.items()}
    if len(numbered) < len(named):
        raise ConfigurationError(f"{setting} names a party twice, by name and by number; leave one out")
    return numbered


def note_outputs(hparams: Any, top: Halves | TopFactory, outputs: int) -> None:
    """Keep the number of outputs of a top whose class requires it: it is built again from what is kept."""
    kept = hparams.get("top")
    parameter = inspect.signature(top).parameters.get("outputs") if isinstance(top, type) else None
    if isinstance(kept, dict) and parameter is not None and parameter.default is parameter.empty:
        hparams["top"] = {**kept, "init_args": {**kept.get("init_args", {}), "outputs": outputs}}


def drop_others(hparams: Any, initial: Any, known: Collection[str]) -> None:
    """Leave out arguments that the constructor of the protocol chooses itself and does not take."""
    for stored in (hparams, initial):
        for name in {*stored}.difference(known, _NOTED, ("_instantiator", "_class_path")):
            del stored[name]


def take_untaken(settings: dict[str, Any], kind: type) -> dict[str, Any]:
    """Take what the data have told out of settings that a checkpoint keeps, if the constructor does not take it.

    LightningCLI gives a constructor all settings of a checkpoint.
    """
    taken = set[str]()
    for base in kind.__mro__:  # **settings are those of the next constructor
        parameters = inspect.signature(vars(base).get("__init__", lambda **_: None)).parameters
        taken.update(parameters)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return {name: settings.pop(name) for name in _NOTED if name in settings and name not in taken}


def plain_settings(
    hparams: Any,
    initial: Any,
    seed: int,
    party_shapes: Sequence[Sequence[int]] | None,
    num_classes: int | None,
    party_groups: Sequence[Sequence[int]] | None,
    given: Collection[str],
) -> dict[str, str]:
    """Keep only plain values in saved hyperparameters, because the safe loader accepts nothing else (no numpy values).

    Parts that were ``given`` to the module are kept as class path and arguments, as a recipe names them, and are built
    again from these. Other parts are defaults, or the protocol makes them itself.

    Returns:
        The arguments that have no plain form, each with what it is.
    """
    hparams["seed"] = seed
    for name in SHAPES:  # a subclass with a constructor of its own may not take them
        hparams.setdefault(name, None)
    if party_shapes is not None:
        hparams["party_shapes"] = [[int(side) for side in shape] for shape in party_shapes]
        hparams["num_classes"] = None if num_classes is None else int(num_classes)
    if party_groups is not None:
        hparams["party_groups"] = [[int(party) for party in group] for group in party_groups]
    lost: dict[str, str] = {}
    for stored in (hparams, initial):
        for name, value in [*stored.items()]:
            if is_plain(value):
                stored[name] = deepcopy(value)  # the caller may change a list or a dictionary later
                continue
            del stored[name]
            try:
                if name in given:
                    stored[name] = plain_form(value)
            except NotPlain as reason:
                lost[name] = str(reason)
        stored.setdefault("_instantiator", INSTANTIATOR)
    return lost


def roster_of(parties: int, groups: Sequence[Sequence[int]] | None, active: int | None) -> Roster:
    """The roster, after checks.

    Raises:
        ConfigurationError: for an active party that does not exist or that shares its columns, and for groups that do
            not name every party exactly once.
    """
    if active is not None:
        within("active", active, 0, parties - 1, whole=True)
    if groups is None:
        return Roster.singles(parties, active)
    if sorted(party for group in groups for party in group) != list(range(parties)):
        raise ConfigurationError(
            f"party_groups must name each of the parties 0 to {parties - 1} exactly once; got "
            f"{[list(group) for group in groups]}"
        )
    roster = Roster(tuple(tuple(sorted(group)) for group in groups), active)
    if any(active in group for group in roster.shared):
        raise ConfigurationError(
            f"active names party {active}, which shares its columns with other parties; name a party that is a group "
            "of its own"
        )
    return roster


def refuse_overlap(roster: Roster, present: Tensor | None) -> None:
    """Refuse records whose holders in a group are unknown or more than one.

    Args:
        roster: the parties and their groups.
        present: (B, M) bool, which party holds which record; None: unknown.

    Raises:
        ConfigurationError: naming the group.
    """
    for group in roster.shared:
        if present is None:
            raise ConfigurationError(
                f"the parties of group {group} hold different records, but the batch does not name the holders; give "
                "the trainer a datamodule, or batches with present"
            )
        if bool((present[:, list(group)].sum(1) > 1).any()):
            raise ConfigurationError(
                f"several parties of group {group} hold the same record; give every record to one party of a group"
            )


def build_bottoms(
    bottom: BottomFactory,
    bottom_of: Mapping[int, BottomFactory],
    aggregator: Aggregator,
    shapes: Sequence[Shape],
    width: int,
    roster: Roster,
    keys: Keys,
    names: Sequence[str],
) -> PartyBank:
    """Build one bottom for each party, and check that it has the embedding width that the aggregator needs.

    The parties of one group start with copies of the first party's bottom.
    """
    leader = {m: group[0] for group in roster.shared for m in group[1:]}
    for party in bottom_of:
        within("a party of bottom_of", party, 0, len(shapes) - 1, whole=True)
    if copies := [party for party in bottom_of if party in leader]:
        raise ConfigurationError(
            f"bottom_of names party {copies[0]}, which uses the bottom of its group; name the group's first party, "
            f"{leader[copies[0]]}"
        )
    bottoms: list[nn.Module] = []
    for party, (shape, wide) in enumerate(zip(shapes, aggregator.widths(width, roster), strict=True)):
        if party in leader:
            bottoms.append(_copied(bottoms[leader[party]], shape, shapes[leader[party]], names[party]))
            continue
        network = party_bottom(bottom_of.get(party, bottom), party, shape, wide, keys, names[party])
        if aggregator.form is LinearForms and not (hasattr(network, "expand") and hasattr(network, "weight")):
            raise ConfigurationError(
                f"{type(aggregator).__name__} needs bottoms that are linear in one weight matrix, but party "
                f"{names[party]} has {type(network).__name__}; use PolynomialNetwork"
            )
        bottoms.append(network)
    bank = PartyBank(bottoms, shared=roster.shared)
    bank.keys = keys
    return bank


def party_bottom(factory: BottomFactory, party: int, shape: Shape, width: int, keys: Keys, name: str) -> nn.Module:
    """The bottom of a party; see ``build_for``."""
    return build_for(party, "bottom", keys, shape, partial(_bottom, factory, name, shape, width))


def _bottom(factory: BottomFactory, name: str, shape: Shape, width: int) -> nn.Module:
    network = _make(factory, f"the bottom of party {name}", shape, width)
    _try(network, (2, *shape), width, f"the bottom {type(network).__name__} of party {name}", "width (--model.width)")
    return network


def _copied(bottom: nn.Module, shape: Shape, leading: Shape, name: str) -> nn.Module:
    """A copy of the group's bottom, for another party of the group."""
    if shape != leading:
        raise ConfigurationError(
            f"party {name} has records of shape {shape}, but its group has records of shape {leading}; give all "
            "parties of a group the same columns"
        )
    for layer in bottom.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            raise ConfigurationError(
                f"the bottom of a group of several parties has a {type(layer).__name__}, which would normalise each "
                "party by its own records, because statistics are not summed; use LayerNorm, or no norm"
            )
    return deepcopy(bottom)


def try_aggregator(aggregator: Aggregator, width: int, roster: Roster) -> None:
    """Accept an aggregator whose aggregate has the width that it announces.

    Raises:
        ConfigurationError: naming the class and the shapes.
    """
    try:
        widths = aggregator.widths(width, roster)
        wanted = aggregator.out_width(width, roster)
    except (IndexError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{type(aggregator).__name__} cannot announce its widths: {reason(error)}; write widths and out_width as "
            "methods of (width, roster)"
        ) from error
    if roster.shared:  # the parties of a group hold different records, so zeros of all of them are no batch
        return
    who = f"plain of {type(aggregator).__name__}"
    told = f"embeddings of {len(widths)} parties, {', '.join(map(str, dict.fromkeys(widths)))} wide"
    try:
        found = _value_of_zeros(aggregator, widths)
        given = tuple(found.shape)
    except ConfigurationError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{who} cannot join {told}: {reason(error)}") from error
    if given != (2, wanted):
        raise ConfigurationError(
            f"{who} returns {given} for two records with {told}, but out_width announces {(2, wanted)}; correct one of "
            "them"
        )
    if found.dtype != torch.get_default_dtype():
        raise ConfigurationError(
            f"{who} returns {found.dtype} for {told} of {torch.get_default_dtype()}; return the dtype of the embeddings"
        )
    if aggregator.wire is None and not found.requires_grad:  # a wire has gradients of its own
        raise ConfigurationError(
            f"{who} returns a tensor without a graph, so no party would learn; compute it with torch's operations on "
            "the embeddings, without numpy, detach, no_grad or changes in place"
        )


def _value_of_zeros(aggregator: Aggregator, widths: Widths) -> Tensor:
    """The aggregate of two records whose embeddings are zero, with a graph if ``plain`` accepts that."""
    everyone = Roll.everyone(len(widths))
    with torch.inference_mode(False), torch.enable_grad():  # it may be built for a prediction
        try:
            return aggregator.plain(tuple(torch.zeros(2, own, requires_grad=True) for own in widths), everyone)
        except RuntimeError:  # as numpy() of a tensor with a graph
            return aggregator.plain(tuple(torch.zeros(2, own) for own in widths), everyone)


def refuse_uncounted(aggregator: Aggregator, widths: Widths, roll: Roll, partly_held: bool = False) -> None:
    """Refuse an aggregator whose value depends on embeddings that do not count: it is tried on random numbers.

    Args:
        aggregator: it may draw random numbers itself.
        widths: of the embeddings.
        roll: only the parties in ``roll.counted`` may change the value.
        partly_held: each record but one lacks one party, whose embedding may not change it either.

    Raises:
        ConfigurationError: naming what to change.
    """
    parties = len(widths)
    generator = torch.Generator().manual_seed(0)
    held = ~torch.eye(parties + 1, parties, dtype=torch.bool) if partly_held else None
    counted = torch.zeros(parties, dtype=torch.bool)
    counted[list(roll.counted)] = True
    counted = counted.expand(parties + 1, -1) if held is None else counted & held
    h, other = (tuple(torch.randn(parties + 1, own, generator=generator) for own in widths) for _ in range(2))
    mixed = tuple(torch.where(counted[:, m, None], x, y) for m, (x, y) in enumerate(zip(h, other, strict=True)))
    values = []
    for embeddings in (h, mixed):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)  # and not those of GPUs, which would not be put back
            values.append(aggregator.plain(embeddings, roll, held))
    if not torch.equal(*values):
        what = "rows that a party does not hold; heed present" if partly_held else "absent parties; use roll.counted"
        raise ConfigurationError(f"plain of {type(aggregator).__name__} uses the embeddings of {what} in it")


LAST_HALF = "the active party's half of the top"


def build_hosts(host: BottomFactory, inputs: int, width: int, hosts: int, keys: Keys) -> list[nn.Module]:
    """H networks of one kind, at the server; each maps the guests' concatenated embeddings to an encoding."""

    def build(number: int) -> nn.Module:
        network = _make(host, "a host", (inputs,), width)
        if number == 0:
            _try(network, (2, inputs), width, f"the host {type(network).__name__}")
        return network

    return [build_for(None, f"host {number}", keys, (inputs,), partial(build, number)) for number in range(hosts)]


def build_top(
    top: TopFactory,
    width: int,
    outputs: int,
    keys: Keys,
    widths: Widths = (),
    active: int | None = None,
    who: str = "the top",
) -> nn.Module:
    """The top for an aggregate of this width; ``active``: the party that has it, None: the server.

    A factory with a parameter ``outputs`` that is left open gets the number of outputs that the task needs; any other
    factory must choose the number itself. One with an open parameter ``widths`` gets the widths of the parties'
    embeddings, and a network whose ``forward`` takes ``columns`` is told which columns of the aggregate have arrived.
    """
    offered = {"outputs": outputs, "widths": widths}
    wanted = {name: value for name, value in offered.items() if _leaves_open(top, name)}
    return build_for(active, "top", keys, (width,), partial(_above, top, who, width, outputs, wanted))


def build_halves(
    halves: Halves, width: int, cut: int, outputs: int, keys: Keys, widths: Widths, active: int | None
) -> HalvedTop:
    """A top in two halves; the server's gives ``cut`` numbers of a record to that of the active party.

    Raises:
        ConfigurationError: if no party holds the labels, and for a half that does not fit.
    """
    if active is None:
        raise ConfigurationError(
            "top has a half for the active party, but no party holds the labels; give the number of the one that does "
            "(--model.active), or one top"
        )
    server = build_top(halves["server"], width, cut, keys, widths)
    return HalvedTop(server, build_top(halves["active"], cut, outputs, keys, widths, active, LAST_HALF), cut)


def build_norm(norm: Callable[[int], nn.Module], width: int, keys: Keys) -> nn.Module:
    """The norm over an aggregate of this width."""
    return build_for(None, "norm", keys, (width,), partial(_above, norm, "the norm", width, width, {}))


def _above(factory: TopFactory, who: str, width: int, outputs: int, wanted: Mapping[str, Any]) -> nn.Module:
    network = column_aware(_make(factory, who, width, **wanted))
    _try(network, (2, width), outputs, f"{who} {type(network).__name__}")
    return network


def _leaves_open(factory: Callable[..., Any], name: str) -> bool:
    if isinstance(factory, partial) and name in factory.keywords:
        return factory.keywords[name] in (None, 0)  # what a recipe omits; 0 if the class has no default
    parameter = inspect.signature(factory).parameters.get(name)
    return parameter is not None and parameter.default in (None, inspect.Parameter.empty)


def _make(factory: Callable[..., nn.Module], who: str, *arguments: Any, **more: Any) -> nn.Module:
    try:
        network = factory(*arguments, **more)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        given = ", ".join(map(repr, arguments))
        shaped = bool(arguments) and isinstance(arguments[0], tuple)
        # torch.nn.Linear, for example, takes the number of features and not the shape of a record
        layer = "a layer of torch takes a number and no shape: use MLP with hidden: [], or lambda shape, width: ..."
        remedy = f"; {layer}" if shaped and isinstance(error, TypeError) else ""
        raise ConfigurationError(
            f"{who} cannot be built: its factory is called with ({given}) and fails with: {reason(error)}{remedy}"
        ) from error
    refuse_other_kind(f"what the factory of {who} returns", network, nn.Module, "Linear(8, 3)")
    return network


def _try(network: nn.Module, shape: Shape, outputs: int, who: str, setting: str = "") -> None:
    training = network.training
    network.eval()  # the two rows must not change running statistics
    real = torch.zeros(shape)
    rows = real.long() if takes_whole_numbers(network, real) else real
    try:
        with torch.no_grad():
            found = network(rows)
            given = tuple(found.shape)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{who} cannot take input of per-record shape {shape[1:]}: {reason(error)}") from error
    network.train(training)
    if rows._version:
        raise ConfigurationError(
            f"{who} writes into its input, which belongs to others too; give its first layers inplace=False"
        )
    if given != (shape[0], outputs):
        other = f", or {setting} to {given[1]}" if setting and len(given) == 2 else ""
        raise ConfigurationError(
            f"{who} outputs {given[1:]} numbers for each record, but {outputs} are needed; set its output width to "
            f"{outputs}{other}"
        )
    if found.dtype != real.dtype:
        raise ConfigurationError(
            f"{who} outputs {found.dtype} for features of {rows.dtype}; return the dtype {real.dtype}"
        )


# ---- every parameter that is trained belongs to one owner, which alone trains it


def refuse_shared(owners: Iterable[nn.Module], parties: int) -> None:
    """Refuse a trained parameter in the networks of two owners: parties are apart, and each has its own numbers.

    A parameter that is not trained may be shared, and so may layers within the networks of one owner.

    Args:
        owners: the networks of the parties, then of further hosts, then the server's.
        parties: how many parties there are.

    Raises:
        ConfigurationError: naming both owners and the parameter.
    """
    networks = list(owners)
    hosts = len(networks) - parties - 1
    everyone = [*(f"party {m}" for m in range(parties)), *(f"host {n}" for n in range(hosts)), "the server"]
    owner: dict[int, str] = {}
    for who, network in zip(everyone, networks, strict=False):  # heads of parties have no server beside them
        for name, parameter in network.named_parameters():
            first = owner.setdefault(id(parameter), who)
            if first != who and parameter.requires_grad:
                raise ConfigurationError(
                    f"{first} and {who} have one parameter together, {name} {tuple(parameter.shape)}, and would train "
                    "it as one party; make new layers in every call of the factory, or freeze the layer that is shared"
                )


def refuse_parameters_of(aggregator: Aggregator) -> None:
    """Refuse an aggregator that holds parameters: no optimiser has them, and no checkpoint.

    Raises:
        ConfigurationError: naming the attribute.
    """
    attributes = dict(vars(aggregator))
    if isinstance(aggregator, nn.Module):  # its parameters are in no attribute of their own
        attributes |= dict(aggregator.named_parameters())
    for name, value in attributes.items():
        parameters = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(parameter, nn.Parameter) and parameter.requires_grad for parameter in parameters):
            raise ConfigurationError(
                f"{type(aggregator).__name__} holds parameters ({name}), which nobody would train, because an "
                "aggregator only joins embeddings; put them into the top"
            )


def refuse_unregistered(module: nn.Module) -> None:
    """Refuse parameters in a list, tuple or dictionary, which torch neither trains nor saves.

    Raises:
        ConfigurationError: naming the attribute and the class to use.
    """
    known = {id(parameter) for parameter in module.parameters()}
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, list | tuple | dict):
            continue
        for part in value.values() if isinstance(value, dict) else value:
            parameters = part.parameters() if isinstance(part, nn.Module) else [part]
            trained = (one for one in parameters if isinstance(one, nn.Parameter) and one.requires_grad)
            if any(id(one) not in known for one in trained):
                container = "nn.ModuleDict" if isinstance(value, dict) else "nn.ModuleList or nn.ParameterList"
                raise ConfigurationError(
                    f"{name} of {type(module).__name__} is a {type(value).__name__} with parameters, which are neither "
                    f"trained nor saved; use {container}"
                )


# ---- factories: functions that make networks and optimisers when the data are known


_MAKES = {
    "bottom": "a network from a party's shape and the width, such as MLP, or "
    "lambda shape, width: nn.Linear(shape[0], width)",
    "host": "a network from the widths of its input and output, such as MLP",
    "top": "a network from the width of its input, and from outputs if it takes them, such as Linear",
    "optimizer": "an optimiser from parameters, such as partial(torch.optim.SGD, lr=0.1)",
    "lr_scheduler": "a schedule from the optimiser, such as partial(CosineAnnealingLR, T_max=10)",
}


def refuse_made(**given: Any) -> None:
    """Accept functions and classes; None stands for a default.

    Args:
        given: by setting; of ``bottom_of``, and of a ``top`` in halves, the values are checked.

    Raises:
        ConfigurationError: for a network, an optimiser or a schedule that is made already, and for what makes nothing.
    """
    parties = given.get("bottom_of")
    if parties is not None and not (isinstance(parties, Mapping) and all(isinstance(m, int | str) for m in parties)):
        raise ConfigurationError(
            "bottom_of must be a dictionary from numbers or names of parties to factories, such as {1: MLP}; got "
            f"{parties!r}"
        )
    top = given.get("top")
    if isinstance(top, Mapping) and set(top) != {"server", "active"}:
        raise ConfigurationError(f"a top in halves must have the keys server and active; got {sorted(map(str, top))}")
    for setting, value in given.items():
        if isinstance(value, Mapping):
            for name, own in value.items():
                _check(f"{setting}[{name}]", "top" if setting == "top" else "bottom", own)
        elif value is not None:
            _check(setting, setting, value)


def made(setting: str, factory: Callable[..., T], given: object, kind: type = object) -> T:
    """What a factory makes of the parameters or the optimiser.

    Raises:
        ConfigurationError: if it fails, or makes something else.
    """
    try:
        thing = factory(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{setting} cannot be made: {reason(error)}") from error
    if not isinstance(thing, kind):
        raise ConfigurationError(f"{setting} must make {_MAKES[setting]}; it makes {thing!r}")
    return thing


def _check(setting: str, kind: str, value: object) -> None:
    if callable(value) and not isinstance(value, nn.Module | Optimizer | LRScheduler):
        return
    what = repr(value) if isinstance(value, str | int | float) else f"the {type(value).__name__} itself"
    raise ConfigurationError(f"{setting} must make {_MAKES[kind]}; got {what}")
