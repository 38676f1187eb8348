"""Train for predictions without some of the parties, and measure what each absence costs."""

from lightning.pytorch import Trainer

from lightning_vfl import SplitVFL
from lightning_vfl.absence import measure, parse
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import Digits
from lightning_vfl.protocols import Everybody, TaskSampling

if __name__ == "__main__":
    for subsets in (Everybody(), TaskSampling()):
        model, data = SplitVFL(Mean(), subsets=subsets), Digits()
        trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer.fit(model, datamodule=data)
        trainer.test(model, datamodule=data, verbose=False)
        table = measure(model, data.test_dataloader(), parse("all")).table
        means = table[(table["what"] == "number") & (table["metric"] == "test/accuracy")]
        for absent, accuracy in means[["number", "value"]].itertuples(index=False):
            print(f"{subsets}: {absent:.0f} of 4 parties absent, accuracy {accuracy:.3f}")
