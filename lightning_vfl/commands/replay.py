"""``lightning-vfl replay``: simulate what a federation has recorded."""

from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI, Command

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


class ReplayCommand(Command):
    """A fit whose rounds are those of a record."""

    about = (
        "Simulate what a federation has recorded: who was called, who was late or gone, and who came back. The weights "
        "are those of the federation, bit for bit, on the same kind of machine with one thread. It needs the secrets "
        "from which each process drew its initial weights."
    )

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument("events", type=str, metavar="EVENTS", help="the file of serve --events")
        parser.add_argument(
            "--secrets",
            type=str | dict[str, str] | None,
            default=None,
            help="{NAME: PATH, ...}, the secret.key of every process or its folder; or a folder that has a folder for "
            "each process (default: the folder of EVENTS)",
        )

    def run(self, cli: CLI) -> int:
        from lightning_vfl.federation.record import Replayed
        from lightning_vfl.federation.replaying import Replay, drawn_anew, secrets_of

        record = Replayed(cli.given.events)
        secrets = secrets_of(record, cli.given.secrets)
        cli.build()
        replay = Replay(record, secrets)
        cli.model.keys.update((owner, keys[0]) for owner, keys in secrets.items())
        where = "the secrets of all processes" if secrets else "the seed: no --secrets are given (weights: seeded)"
        print(f"replay: initial weights follow from {where}")
        if drawn_anew(cli.model.aggregator):
            print(f"replay: the noise of {type(cli.model.aggregator).__name__} is drawn anew, so weights differ")
        cli.trainer.callbacks.append(replay)
        cli.take_folder()
        cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=cli.given.get("ckpt_path"))
        return 0
