"""``lightning-vfl audit``: train a recipe while an attacker listens, and run attacks on what it has received."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isnan
from time import monotonic

from jsonargparse import ArgumentParser
from jsonargparse.typing import NonNegativeFloat

from lightning_vfl import audit
from lightning_vfl.audit import Attack, Finding
from lightning_vfl.audit.report import print_findings, refuse_report, write_reports
from lightning_vfl.audit.transcript import LIMIT_BYTES
from lightning_vfl.audit.verdicts import NOT_ATTACKED, NOT_SHOWN, judged
from lightning_vfl.callbacks import Audit
from lightning_vfl.commands.audit_trainings import SaysTime, Tuned, attack_twin, may_be_tuned, tune, with_settings
from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.datamodules.party_number import party_number
from lightning_vfl.errors import nearest

_ABOUT = (
    "Train a recipe while an attacker listens to the messages, and run attacks on what it has received. The command "
    "takes the options of fit (--config data/digits --config protocol/vfedsec --trainer.max_epochs 3) and the options "
    "below. It prints a table with success, 95 % interval, chance, the success without the protocol, and a verdict. "
    "Attacks that find nothing are tried on an unprotected twin of the recipe too, which is trained after it: if they "
    "find nothing there either, they show nothing."
)

USUAL_SECONDS = 60.0  # of a shadow training for the usual attacks


class AuditCommand(Command):
    """Fit a recipe with the callback ``Audit``."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--attacker",
            type=str,
            nargs="+",
            required=True,
            help="party:NUMBER, party:NAME, server, or several joined by +; several words are several attackers of one "
            "training",
        )
        parser.add_argument(
            "--attacks", type=list[Attack] | None, default=None, help="list of attacks (default: all that suit)"
        )
        parser.add_argument(
            "--tune",
            type=NonNegativeFloat | None,
            default=None,
            metavar="SECONDS",
            help="choose settings of attacks by a shadow training of at most so many seconds on validation records; "
            "0: keep their settings (default: 60, or 0 with --attacks)",
        )
        parser.add_argument("--report", type=str, help="file *.parquet, *.md or *.html, or several, joined by commas")
        parser.add_argument("--limit_bytes", type=float, default=float(LIMIT_BYTES), help="memory of the transcript")
        parser.add_argument(
            "--fail-above", type=str, nargs="+", default=[], help="NAME=x: exit status 1 if an attack has more success"
        )

    def run(self, cli: CLI) -> int:
        limits = dict(_limit(text) for text in cli.given.fail_above)
        cli.build()
        attacks = cli.config_init[self.name].attacks
        _refuse_unknown(limits, attacks)
        audits = self._audits(attacks, cli)
        refuse_report(cli.given.report)
        seconds = cli.given.tune
        if seconds is None:
            seconds = USUAL_SECONDS if attacks is None else 0.0
        tuned: Tuned = {}
        if seconds and may_be_tuned(audits):
            tuned = tune(cli, audits, seconds)
            cli.build()
            audits = self._audits(cli.config_init[self.name].attacks, cli)
            for one in audits:
                one.revise = lambda attacks, epochs: with_settings(attacks, tuned)
        cli.trainer.callbacks += [*audits, SaysTime(audits)]
        cli.take_folder()
        began = monotonic()
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        findings = [found for one in audits for found in one.findings]
        weak = {(f.attacker, f.attack) for f in judged(findings) if f.verdict.startswith(NOT_SHOWN)}
        findings = judged(findings, attack_twin(cli, audits, weak, monotonic() - began))
        print_findings(findings)
        print_files(write_reports(findings, cli.given.report, cli.model))
        return 1 if _above(findings, limits) else 0

    def _audits(self, attacks: Sequence[Attack] | None, cli: CLI) -> list[Audit]:
        """The audits of the attackers, who are called in the table as on the command line."""
        audits = []
        for who in cli.given.attacker:
            one = Audit(_numbered(who, cli.datamodule), attacks, None, cli.given.limit_bytes)
            one.attacker = replace(one.attacker, name=who)
            one.has_twin = True
            audits.append(one)
        return audits


def _numbered(attacker: str, data: VerticalDataModule) -> str:
    """An attacker with numbers in place of the names that the data give their parties."""
    words = []
    for word in attacker.split("+"):
        who, _, name = word.partition(":")
        named = who == "party" and name and not name.isdecimal()
        words.append(f"party:{party_number(name, data.party_names)}" if named else word)
    return "+".join(words)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"--fail-above takes NAME=x, such as LabelsByDirection=0.6; got '{text}'") from None


def _refuse_unknown(limits: Iterable[str], attacks: Sequence[Attack] | None) -> None:
    """Refuse a limit of an attack that will not run, before the training; without a list, any of the toolkit may run.

    Raises:
        UsageError: naming the attacks.
    """
    kinds = map(type, attacks) if attacks is not None else (getattr(audit, name) for name in audit.__all__)
    names = sorted(
        {kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, Attack)} - {"Attack"}
    )
    for name in limits:
        if name not in names:
            raise UsageError(f"--fail-above names '{name}', which is not an attack; {nearest(name, names)}")


def _above(findings: Sequence[Finding], limits: dict[str, float]) -> bool:
    """Whether an attack has more success than its limit, or could not be tried; such attacks are printed.

    Raises:
        UsageError: for a limit of an attack that has not run.
    """
    names = {found.attack.partition("(")[0] for found in findings}
    for name in limits:
        if name not in names:
            raise UsageError(f"--fail-above names '{name}', but the attacks are {', '.join(sorted(names))}")
    failed = False
    for found in findings:
        limit = limits.get(found.attack.partition("(")[0])
        if limit is not None and not isnan(found.success) and found.success > limit:
            print(f"{found.attack} has {found.measure} {found.success:.3f}, more than {limit:g}")
            failed = True
        if limit is not None and found.verdict.startswith(NOT_ATTACKED):
            print(f"{found.attack}: {found.verdict}")
            failed = True
    return failed
