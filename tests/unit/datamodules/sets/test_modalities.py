"""A column of file names of pictures, and a column of text, are the features of the party whose table has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import CSVTables, NamedColumns
from lightning_vfl.datamodules.records.party_tables import CSV
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.engines import open_program
from lightning_vfl.export.manifest import Engine, Manifest
from lightning_vfl.export.party_data import read_party
from lightning_vfl.export.score import score
from lightning_vfl.export.write import export_model
from lightning_vfl.networks import MLP, ConvNet, WordMean
from lightning_vfl.serving.party_half import Records, ServedParty
from lightning_vfl.types import Seat
from tests.exported import CLOSE, assert_close, built, one_registry, predictions

N = 60
NAMES = ("clinic", "shop", "lab")
SIZE = 8
LENGTH = 5
SETTINGS: dict[str, Any] = {
    "label_party": "lab",
    "label_column": "ill",
    "pictures": {"clinic": {"column": "scan", "size": SIZE}},
    "texts": {"shop": {"column": "review", "words": 4, "length": LENGTH}},
    "batch_size": 10,
}


def frames() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    ids = np.arange(N)
    reviews = ["Good, good stuff!", "BAD", "bad stuff: don't", "", "one two three four five six seven good"]
    return {
        "clinic": pd.DataFrame({"id": ids, "scan": [f"scans/{i}.png" for i in ids]}),
        "shop": pd.DataFrame({"id": ids, "review": [reviews[i % 5] for i in ids]}),
        "lab": pd.DataFrame({"id": ids, "age": rng.normal(size=N), "ill": ids % 2}),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modalities")
    (folder / "scans").mkdir()
    rng = np.random.default_rng(1)
    for i in range(N):
        Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).save(folder / f"scans/{i}.png")
    for name, frame in frames().items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def paths(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.csv" for name in NAMES}


def ready(tables: Any, **settings: Any) -> CSVTables:
    data = CSVTables(tables, **SETTINGS | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def features(data: CSVTables, split: Any = "predict") -> tuple[torch.Tensor, ...]:
    return data.records(split).rows(torch.arange(len(data.records(split))))


@pytest.fixture(scope="module")
def whole(folder: Path) -> CSVTables:
    return ready(paths(folder))


def test_pictures_are_those_of_pillow_and_words_are_counted_by_hand(folder, whole):
    assert whole.party_names == NAMES
    assert whole.party_shapes == ((3, SIZE, SIZE), (LENGTH,), (1,))
    scans, texts, _ = features(whole)
    for record in (0, 17, 59):
        with Image.open(folder / f"scans/{record}.png") as picture:
            middle = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(2, 0, 14, 12))
            pixels = np.asarray(middle, dtype=np.float64).transpose(2, 0, 1)
        np.testing.assert_allclose(scans[record], pixels / 127.5 - 1, atol=1e-6)
    # the four most frequent words: bad, good and stuff, then the first of the others by the alphabet
    reviews = frames()["shop"].review.iloc[whole.records("train").ids]
    words = [w.strip(",!:").lower() for review in reviews for w in review.split()]
    ranked = sorted(set(words), key=lambda word: (-words.count(word), word))[:4]
    number = {word: place + 2 for place, word in enumerate(ranked)}
    for record in range(5):
        own = [w.strip(",!:").lower() for w in frames()["shop"].review[record].split()][:LENGTH]
        expected = [number.get(word, 1) for word in own]
        assert texts[record].tolist() == expected + [0] * (LENGTH - len(own))
        assert int((texts[record] > 0).sum()) == len(own)


@pytest.mark.parametrize("where", ["frames", "disk"])
def test_frames_and_tables_on_the_disk_have_the_same_features(folder, whole, tmp_path, where):
    about: dict[str, Any] = {"data_dir": folder} if where == "frames" else {"work_dir": tmp_path}
    other = ready(frames() if where == "frames" else paths(folder), **about)
    for own, expected in zip(features(other), features(whole), strict=True):
        assert torch.allclose(own, expected, atol=1e-6)


def test_a_trained_model_prepares_new_tables_with_its_words(folder, whole):
    new = CSVTables(paths(folder), **SETTINGS | {"seed": 5})
    new.use(whole.fitted)
    new.setup("predict")
    for own, expected in zip(features(new), features(whole), strict=True):
        assert torch.equal(own, expected)


@pytest.mark.slow
def test_pictures_and_texts_are_scored_and_served_as_they_are_predicted(folder, tmp_path, told):
    """Also one record at a time, some of whose texts have no word; a note counts the texts of all batches."""
    data = CSVTables(paths(folder), **SETTINGS, new_records=True)
    bottoms = {0: ConvNet, 1: WordMean}
    module, _ = built(Concat(), data=CSVTables(paths(folder), **SETTINGS), bottom_of=bottoms)
    expected = predictions(module, data, tmp_path)
    with one_registry():
        folders = export_model(module, tmp_path / "out")
    for batch_size in (1, 7):
        told.clear()
        found = score(folders, paths(folder), leave_out=["ill"], batch_size=batch_size)
        assert_close(found, expected, CLOSE[Engine.ONNX])
        (note,) = [line for line in told if line.startswith("text ")]
        assert note.endswith(f"{N // 5} of {N} texts are cut to {LENGTH} words")
    asked = np.array([3, 59, 0, 999])
    for half, name in zip(folders, NAMES, strict=False):
        manifest = Manifest.read(half)
        read = read_party(manifest, paths(folder)[name], "id", CSV, ["ill"])
        embeddings = open_program(half, manifest, Engine.ONNX).run([read.features(np.arange(N))])
        values, known, refused = ServedParty(half, Records(paths(folder)[name], leave_out=["ill"])).embed(asked)
        assert (known.tolist(), refused.any()) == ([True, True, True, False], False)
        np.testing.assert_allclose(values[:3], embeddings[asked[:3]], rtol=1e-5, atol=1e-6)


def test_a_seat_has_the_features_of_the_simulation(folder, whole, tmp_path):
    seats: dict[int | None, CSVTables] = {}
    for number in (0, 1, 2, None):
        data = CSVTables(paths(folder), **SETTINGS)
        data.take_seat(Seat(number), NAMES, 2)
        seats[number] = data
    order = seats[2].split_records({number: seats[number].own_ids() for number in (0, 1)})
    for data in seats.values():
        data.align(order)
    shapes = [seats[number].own_shape() for number in range(3)]
    for number, data in seats.items():
        data.told_shapes(shapes, 2, whole.class_names)
        data.setup("fit")
        assert data.party_shapes == whole.party_shapes
        for party, (own, expected) in enumerate(zip(features(data, "train"), features(whole, "train"), strict=True)):
            assert torch.equal(own, expected) if party == number else bool(own.isnan().all())


def quick_trainer(folder: Path) -> Trainer:
    return Trainer(
        max_epochs=1,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def bottoms(module: SplitVFL) -> list[str]:
    return [type(network).__name__ for network in module.bottoms.parties]


def test_bottoms_are_chosen_by_the_names_of_parties(folder, tmp_path):
    data = CSVTables(paths(folder), **SETTINGS)
    named: dict[int | str, Any] = {"clinic": ConvNet, "shop": WordMean}
    module = SplitVFL(Concat(), MLP, width=4, seed=0, bottom_of=named)
    trainer = quick_trainer(tmp_path)
    trainer.fit(module, datamodule=data)
    assert bottoms(module) == ["ConvNet", "WordMean", "MLP"]
    trainer.save_checkpoint(tmp_path / "named.ckpt")
    again = SplitVFL.load_from_checkpoint(tmp_path / "named.ckpt", weights_only=True)
    assert bottoms(again) == bottoms(module)
    assert [*again.hparams["bottom_of"]] == [0, 1]
    numbered = SplitVFL(Concat(), MLP, width=4, seed=0, bottom_of={0: ConvNet, 1: WordMean})
    quick_trainer(tmp_path).fit(numbered, datamodule=CSVTables(paths(folder), **SETTINGS))
    for own, expected in zip(numbered.parameters(), module.parameters(), strict=True):
        assert torch.allclose(own, expected, atol=1e-6)  # sums of convolutions may be added in another order
    for wrong, words in (
        ({"clinc": ConvNet}, "bottom_of names party 'clinc', which does not exist; did you mean clinic"),
        ({"clinic": ConvNet, 0: MLP}, "bottom_of names a party twice"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            quick_trainer(tmp_path).fit(
                SplitVFL(Concat(), MLP, width=4, bottom_of=wrong), datamodule=CSVTables(paths(folder), **SETTINGS)
            )


def test_a_vocabulary_of_a_file_takes_nothing_from_records(folder, tmp_path):
    (tmp_path / "words.txt").write_text("Stuff\ngood\n\n")
    texts = {"shop": {"column": "review", "vocabulary": str(tmp_path / "words.txt"), "length": 3}}
    tables = {name: folder / f"{name}.csv" for name in ("shop", "lab")}
    data = ready(tables, texts=texts, pictures=None)
    assert features(data)[0][:3].tolist() == [[3, 3, 2], [1, 0, 0], [1, 2, 1]]
    told = " ".join(data.private_statistics())
    assert "words of texts" not in told
    drawn = ready(tables, texts={"shop": "review"}, pictures=None)
    assert "the words of texts (shop.review)" in " ".join(drawn.private_statistics())


def picture(path: Path, form: str) -> np.ndarray[Any, Any] | str:
    """Write a picture of 8 x 8 whose left half is red; returns its pixels (8, 8, 3), or the words of its refusal."""
    red = np.zeros((SIZE, SIZE, 3), np.uint8)
    red[:, : SIZE // 2, 0] = 255
    image = Image.fromarray(red)
    if form == "turned":  # stored on its side, with the tag that says how to turn it back
        exif = Image.Exif()
        exif[0x0112] = 6
        image.rotate(90, expand=True).save(path, exif=exif)
    elif form == "cut short":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:2000])
        return r"0\.png of record 0"
    elif form == "no picture":
        path.write_text("hello")
        return "neither PNG nor JPEG"
    elif form == "no file":
        return "No such file"
    return red


@pytest.mark.parametrize("form", ["turned", "cut short", "no picture", "no file"])
def test_pictures_of_every_form_are_read_right_or_refused_by_name(tmp_path, form):
    expected = picture(tmp_path / "0.png", form)
    Image.new("RGB", (SIZE, SIZE)).save(tmp_path / "1.png")
    ids = np.arange(N)
    tables = {
        "clinic": pd.DataFrame({"id": ids, "scan": [f"{min(i, 1)}.png" for i in ids]}),
        "lab": frames()["lab"],
    }
    settings = {"texts": None, "data_dir": tmp_path}
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected) as error:
            ready(tables, **settings)
        assert "1 of 60 pictures of column 'scan' of party 'clinic' cannot be used" in str(error.value)
        assert "0.png" in str(error.value)
    else:
        read = (features(ready(tables, **settings))[0][0].permute(1, 2, 0) + 1) * 127.5
        assert float((read - torch.from_numpy(expected.astype(np.float32))).abs().max()) < 8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pictures": {"bank": "scan"}}, "pictures names party 'bank', which has no table"),
        ({"pictures": {"clinic": "scam"}}, "party 'clinic' has no column 'scam', only scan; correct pictures or texts"),
        ({"pictures": {"clinic": {"name": "scan"}}}, "must be a column, or a mapping of column, size, colour"),
        ({"pictures": {"clinic": {"column": "scan", "size": 0}}}, "size must be a whole number of at least 1; got 0"),
        ({"pictures": "scan"}, "pictures must give a party its column"),
        ({"texts": {"clinic": "scan", "shop": "review"}}, "party 'clinic' is named by pictures and by texts"),
        ({"texts": {"lab": "age"}, "pictures": None}, "'scan' of party 'clinic'"),
        ({"texts": {"shop": {"column": "review", "vocabulary": "none.txt"}}}, "vocabulary of texts of party 'shop'"),
        ({"partitioner": NamedColumns({"lab": ["age"]})}, "need a table that is a party of its own"),
    ],
)
def test_wrong_settings_are_told_before_training(folder, settings, words):
    with pytest.raises(ConfigurationError, match=words) as error:
        ready(paths(folder), **settings)
    assert "\n" not in str(error.value)


def test_other_columns_of_the_party_are_refused(folder):
    tables = frames()
    tables["clinic"]["age"] = 3
    with pytest.raises(ConfigurationError, match="'scan' is all features of party 'clinic', whose table also has age"):
        ready(tables, data_dir=folder)
