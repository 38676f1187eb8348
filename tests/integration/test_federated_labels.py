"""A party that sends zeros as labels in every round, over real processes: weights and accuracy stay as they were."""

import pandas as pd
import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from tests.integration.federations import Federation

pytestmark = [pytest.mark.slow, pytest.mark.processes]
NAMES = ("shop", "bank")  # the attacker has the lower number; bank has the labels


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Tables of a shop and of a bank, which has the labels too, and of a server that has ids alone."""
    folder = tmp_path_factory.mktemp("tables")
    numbers = torch.rand(600, 6, generator=torch.Generator().manual_seed(0)).numpy()
    for name, columns in (("shop", [0, 1, 2]), ("bank", [3, 4, 5])):
        table = pd.DataFrame(numbers[:, columns], columns=[f"x{c}" for c in columns])
        table.insert(0, "id", [f"c{i}" for i in range(600)])
        if name == "bank":
            table["y"] = (numbers.sum(1) > 3).astype(int)
        table.to_csv(folder / f"{name}.csv", index=False)
    words = ("--config", "data/csv_tables", "--config", "protocol/mean", "--data.data_dir", str(folder))
    words += ("--data.tables", "{shop: shop.csv, bank: bank.csv}", "--data.label_party", "bank")
    return (*words, "--data.label_column", "y", "--model.active", "1", "--trainer.max_epochs", "30")


def zeros_first():
    """In the shop's process: before every upload, try the same upload with zeros as labels."""
    from lightning_vfl.federation.link import Link

    ask = Link.ask

    def tries(self, key, say, header=None, tensors=(), bits=None):
        if say == "tell":
            rows = tensors[0].shape[0]
            with pytest.raises(ConfigurationError, match="'labels', which belongs to the labels, and party bank has"):
                ask(self, key, say, {**header, "labels": True}, [*tensors, torch.zeros(rows, dtype=torch.int64)])
            print("zeros were refused")
        return ask(self, key, say, header, tensors, bits)

    Link.ask = tries


def zeros_of_the_bank():
    """In the bank's process: tell zeros instead of the labels of training records."""
    from lightning_vfl.federation.at_party import AtParty

    own_labels = AtParty.own_labels

    def zeros(self, module, batch):
        labels = own_labels(self, module, batch)
        return torch.zeros_like(labels) if module.trainer.training else labels

    AtParty.own_labels = zeros


def trained(folder, recipe, before):
    """The weights, the last validation accuracy, and the shop's log."""
    folder.mkdir()
    one = Federation(folder, NAMES, recipe)
    one.before = before
    one.everybody()
    statuses = one.wait(180)
    assert set(statuses.values()) == {0}, [one.log(name)[-1500:] for name in statuses]
    kept = torch.load(one.checkpoint("scorer"), weights_only=True)["callbacks"]["ExperimentRecord"]
    return one.states(), kept["points"]["val/accuracy"][-1][1], one.log("shop")


def test_zeros_as_labels_of_a_party_without_labels_change_nothing(tmp_path, recipe):
    honest, accuracy, _ = trained(tmp_path / "honest", recipe, {})
    attacked, same, log = trained(tmp_path / "attacked", recipe, {"shop": zeros_first})
    _, wrong, _ = trained(tmp_path / "wrong", recipe, {"bank": zeros_of_the_bank})
    print(
        f"accuracy {accuracy:.3f}; with zeros of another party {same:.3f}; with zeros of the label holder {wrong:.3f}"
    )
    assert log.count("zeros were refused") > 100
    assert same == accuracy
    assert [name for name in honest if not torch.equal(honest[name], attacked[name])] == []
    assert accuracy > 0.8 > 0.65 > wrong
