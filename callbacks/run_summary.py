"""A summary of a run, in a few lines at its end."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from rich.table import Table
from torch import Tensor

from lightning_vfl.privacy.digits import rounded_up, shown
from lightning_vfl.privacy.events import AGAINST, ASSUMED, UNITS, coalitions, in_words, label
from lightning_vfl.privacy.loss_distribution import Account, Figure
from lightning_vfl.privacy.verdict import verdict
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.columns_told import Noise
from lightning_vfl.terminal import console

LEARNING_RATE = "learning rate found"
_DETAILS = (  # lines that the full summary alone has
    *("passes over", "virtual time", "sent per", "sent to peers", "received per"),
)


class RunSummary(Callback):
    """Prints rounds, virtual time, bytes and metrics at the end of fit, validate and test, and ε after predict too.

    The first line is the headline: the first metric, and ε with what it is worth in words (``verdict``). Traffic and
    virtual time are printed with ``full``; the report and the loggers always have them.

    Bytes, seconds and rounds are those of the training; after loading a checkpoint, those up to the checkpoint. ε is
    taken from the run's privacy ledger, which also has the rounds after the checkpoint.

    Args:
        enabled: False: print no summary.
        full: print every line. ``--summary full`` sets it.
    """

    def __init__(self, enabled: bool = True, full: bool = False) -> None:
        self.enabled = enabled
        self.full = full

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a training whose ε could not be printed at its end."""
        if self.enabled and isinstance(pl_module, VFLModule):
            for unit in UNITS:
                pl_module.refuse_unit(unit)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer, pl_module, "fit", ("train/", "val/"))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._print(trainer, pl_module, "validate", ("val/",))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer, pl_module, "test", ("test/",))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what a prediction has cost, if the aggregator accounts for privacy."""
        if isinstance(pl_module, VFLModule) and pl_module.aggregator.accounting is not None:
            self._print(trainer, pl_module, "predict", ())

    def _print(self, trainer: Trainer, module: LightningModule, stage: str, prefixes: tuple[str, ...]) -> None:
        if not (self.enabled and trainer.is_global_zero and isinstance(module, VFLModule)):
            return
        table = Table(title=f"Summary of {stage}", title_justify="left", show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        figures = module.privacy.tightest()
        print(headline(trainer, module, prefixes, figures))
        for what, value in summary_lines(trainer, module, prefixes, figures=figures):
            if self.full or not what.startswith(_DETAILS):
                table.add_row(what, value)
        console().print(table)
        checkpoint = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if checkpoint and trainer.state.fn == TrainerFn.FITTING:
            print(f"checkpoint: {_from_here(checkpoint)}")  # on a line of its own, so that it can be copied


def headline(trainer: Trainer, module: VFLModule, prefixes: tuple[str, ...], figures: Mapping[str, Figure]) -> str:
    """The first metric of a run, and its ε with a verdict in words.

    Args:
        trainer: has the metrics.
        module: the protocol.
        prefixes: of the metrics, the most telling last.
        figures: unit -> ε.
    """
    metrics = trainer.callback_metrics
    own = sorted((name for name in metrics if name.startswith(prefixes[-1:] or ("-",))), key=_is_loss)
    score = f"{own[0]} {float(metrics[own[0]]):.4f}; " if own else ""
    unit = module.privacy.unit
    accounting = module.aggregator.accounting
    if accounting is None:
        if module.noise_on_uploads != Noise.NONE:
            return f"{score}no ε, because no accountant charges the noise on embeddings"
        hidden = "protects no column" if module.wire.traits.visible else "single uploads are hidden, not their sums"
        return f"{score}no ε, because no noise is added to embeddings: {hidden}"
    if unit not in figures:
        return f"{score}no ε is known"
    remark = ", simulated" if accounting.simulated else ""
    words = f"ε {figures[unit]} of a {label(unit)}, at δ = {module.privacy.delta:g}"
    return f"{score}{words}: {verdict(figures[unit].epsilon)}{remark}"


def _is_loss(name: str) -> tuple[bool, str]:
    return name.endswith(("/loss", "/unanswered")), name


def summary_lines(
    trainer: Trainer,
    module: VFLModule,
    prefixes: tuple[str, ...],
    tightest: bool = True,
    figures: Mapping[str, Figure] | None = None,
) -> Iterator[tuple[str, str]]:
    """What the summary says of a run: names and values as texts; metrics are those with these prefixes.

    ``tightest``: give the smallest known ε, which takes seconds after thousands of rounds; False: the Rényi figure.
    ``figures``: the smallest known ε by unit, if they are known already.
    """
    names = getattr(module.datamodule, "party_names", ())
    parties = module.roster.parties
    yield "protocol", f"{type(module).__name__} with {type(module.aggregator).__name__}, {parties} parties"
    for name, value in sorted(trainer.callback_metrics.items()):
        if name.startswith(prefixes):
            yield name, f"{float(value):.4f}"
    if module.lr is not None:
        yield LEARNING_RATE, f"{module.lr:.6g}"
    if faults := getattr(module.datamodule, "faults", ()):
        yield "faults in the records", ", ".join(map(repr, faults))
    rounds = module.books.training_rounds
    given_up = module.books.given_up
    yield "training rounds", f"{rounds:,}" + (f", {given_up:,} of them given up" if given_up else "")
    if module.books.corrected:
        yield (
            "wrong answers corrected",
            ", ".join(f"{n:,} of party {m}" for m, n in sorted(module.books.corrected.items())),
        )
    standing = module.standing()
    yield "passes over the data", f"{standing['progress/passes']:.2f}"
    yield "virtual time", f"{standing['clock/virtual_seconds']:,.3f} s"
    for direction, words in (
        ("up", "sent per party"),
        ("peer", "sent to peers per party"),
        ("down", "received per party"),
    ):
        for kind in module.books.meter.kinds(direction):
            yield f"{words}: {kind}", per_party(module.books.meter.total(direction, kind), names)
    if (hosts := getattr(module.books.own, "host_meter", None)) is not None:
        for kind in hosts.kinds("up"):
            yield f"sent per host: {kind}", per_party(hosts.total("up", kind))
    uploads = -(-rounds // max(module.books.epoch_batches, 1))  # a record is uploaded once an epoch
    if uploads and (protection := module.protection(uploads)):
        yield "protection", protection
    if weights := weights_line(module):
        yield "weights", weights
    accounting = module.aggregator.accounting
    remark = "" if accounting is None or accounting.simulated is None else f", {accounting.simulated}"
    known: Mapping[str, Figure]
    if tightest:
        known = module.privacy.tightest() if figures is None else figures
    else:
        known = {unit: Figure(epsilon, Account.RENYI) for unit, epsilon in module.privacy.figures().items()}
    for unit, figure in known.items():
        yield f"privacy ε of a {label(unit)}, δ = {module.privacy.delta:g}", f"{figure}{remark}"
    yield from _against_coalitions(module, tightest)
    if module.label_privacy.accountant is not None:
        epsilon = module.label_privacy.epsilon()
        delta = module.label_privacy.delta
        yield f"privacy ε of a label, {ASSUMED}, δ = {delta:g}", shown(epsilon)
        yield "privacy ledger of labels", module.label_privacy.coverage() or ""
    if coverage := module.privacy.coverage():
        yield "privacy ledger", coverage
    evaluation = "through the protocol" if module.protected_evaluation else "in the clear, not metered"
    if getattr(module, "faults_in_evaluation", False):
        evaluation = "with faults, waiting rule and policy; metered"
    if accounting is not None and module.privacy.accountant is not None:
        evaluation += "; its records are charged" if module.protected_evaluation else "; its records are not charged"
    yield "evaluation", evaluation
    if disclosed := module.privacy.in_the_clear():
        yield "sent in the clear", disclosed


def weights_line(module: VFLModule) -> str | None:
    """What follows from where initial weights come from; None: nobody could take it for a protection."""
    if module.place is not None and module.keys:
        return "initial weights are secret; they do not hide what uploads show, and how these change between rounds"
    if module.place is not None:
        return "the server can compute every column: seeded weights"
    if module.keys:
        return "replayed: initial weights follow from the secrets of the federation"
    if module.wire.traits.visible:
        return None
    return (
        "simulated: weights follow from the seed; in a federation with seeded weights the server computes every column"
    )


def _from_here(path: str) -> str:
    """The path from the current folder, or the path itself if it is elsewhere."""
    return os.path.relpath(path) if Path(path).is_absolute() and Path(path).is_relative_to(Path.cwd()) else path


def _against_coalitions(module: VFLModule, tightest: bool) -> Iterator[tuple[str, str]]:
    """ε against the server and parties that disclose their draws to it, if this ε differs."""
    privacy = module.privacy
    accounting = module.aggregator.accounting
    if privacy.accountant is None or accounting is None:
        return
    for colluders in coalitions(module.roster.parties, accounting.colluders(module.roster)):
        fewer = privacy.accountant.against(colluders)
        for unit in AGAINST:
            epsilon = fewer.epsilon(privacy.delta, unit)
            if rounded_up(epsilon) != rounded_up(privacy.accountant.epsilon(privacy.delta, unit)):
                others = in_words(colluders)
                figure = fewer.tightest(privacy.delta, unit) if tightest else Figure(epsilon, Account.RENYI)
                yield f"privacy ε of a {label(unit)}, against the server and {others}", str(figure)


def per_party(count: Tensor, names: Sequence[str] = ()) -> str:
    """(M,) bytes as a text, with one figure if all parties are equal, else with the names of the parties.

    Examples:
        >>> import torch
        >>> per_party(torch.tensor([2000, 2000])), per_party(torch.tensor([2000, 1]), ["bank", "shop"])
        ('2.0 kB each', 'bank 2.0 kB, shop 1 B')
        >>> per_party(torch.tensor([2000, 1]))
        'party 0 2.0 kB, party 1 1 B'
    """
    figures = [in_bytes(int(n)) for n in count]
    if len(set(count.tolist())) == 1:
        return f"{figures[0]} each"
    known = list(names) if len(names) == len(figures) else [str(party) for party in range(len(figures))]
    called = [f"party {name}" if name.isdecimal() else name for name in known]
    return ", ".join(f"{name} {figure}" for name, figure in zip(called, figures, strict=True))


def in_bytes(count: int) -> str:
    """Bytes in decimal units.

    Examples:
        >>> in_bytes(999), in_bytes(1_608_960)
        ('999 B', '1.6 MB')
    """
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
