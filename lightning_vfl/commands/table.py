"""The sub-commands of ``lightning-vfl``: name, class and the line in ``lightning-vfl --help``."""

from dataclasses import dataclass

from lightning_vfl.errors import nearest


@dataclass(frozen=True)
class Entry:
    """A sub-command whose file is imported when the sub-command is called.

    Args:
        path: module in this folder, and class of the command.
        about: one line of help.
        method: of Lightning's trainer, whose options the command takes beside those of a recipe; empty: it reads none.
        alone: it is an ``AloneCommand``, which needs neither torch nor Lightning.
    """

    path: str
    about: str
    method: str = ""
    alone: bool = False


COMMANDS = {
    "fit": Entry("training.TrainerCommand", "Train the model of a recipe.", "fit"),
    "validate": Entry("training.TrainerCommand", "Evaluate a trained model on the validation records.", "validate"),
    "test": Entry(
        "testing.TestCommand", "Evaluate a trained model on the test records, also without some parties.", "test"
    ),
    "predict": Entry("predicting.PredictCommand", "Write the predictions of a trained model to a file.", "predict"),
    "contribution": Entry(
        "contribution.ContributionCommand", "Compute what each party adds to the metrics: Shapley values.", "test"
    ),
    "robustness": Entry(
        "robustness.RobustnessCommand", "Measure a model with each party absent, corrupted or misaligned.", "test"
    ),
    "export": Entry("export.ExportCommand", "Write each party's half of a trained model as programs."),
    "score": Entry(
        "score.ScoreCommand", "Predict new records with exported halves, without training code.", alone=True
    ),
    "endpoint": Entry(
        "endpoint.EndpointCommand", "Answer requests for predictions as one party, from its half.", alone=True
    ),
    "gateway": Entry(
        "gateway.GatewayCommand", "Answer requests for predictions over HTTP, with all parties.", alone=True
    ),
    "study": Entry("study.StudyCommand", "Run a grid of recipes, overrides and seeds; write a table and figures."),
    "plot": Entry("plot.PlotCommand", "Draw the summary and figures of a study again, without running it."),
    "report": Entry("report.ReportCommand", "Write one HTML page of a run: results, curves, traffic, privacy, recipe."),
    "privacy": Entry("privacy.PrivacyCommand", "Compute the privacy cost of a fit, without training.", "fit"),
    "audit": Entry("audit.AuditCommand", "Train a recipe while an attacker listens; say what its attacks get.", "fit"),
    "keys": Entry("keys.KeysCommand", "Generate identity keys for the parties."),
    "federate": Entry(
        "federation.FederateCommand", "Run a recipe with a process for each party, on this machine.", "fit"
    ),
    "serve": Entry("federation.ServeCommand", "Run the server of a federation of hosts.", "fit"),
    "party": Entry("federation.PartyCommand", "Run one party of a federation of hosts.", "fit"),
    "replay": Entry("replay.ReplayCommand", "Simulate what a federation has recorded, to the same bits.", "fit"),
    "identity": Entry(
        "identity.IdentityCommand", "Generate the key and the certificate of one host of a federation.", alone=True
    ),
    "doctor": Entry(
        "doctor.DoctorCommand", "Try every step from this host into a federation, and say what to cure.", alone=True
    ),
    "status": Entry(
        "status.StatusCommand", "Say who is there in a running federation, and who is awaited.", alone=True
    ),
    "align": Entry(
        "align.AlignCommand", "Find the records that parties have in common, without showing the others.", alone=True
    ),
    "cut": Entry("cut.CutCommand", "Write a data set as one table a party, one of labels, and a recipe for them."),
    "list": Entry("recipe_list.ListCommand", "List the packaged recipes, with a line for each."),
}


_OTHERS = {"train": "fit", "run": "fit", "resume": "fit", "eval": "test", "evaluate": "test"}


def unknown_command(word: str) -> str:
    """The error for a word that is no sub-command."""
    if word in _OTHERS:
        return f"unknown command '{word}'; did you mean {_OTHERS[word]}?"
    return f"unknown command '{word}'; {nearest(word, COMMANDS)}"


def no_command() -> str:
    """The error for arguments without a sub-command."""
    return f"no command is given; give one of {', '.join(COMMANDS)}, before the options"
