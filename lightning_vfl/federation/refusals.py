"""Settings that do not work between processes, refused before a connection is made."""

from typing import Any

from lightning_vfl.align.group import check_installed
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Alignment, Weights
from lightning_vfl.federation.run import Run
from lightning_vfl.missing import Exclude
from lightning_vfl.protocols.asynchronous import AsyncVFL
from lightning_vfl.protocols.cascade import CascadeVFL
from lightning_vfl.protocols.checks import refuse_scaler
from lightning_vfl.protocols.decoupled import DecoupledVFL
from lightning_vfl.protocols.heads import HeadsVFL
from lightning_vfl.protocols.one_shot import OneShotVFL
from lightning_vfl.protocols.split import SplitVFL
from lightning_vfl.support import Part, refuse_unsupported
from lightning_vfl.waiting import WaitForAll

_BYPASSED = "step", "output", "output_of", "output_in_the_clear", "run_round", "training_step"


def refuse_protocol(kind: type) -> None:
    """Refuse a class of protocols that works in simulations only: processes of a federation run rounds of their own.

    Raises:
        ConfigurationError: with the protocols to use instead.
    """
    refuse_unsupported(kind, [Part.FEDERATION])
    ours = next(base for base in kind.__mro__ if base.__module__.partition(".")[0] == "lightning_vfl")
    if own := [name for name in _BYPASSED if getattr(kind, name, None) is not getattr(ours, name, None)]:
        raise ConfigurationError(
            f"{kind.__name__} runs simulated only, because it overrides {own[0]}, which the processes of a federation "
            f"do not call; use {ours.__name__}, or override head, which the server calls"
        )


def refuse_unfederated(run: Run, consents: bool = True) -> None:
    """Refuse protocols, aggregators, data and trainers that work in simulations only.

    Args:
        run: what a process is given.
        consents: this host agrees to an evaluation in the clear.

    Raises:
        ConfigurationError: with one line that names what to use instead.
    """
    model = run.model
    trainer = run.trainer
    data = run.data
    refuse_protocol(type(model))
    if isinstance(model, AsyncVFL):
        _refuse_events(model, data)
    elif isinstance(model, CascadeVFL):
        _refuse_cascade(model, run.injected)
    elif isinstance(model, OneShotVFL) and model.active is not None:
        raise ConfigurationError(
            "OneShotVFL needs the labels at the server between processes, which trains the top alone; leave out "
            "active, or use DecoupledVFL"
        )
    elif isinstance(model, SplitVFL):
        _refuse_subsets(model, run.injected)
    if model.labels_everywhere:
        refuse_scaler(trainer, "gradients of several heads cannot be scaled in several processes")
        if model.active is not None:
            raise ConfigurationError(
                f"{type(model).__name__} needs the labels at the server too, which scores; leave out active"
            )
    if model.halved:
        refuse_scaler(trainer, "gradients that cross the cut of a top cannot be scaled in two processes")
    if model.labels_stay and any(getattr(callback, "at", None) == "parties" for callback in trainer.callbacks):
        raise ConfigurationError(
            "predictions.at: parties would tell all parties what the label holder alone predicts; leave it out"
        )
    if run.charter.weights == Weights.SECRET:
        refuse_seeded(model.aggregator, getattr(model, "downlink", None))
    aggregator = model.aggregator
    kind = type(aggregator).__name__
    if aggregator.wire is not None and aggregator.wire.traits.equivalent:
        raise ConfigurationError(
            f"execution: equivalent of {kind} computes all parties' integers in one place; use the other execution"
        )
    if aggregator.wire is not None and not model.protected_evaluation and not consents:
        raise ConfigurationError(
            f"evaluate: plain would send every embedding of {kind} in the clear; use evaluate: protocol, or consent "
            "with evaluate: plain in seat.yaml of EVERY party"
        )
    if not (run.local or data.own_files):
        raise ConfigurationError(
            f"{type(data).__name__} is one file that a simulation cuts; run lightning-vfl cut, or federate --local"
        )
    if data.own_files and run.charter.alignment == Alignment.PSI:
        check_installed()
    if data.own_files and model.active is not None and run.charter.alignment == Alignment.GIVEN:
        raise ConfigurationError(
            "alignment: given compares the ids of the parties with those of the server, which has no table if a party "
            f"has the labels (active: {model.active}); use alignment: clear"
        )
    if (model.active is not None or model.labels_everywhere) and getattr(data, "sample_weight", None):
        raise ConfigurationError(
            "sample weights with the labels at a party are not between processes yet; leave out sample_weight"
        )
    if data.own_files and not data.everybody_holds:
        _refuse_partly_held(run)
    if trainer.world_size > 1:
        raise ConfigurationError("a process of a federation hosts one seat; use devices: 1 and no strategy")


def _refuse_subsets(model: SplitVFL, injected: bool) -> None:
    """Refuse subsets of the parties that processes cannot form.

    Raises:
        ConfigurationError: with what to use instead.
    """
    if model.faults_in_evaluation:
        raise ConfigurationError("faults_in_evaluation runs simulated only; leave it out between processes")
    if model.subsets.absences and not injected:
        raise ConfigurationError(
            f"subsets: {type(model.subsets).__name__} with by: round runs simulated only, because between processes "
            "all parties that are there are called; use by: record"
        )
    if model.halved and model.subsets.repeats:
        raise ConfigurationError(
            f"subsets: {type(model.subsets).__name__} has several rows of a record at the cut of a top in halves, and "
            "the label holder has one; use DropParties"
        )


def _refuse_partly_held(run: Run) -> None:
    """Refuse what needs to know, in the process of a party, which records other parties hold.

    Raises:
        ConfigurationError: with what to use instead.
    """
    if run.charter.alignment == Alignment.PSI:
        raise ConfigurationError(
            "alignment: psi finds the records that all parties hold; use overlap: inner, or alignment: clear"
        )
    if run.injected or isinstance(run.model, AsyncVFL | CascadeVFL | DecoupledVFL | HeadsVFL | OneShotVFL):
        what = "--inject" if run.injected else type(run.model).__name__
        raise ConfigurationError(
            f"{what} needs the holders of all records in every process; use overlap: inner between processes"
        )


def refuse_seeded(*parts: Any) -> None:
    """Refuse parts, and parts of these, whose noise or masks every process could compute from the seed.

    Raises:
        ConfigurationError: naming the part and its setting.
    """
    left = [(part, type(part).__name__) for part in parts]
    seen = set[int]()
    while left:
        part, name = left.pop()
        if id(part) in seen or not hasattr(part, "__dict__") or isinstance(part, type):
            continue
        seen.add(id(part))
        settings = vars(part)
        for setting, insecure in (("draws", "seeded"), ("insecure_seeded_secrets", True)):
            if settings.get(setting) == insecure:
                raise ConfigurationError(
                    f"{setting}: {str(insecure).lower()} of {name} lets the server and every party "
                    "compute what protects a party; leave it out, or use weights: seeded in federation.yaml to test"
                )
        left += [(inner, name) for inner in settings.values()]


def _refuse_cascade(model: CascadeVFL, injected: bool) -> None:
    """Refuse settings that cascade events between processes do not have.

    Raises:
        ConfigurationError: naming the first one.
    """
    refused = {
        "--inject: a party that is lost is waited for; leave it out": injected,
        "an aggregator that hides embeddings: an active party reads what is sealed for it; use Concat, Sum, Mean or "
        "Max": model.aggregator.wire is not None,
        "variant: centralized: it has all tables in one place; use async, sync or single": not model.distributed,
        "q above 1: the regularisers of bottoms are not sent; use q: 1": model.q > 1,
        "waiting: every event needs all parties; leave it out": type(model.waiting) is not WaitForAll,
        "missing: every event needs all parties; leave it out": type(model.missing) is not Exclude,
    }
    for what, given in refused.items():
        if given:
            raise ConfigurationError(f"CascadeVFL between processes does not take {what}")


def _refuse_events(model: AsyncVFL, data: Any) -> None:
    """Refuse settings that asynchronous events between processes do not have."""
    if model.active is not None:
        raise ConfigurationError(
            f"AsyncVFL needs the labels at the server between processes, because party {model.active} would have to "
            "send them for the batches of all others; leave out active, or use SplitVFL"
        )
    if data.num_workers:
        raise ConfigurationError(
            f"AsyncVFL loads a batch between processes when its upload has come; use num_workers: 0, not "
            f"{data.num_workers}"
        )
