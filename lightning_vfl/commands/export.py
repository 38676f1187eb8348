"""``lightning-vfl export``: the halves of a trained model as programs that run without this toolkit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import short
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonargparse import ArgumentParser

    from lightning_vfl.protocols import VFLModule
    from lightning_vfl.types import VerticalBatch

_ABOUT = (
    "Write each party's half of a trained model (the scaling of its features and its bottom) and the server's half "
    "(the aggregation and the top), each as a program of torch.export and in ONNX, with a manifest. A half has no "
    "weight and no scaling of another half. No recipe and no training data are needed, except for --statistics and "
    "--calibration."
)


class ExportCommand(Command):
    """Read a checkpoint and write its halves."""

    about = _ABOUT

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument(
            "--ckpt_path", type=str, required=True, help="a .ckpt file, the folder of a run, best or last"
        )
        parser.add_argument(
            "--out",
            type=str,
            help="folder of the half; of all halves without --party (default: export in the folder of the run)",
        )
        parser.add_argument("--party", type=str, help="name or number of a party, or server; default: every half")
        parser.add_argument(
            "--statistics",
            type=bool,
            default=False,
            help="keep mean and deviation of embeddings and predictions in the training of the run, for drift",
        )
        parser.add_argument(
            "--calibration",
            type=bool,
            default=False,
            help="fit the confidence of decisions to the validation records of the run, also without each party",
        )
        parser.add_argument(
            "--trusted", type=str, nargs="+", default=[], help="packages whose classes the checkpoint may name"
        )

    def run(self, cli: CLI) -> int:
        from lightning_vfl.commands.checkpoints import find_checkpoint, folder_of_run
        from lightning_vfl.commands.run_config import RUNS
        from lightning_vfl.export.trained import load_trained
        from lightning_vfl.export.write import write_halves

        given = cli.given
        path = Path(find_checkpoint(given.ckpt_path, [Path(RUNS)]))
        out = folder_of_run(str(path), []) / "export" if given.out is None else Path(given.out)
        trained = load_trained(path, given.trusted)
        training: Iterable[VerticalBatch] = ()
        validation: Iterable[VerticalBatch] | None = None
        if given.statistics or given.calibration:
            data = data_of_run(cli, path, trained.module)
            training = data.train_dataloader() if given.statistics else ()
            validation = data.val_dataloader() if given.calibration else None
        for folder in write_halves(trained, out, given.party, training, validation):
            print(f"{short(folder.resolve())}: manifest.json and the programs of '{folder.name}'")
        return 0


def data_of_run(cli: CLI, checkpoint: Path, module: "VFLModule") -> Any:
    """The data module of the run, from the recipe in its folder, with the records of training and validation.

    Raises:
        ConfigurationError: for a run without a recipe, and for data that are read or scaled otherwise than in training.
    """
    from lightning_vfl.commands.run_recipe import recipe_of

    parser = cli.data_parser()
    data: Any = parser.instantiate_classes(parser.parse_object({"data": recipe_of(checkpoint)["data"]}))["data"]
    data.setup("fit")
    if module.fitted is None or not data.fitted.prepares_as(module.fitted):
        raise ConfigurationError(
            f"the data of the run are not those of {checkpoint.name} any more: columns, classes or scaling differ; "
            "leave --statistics and --calibration out"
        )
    return data
