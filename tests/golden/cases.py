"""Which trainings have committed bits: recipes of a protocol, a policy and faults, with settings for small runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SPLIT = ("concat", "sum", "mean", "max", "fedvs", "lagrange_shared", "vfedsec", "pbm", "pbm_local", "wait_dp")
IN_THE_CLEAR = ("concat", "sum", "mean", "max")
POLICIES = ("stale", "buffer", "zeros", "skip")
SPLIT_FAULTS = ("fedvs_stragglers", "fedvs_figure1", "unreliable", "vfedsec_dropout")
FAULTS_OF = {  # besides faults/unreliable
    "mean": SPLIT_FAULTS,
    "concat": SPLIT_FAULTS,
    "fedvs": ("fedvs_stragglers",),
    "vfedsec": ("vfedsec_dropout",),
    "lagrange_shared": ("fedvs_stragglers",),
}
CRASHES = ("dvfl_guest_crashes", "dvfl_connection_crashes", "dvfl_host_crashes")

SILENT = {"unreliable", "dvfl_guest_crashes", "dvfl_connection_crashes"}  # with these, waiting needs a timeout
PATIENT = {"waiting": {"class_path": "WaitForAll", "init_args": {"timeout": 1.0}}}
SMALL: dict[str, Any] = {"width": 6, "bottom.hidden": [5], "top.hidden": [4]}
SECRETS: dict[str, dict[str, Any]] = {
    "fedvs": {"aggregator.insecure_seeded_secrets": True, "bottom.degree": 2},
    "lagrange_shared": {"aggregator.insecure_seeded_secrets": True},
    "vfedsec": {"aggregator.insecure_seeded_secrets": True},
    "pbm": {"aggregator.inner.insecure_seeded_secrets": True, "aggregator.draws": "seeded"},
    "pbm_local": {"aggregator.draws": "seeded"},
    "wait_dp": {"aggregator.draws": "seeded"},
}


@dataclass(frozen=True)
class Case:
    """One golden run.

    Args:
        recipes: packaged recipes, later ones over earlier ones.
        settings: of the model, dotted names.
        data: the class of ``tests.golden.data``.
        rounds: steps in all.
        cut: the step after which the run is resumed from a checkpoint.
    """

    recipes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "Tiles"
    rounds: int = 20
    cut: int = 13


def cases() -> dict[str, Case]:
    """Every case by its name."""
    return dict(_cases())


def _cases() -> Iterator[tuple[str, Case]]:
    for protocol in SPLIT:
        yield protocol, _of(protocol)
        for faults in dict.fromkeys(("unreliable", *FAULTS_OF.get(protocol, ()))):
            yield f"{protocol}, {faults}", _of(protocol, f"faults/{faults}")
    for protocol in ("mean", "concat"):
        for policy in POLICIES:
            yield f"{protocol}, {policy}, unreliable", _of(protocol, f"policy/{policy}", "faults/unreliable")
        for policy in ("wait", "ignore"):
            yield f"{protocol}, {policy}", _of(protocol, f"policy/{policy}", "faults/fedvs_stragglers")
        for faults in CRASHES:
            yield f"{protocol}, zeros, {faults}", _of(protocol, "policy/zeros", f"faults/{faults}")
    for protocol in IN_THE_CLEAR:
        yield f"{protocol}, partly held", _of(protocol, "policy/stale", "faults/unreliable", data="PartlyHeldTiles")
    yield from _masked()
    yield from _others()


def _masked() -> Iterator[tuple[str, Case]]:
    """The layouts and executions of masked and coded sums."""
    whole = {"aggregator.layout": "sum", "waiting": None, "missing": None, "norm": None}
    yield "vfedsec, sum", _of("vfedsec", more=whole)
    yield "vfedsec, sum, dropout", _of("vfedsec", "faults/vfedsec_dropout", more=whole)
    recovery = whole | {"aggregator.recovery": {"threshold": 3}}
    deadline = recovery | {"waiting": {"class_path": "Deadline", "init_args": {"seconds": 0.3}}}
    yield "vfedsec, recovery, unreliable", _of("vfedsec", "faults/unreliable", more=deadline)
    yield "vfedsec, equivalent", _of("vfedsec", more={"aggregator.execution": "equivalent"})
    yield "vfedsec, skip", _of("vfedsec", "policy/skip", "faults/unreliable")
    yield "vfedsec, protected", _of("vfedsec", "faults/unreliable", more={"evaluate": "protocol"})
    yield "fedvs, equivalent", _of("fedvs", "faults/unreliable", more={"aggregator.execution": "equivalent"})
    yield "fedvs, wrong", _of("fedvs", more={"aggregator.wrong": 0, "aggregator.rerandomise": False})
    yield "fedvs, protected", _of("fedvs", more={"evaluate": "protocol"})
    yield "pbm, recovery", _of("pbm", "faults/unreliable", more={"aggregator.inner.recovery": {"threshold": 3}})


def _others() -> Iterator[tuple[str, Case]]:
    """The protocols that are not synchronous."""
    for faults in ("", "unreliable", *CRASHES):
        extra = (f"faults/{faults}",) if faults else ()
        name = f", {faults}" if faults else ""
        yield f"vafl{name}", _of("vafl", *extra)
        yield f"cvfl{name}", _of("cvfl", *extra)
        yield f"dvfl{name}", _decoupled(*extra)
    yield "vafl, noise", _of("vafl", more={"noise": 0.1})
    yield "cvfl, slow_50", _of("cvfl", "faults/cvfl_slow_50")
    yield "cvfl, slow_95", _of("cvfl", "faults/cvfl_slow_95")
    for variant in ("sync", "single", "centralized"):
        yield f"cvfl, {variant}", _of("cvfl", "faults/unreliable", more={"variant": variant})
    yield "cvfl, q = 3", _of("cvfl", more={"q": 3.0, "slower": {1: 0.5}})
    stale = {"missing": {"class_path": "Stale"}, "waiting": {"class_path": "Deadline", "init_args": {"seconds": 0.2}}}
    yield "cvfl, stale", _of("cvfl", "faults/unreliable", more=stale)


def _of(protocol: str, *others: str, data: str = "Tiles", more: Mapping[str, Any] | None = None) -> Case:
    settings: dict[str, Any] = SMALL | SECRETS.get(protocol, {})
    if protocol == "fedvs":  # its bottoms have no hidden layers
        settings = {name: value for name, value in settings.items() if name != "bottom.hidden"}
    silent = any(name.removeprefix("faults/") in SILENT for name in others)
    if silent and not any(name.startswith("policy/") for name in others) and protocol != "vafl":
        settings |= {"waiting.timeout": 1.0} if protocol in ("fedvs", "vfedsec") else PATIENT
    if protocol in ("fedvs", "lagrange_shared", "vfedsec") and others:
        settings |= {"allow_embeddings_by_subtraction": True}
    settings |= dict(more or {})
    return Case((f"protocol/{protocol}", *others), settings, data)


def _decoupled(*others: str) -> Case:
    small = {
        "width": 4,
        "host_width": 5,
        "guest_epochs": 1,
        "bottom.hidden": [5],
        "host.hidden": [5],
        "top.hidden": [4],
    }
    return Case(("protocol/dvfl", *others), small)
