"""A head at every party (LASER-VFL), an ensemble and one party alone: the alternatives to one head at the server."""

from lightning.pytorch import Trainer

from lightning_vfl import EnsembleVFL, LaserVFL, LocalVFL
from lightning_vfl.absence import measure, parse
from lightning_vfl.datamodules import Digits

if __name__ == "__main__":
    for protocol in (LocalVFL, EnsembleVFL, LaserVFL):
        model, data = protocol(), Digits()
        trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer.fit(model, datamodule=data)
        trainer.test(model, datamodule=data, verbose=False)
        table = measure(model, data.test_dataloader(), parse("0.3")).table
        row = table[(table["what"] == "probability") & (table["metric"] == "test/accuracy")].iloc[0]
        print(f"{protocol.__name__}: accuracy {row['value']:.3f} if each party is absent with probability 0.3")
