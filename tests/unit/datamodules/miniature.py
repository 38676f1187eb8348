"""Tiny files in the raw formats of the file-based data sets, and tiny data held in memory."""

import gzip
import tarfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat

from lightning_vfl.datamodules import ContiguousColumns, Layout, Partitioner, Split, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName

TRAIN, TEST = 120, 40
WIDTHS = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}


def idx(array: np.ndarray) -> bytes:
    """The bytes of an IDX file of unsigned bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_idx(folder: Path) -> Mapping[str, np.ndarray]:
    """The four files of MNIST and its kin with 120 training and 40 test images; returns what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.Generator(np.random.PCG64(1))
    arrays = {}
    for name, records in (("train", TRAIN), ("t10k", TEST)):
        images = draw.integers(0, 256, (records, 28, 28), dtype=np.uint8)
        labels = np.arange(records, dtype=np.uint8) % 10
        for file, array in ((f"{name}-images-idx3-ubyte.gz", images), (f"{name}-labels-idx1-ubyte.gz", labels)):
            (folder / file).write_bytes(gzip.compress(idx(array), 1))
            arrays[file] = array
    return arrays


def write_emnist(folder: Path, split: str = "balanced", classes: int = 47, first: int = 0) -> Mapping[str, np.ndarray]:
    """The four files of a split of EMNIST, 141 and 47 images in column order; returns images that stand upright."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.Generator(np.random.PCG64(14))
    arrays: dict[str, np.ndarray] = {}
    for part, records in (("train", 141), ("test", 47)):
        images = draw.integers(0, 256, (records, 28, 28), dtype=np.uint8)
        labels = np.arange(records) % classes
        stored: dict[str, np.ndarray] = {"images-idx3": images.transpose(0, 2, 1), "labels-idx1": labels + first}
        for kind, array in stored.items():
            (folder / f"emnist-{split}-{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array), 1))
        arrays |= {f"{part} images": images, f"{part} labels": labels}
    return arrays


def write_csv(path: Path, columns: Mapping[str, Any], separator: str = ",") -> Path:
    """A CSV file; None is an empty field."""
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    lines = [separator.join("" if value is None else str(value) for value in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def credit(records: int = 200) -> dict[str, list[Any]]:
    """Clients as in the CSV file of UCI: ids that are not sorted, whole numbers, every fifth with a default."""
    draw = np.random.Generator(np.random.PCG64(2))
    features = draw.integers(-2000, 500_000, (23, records)).tolist()
    ids = [(7 * i) % records + 1 for i in range(records)]  # 7 does not divide any size used here
    return (
        {"ID": ids} | {f"X{i}": column for i, column in enumerate(features, 1)} | {"Y": [int(i % 5 == 0) for i in ids]}
    )


BANK = {
    "job": [
        *("admin.", "blue-collar", "entrepreneur", "housemaid", "management", "retired"),
        *("self-employed", "services", "student", "technician", "unemployed", "unknown"),
    ],
    "marital": ["divorced", "married", "single"],
    "education": ["primary", "secondary", "tertiary", "unknown"],
    "default": ["no", "yes"],
    "housing": ["no", "yes"],
    "loan": ["no", "yes"],
    "contact": ["cellular", "telephone", "unknown"],
    "day": [*range(1, 32)],
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "poutcome": ["failure", "other", "success", "unknown"],
}


def bank(records: int = 620) -> dict[str, list[Any]]:
    """Calls of the bank in the columns of UCI: every category 20 times or more, every fifth call with success."""
    draw = np.random.Generator(np.random.PCG64(4))
    names = ["age", "job", "marital", "education", "default", "balance", "housing", "loan", "contact", "day", "month"]
    names += ["duration", "campaign", "pdays", "previous", "poutcome"]
    columns: dict[str, list[Any]] = {}
    for name in names:
        if name in BANK:
            columns[name] = draw.permutation([BANK[name][i % len(BANK[name])] for i in range(records)]).tolist()
        else:
            columns[name] = draw.integers(-100, 5000, records).tolist()
    return columns | {"y": ["yes" if i % 5 == 0 else "no" for i in range(records)]}


def write_bank(folder: Path, columns: Mapping[str, Any] | None = None, separator: str = ";") -> Path:
    """``bank-full.csv`` as published: names and texts in quotes, numbers without."""
    columns = bank() if columns is None else columns
    quoted = {
        f'"{name}"': [f'"{value}"' if isinstance(value, str) else value for value in column]
        for name, column in columns.items()
    }
    return write_csv(folder / "bank-full.csv", quoted, separator)


ADULT = {
    "workclass": [
        *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay"),
        *("Never-worked", "?"),
    ],
    "education": [
        *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th"),
        *("7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool"),
    ],
    "marital-status": [
        *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed"),
        *("Married-spouse-absent", "Married-AF-spouse"),
    ],
    "occupation": [*(f"occupation {i}" for i in range(14)), "?"],
    "relationship": ["Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"],
    "race": ["White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"],
    "sex": ["Female", "Male"],
    "native-country": [*(f"country({i}&more)" for i in range(41)), "?"],
}


def adult(records: int, seed: int) -> dict[str, list[Any]]:
    """People as in a file of UCI: with 420 every category ten times or more, every fourth of them rich."""
    draw = np.random.Generator(np.random.PCG64(seed))
    names = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"]
    names += ["relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"]
    columns: dict[str, list[Any]] = {}
    for name in names:
        if name in ADULT:
            columns[name] = draw.permutation([ADULT[name][i % len(ADULT[name])] for i in range(records)]).tolist()
        else:
            columns[name] = draw.integers(0, 100_000, records).tolist()
    return columns | {"income": [">50K" if i % 4 == 0 else "<=50K" for i in range(records)]}


def adult_text(columns: Mapping[str, Any], separator: str = ", ", head: str = "", stop: str = "") -> str:
    """A file of UCI: no names, a blank line at the end."""
    rows = zip(*columns.values(), strict=True)
    return head + "".join(f"{separator.join(map(str, row))}{stop}\n" for row in rows) + "\n"


def write_adult(folder: Path, data: Mapping[str, Any] | None = None, test: Mapping[str, Any] | None = None) -> None:
    """``adult.data`` with 420 people and ``adult.test`` with 84, which begins with a comment and has full stops."""
    (folder / "adult.data").write_text(adult_text(adult(420, 5) if data is None else data))
    tested = adult(84, 6) if test is None else test
    (folder / "adult.test").write_text(adult_text(tested, head="|1x3 Cross validator\n", stop="."))


PHISHING = dict.fromkeys(
    (
        *("having_IP_Address", "URL_Length", "Shortining_Service", "having_At_Symbol", "double_slash_redirecting"),
        *("Prefix_Suffix", "having_Sub_Domain", "SSLfinal_State", "Domain_registeration_length", "Favicon", "port"),
        *("HTTPS_token", "Request_URL", "URL_of_Anchor", "Links_in_tags", "SFH", "Submitting_to_email"),
        *("Abnormal_URL", "Redirect", "on_mouseover", "RightClick", "popUpWidnow", "Iframe", "age_of_domain"),
        *("DNSRecord", "web_traffic", "Page_Rank", "Google_Index", "Links_pointing_to_page", "Statistical_report"),
    ),
    "-1,1",
) | {
    **dict.fromkeys(("URL_Length", "Links_pointing_to_page"), "1,0,-1"),
    **dict.fromkeys(("having_Sub_Domain", "URL_of_Anchor", "web_traffic"), "-1,0,1"),
    **dict.fromkeys(("SSLfinal_State", "SFH"), "-1,1,0"),
    "Links_in_tags": "1,-1,0",
    "Redirect": "0,1",
}


def phishing(records: int = 200) -> dict[str, list[Any]]:
    """Sites in the columns of UCI: whatever the head declares, three in five of them legitimate."""
    draw = np.random.Generator(np.random.PCG64(7))
    columns = {name: draw.choice([int(v) for v in values.split(",")], records) for name, values in PHISHING.items()}
    return {name: column.tolist() for name, column in columns.items()} | {
        "Result": [1 if i % 5 < 3 else -1 for i in range(records)]
    }


def write_phishing(folder: Path, columns: Mapping[str, Any] | None = None) -> Path:
    """``Training Dataset.arff`` as published: blank lines in the head, ends of lines of Windows, none at the end."""
    columns = phishing() if columns is None else columns
    declared = [f"@attribute {name}  {{{PHISHING.get(name, '-1,1')}}}" for name in columns]
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path = folder / "Training Dataset.arff"
    path.write_text("\r\n".join(["@relation phishing", "", *declared, "", "", "@data", *rows]), newline="")
    return path


def views(
    records: int, names: Sequence[str] = tuple(WIDTHS), widths: Mapping[str, int] = WIDTHS
) -> dict[str, np.ndarray]:
    """Views of handwritten numerals, every number a digit."""
    draw = np.random.Generator(np.random.PCG64(3))
    return {name: draw.integers(0, 10, (records, widths[name]), dtype=np.uint8) for name in names}


def cell_array(values: Sequence[Any]) -> np.ndarray:
    """What scipy writes as a MATLAB cell array in a column."""
    cells = np.empty((len(values), 1), dtype=object)
    for i, value in enumerate(values):
        cells[i, 0] = value
    return cells


def write_mat(path: Path, **variables: Any) -> Path:
    """The views and labels of 200 numerals, classes numbered from 1, and whatever a test wants otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    usual = {"X": cell_array(list(views(200).values())), "y": (np.arange(200) // 20 + 1)[:, None]}
    savemat(path, {name: value for name, value in (usual | variables).items() if value is not None})
    return path


def write_mfeat(folder: Path) -> dict[str, np.ndarray]:
    """The six text files of UCI with all their 2,000 records; returns what is in them."""
    arrays = views(2000)
    for name, array in arrays.items():
        text = np.full((len(array), 2 * array.shape[1]), ord(" "), dtype=np.uint8)
        text[:, ::2] = array + ord("0")
        text[:, -1] = ord("\n")
        (folder / f"mfeat-{name}").write_bytes(text.tobytes())
    return arrays


CALTECH = {"gabor": 48, "moments": 40, "centrist": 254, "hog": 1984, "gist": 512, "lbp": 928}
OBJECTS = np.repeat(np.arange(7), [20, 20, 6, 6, 6, 6, 6])


def write_caltech(folder: Path, names: Sequence[str] = tuple(CALTECH), **variables: Any) -> Path:
    """``Caltech101-7.mat`` with 70 pictures: a cell array in a row, doubles, classes from 1 in a column."""
    cells = cell_array([view.astype(float) for view in views(70, names, CALTECH).values()]).T
    return write_mat(folder / "Caltech101-7.mat", **{"X": cells, "y": None, "Y": OBJECTS[:, None] + 1} | variables)


def write_npz(folder: Path, **variables: Any) -> Path:
    """``mine.npz`` with 60 records of three classes in two views, a code for every record, and what a test wants."""
    draw = np.random.Generator(np.random.PCG64(12))
    usual = {"voice": draw.normal(size=(60, 5)), "code": np.arange(60), "face": draw.integers(0, 256, (60, 3))}
    content = usual | {"labels": np.arange(60) % 3 + 1} | variables
    np.savez(folder / "mine.npz", **{name: value for name, value in content.items() if value is not None})
    return folder / "mine.npz"


SPEECH = {
    "Baseline Features": 21,
    "Intensity Parameters": 3,
    "Formant Frequencies": 4,
    "Bandwidth Parameters": 4,
    "Vocal Fold": 22,
    "MFCC": 84,
    "Wavelet Features": 182,
    "TQWT Features": 432,
}


def parkinson(people: int = 20) -> dict[str, list[Any]]:
    """Three recordings of every person one after the other, three people in four with the disease."""
    draw = np.random.Generator(np.random.PCG64(13))
    person = np.arange(3 * people) // 3
    features = (draw.integers(-999_999, 1_000_000, (752, 3 * people)) / 1000).tolist()
    return (
        {"id": person.tolist(), "gender": (person // 2 % 2).tolist()}
        | {f"feature_{i}": column for i, column in enumerate(features)}
        | {"class": [int(i % 4 > 0) for i in person]}
    )


def write_parkinson(folder: Path, columns: Mapping[str, Any] | None = None, groups: bool = True) -> Path:
    """``pd_speech_features.csv`` as published: a group's name stands above its first column."""
    path = write_csv(folder / "pd_speech_features.csv", parkinson() if columns is None else columns)
    if groups:
        cells = ["", "", *(cell for name, width in SPEECH.items() for cell in (name, *[""] * (width - 1))), ""]
        path.write_text(",".join(cells) + "\n" + path.read_text())
    return path


ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
FEATURES = [*(f"feature()-{i},X" for i in range(555)), *["bandsEnergy()-1,8"] * 3, *(f"angle({a})" for a in "XYZ")]


def activity(records: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Recordings of people: 561 values of thousandths in [-1, 1], and their activities from 1."""
    draw = np.random.Generator(np.random.PCG64(seed))
    return draw.integers(-1000, 1001, (records, 561)), draw.permutation(np.arange(records) % 6 + 1)


def write_activity(folder: Path, train: int = 60, test: int = 24) -> None:
    """The text files of UCI: numbers with exponents of three digits."""
    texts = [f"{i / 1000: .7e}".replace("e-", "e-0").replace("e+", "e+0") for i in range(-1000, 1001)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(FEATURES, 1)))
    for part, (values, labels) in {"train": activity(train, 8), "test": activity(test, 9)}.items():
        (folder / part).mkdir()
        rows = ["  ".join(texts[value + 1000] for value in row) for row in values.tolist()]
        (folder / part / f"X_{part}.txt").write_text("".join(f" {row}\n" for row in rows))
        (folder / part / f"y_{part}.txt").write_text("".join(f"{label}\n" for label in labels))


def activity_csv(values: np.ndarray, labels: Sequence[Any]) -> str:
    """A file of Kaggle: names with commas in quotes, a person, and the activity as text."""
    head = ",".join(f'"{name}"' for name in (*FEATURES, "subject", "Activity"))
    rows = [
        ",".join(str(value / 1000) for value in row) + f",{i % 30 + 1},{label}"
        for i, (row, label) in enumerate(zip(values.tolist(), labels, strict=True))
    ]
    return "\n".join([head, *rows]) + "\n"


def write_activity_csv(folder: Path, train: int = 60, test: int = 24) -> None:
    """The two CSV files of Kaggle with the records of ``write_activity``."""
    for part, (values, labels) in {"train": activity(train, 8), "test": activity(test, 9)}.items():
        (folder / f"{part}.csv").write_text(activity_csv(values, [ACTIVITIES[label - 1] for label in labels]))


CIFAR = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def cifar(records: int = 20) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Rows of bytes and labels of the six files."""
    draw = np.random.Generator(np.random.PCG64(10))
    return {
        file: (draw.integers(0, 256, (records, 3072), dtype=np.uint8), (draw.permutation(records) % 10).tolist())
        for file in CIFAR
    }


def pickle_of_python_2(data: np.ndarray, labels: Sequence[int]) -> bytes:
    """What Python 2 and its numpy have written: texts that are bytes, opcode by opcode."""

    def short(value: int) -> bytes:
        return b"M" + value.to_bytes(2, "little")

    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t(K\x01"
    array += b"".join(map(short, data.shape)) + {1: b"\x85", 2: b"\x86"}[data.ndim]
    array += b"cnumpy\ndtype\nq\nU\x02" + data.dtype.str[1:].encode() + b"K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ"
    array += b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb" + (b"\x88" if np.isfortran(data) else b"\x89")
    array += b"T" + data.nbytes.to_bytes(4, "little") + data.tobytes("A") + b"tb"
    numbers = b"(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    head = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05"
    return head + numbers + b"U\x04dataq\x06" + array + b"U\tfilenamesq\x0c]q\ru."


def binary_of_cifar(data: np.ndarray, labels: Sequence[int]) -> bytes:
    """The binary version: a byte for the label in front of every image."""
    return np.hstack([np.array(labels, dtype=np.uint8)[:, None], data]).tobytes()


def write_cifar(folder: Path) -> None:
    """The six files of the Python version with 20 images each."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, (data, labels) in cifar().items():
        (folder / file).write_bytes(pickle_of_python_2(data, labels))


def write_archive(path: Path, members: Mapping[str, bytes]) -> None:
    """A gzipped archive of these members."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))


FURNITURE = ("bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet")


def write_views(folder: Path, train: int = 2, test: int = 1, ending: str = "png") -> dict[str, np.ndarray]:
    """Twelve pictures of 8 x 8 of every object, so many objects a class; returns the pixels (12, 8, 8) by name."""
    draw = np.random.Generator(np.random.PCG64(11))
    arrays = {}
    for kind in FURNITURE:
        for part, objects in (("train", range(1, train + 1)), ("test", range(train + 1, train + test + 1))):
            place = folder / kind / part
            place.mkdir(parents=True)
            for number in objects:
                name = f"{kind}_{number:04}"
                arrays[name] = draw.integers(0, 256, (12, 8, 8), dtype=np.uint8)
                for view, pixels in enumerate(arrays[name], 1):
                    Image.fromarray(pixels).save(place / f"{name}_{view:03}.{ending}")
    return arrays


CLASSES = ("bird", "cat", "dog")


def write_pictures(
    folder: Path, train: int = 12, val: int = 0, test: int = 4, size: int = 8, classes: Sequence[str] = CLASSES
) -> dict[str, np.ndarray]:
    """Class folders of square PNG files, so many in each; returns the pixels (3, size, size) by name."""
    draw = np.random.Generator(np.random.PCG64(15))
    arrays = {}
    for part, pictures in (("train", train), ("val", val), ("test", test)):
        for kind in classes if pictures else ():
            (folder / part / kind).mkdir(parents=True)
            for number in range(pictures):
                pixels = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / kind / f"{number}.png")
                arrays[f"{part}/{kind}/{number}.png"] = pixels.transpose(2, 0, 1)
    return arrays


class InMemory(VerticalDataModule):
    """Whatever splits a test gives it."""

    ids_are_places = True

    def __init__(
        self,
        splits: Mapping[SplitName, Split],
        classes: int | None = 2,
        partitioner: Partitioner | None = None,
        columns: tuple[str, ...] = (),
        batch_size: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner or ContiguousColumns(2), batch_size=batch_size, **settings)
        self.splits = splits
        self.classes = classes
        self.columns = columns

    @property
    def layout(self) -> Layout:
        return Layout(tuple(self.splits["train"].features.shape[1:]), self.columns)

    @property
    def num_classes(self) -> int | None:
        return self.classes

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(2)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return {name: self.splits[name] for name in names if name in self.splits}


def table(records: int, columns: int, seed: int = 0) -> Split:
    """A split of random features and alternating labels, ids r0, r1, ..."""
    features = torch.randn(records, columns, generator=torch.Generator().manual_seed(seed))
    return Split(features, torch.arange(records) % 2, np.array([f"r{i}" for i in range(records)]))


LONG_TABLES = {
    "tables": {"bank": "bank.parquet", "telco": "telco.parquet"},
    "label_party": "bank",
    "label_column": "y",
}


def write_parquet(folder: Path, records: int, group: int, **changes: Any) -> dict[str, Any]:
    """The tables of ``LONG_TABLES`` with row groups of this size; returns them as pandas tables.

    ``changes``: party -> a function that changes its pandas table before it is written.
    """
    import pandas as pd

    draw = np.random.Generator(np.random.PCG64(5))
    tables = {}
    for party, width in (("bank", 3), ("telco", 2)):
        columns = {f"{party}{i}": draw.normal(i, 1 + i, records).astype(np.float32) for i in range(width)}
        label = {"y": draw.integers(0, 2, records)} if party == "bank" else {}
        tables[party] = pd.DataFrame({"id": np.arange(records) + 1000} | label | columns)
        tables[party] = changes.get(party, lambda table: table)(tables[party])
        tables[party].to_parquet(folder / f"{party}.parquet", row_group_size=group, index=False)
    return tables


def write_credit(folder: Path) -> Path:
    return write_csv(folder / "UCI_Credit_Card.csv", credit())


def write_handwritten(folder: Path) -> Path:
    return write_mat(folder / "Handwritten.mat")


PUBLISHED: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "Adult": (write_adult, {"expected_records": None}),
    "BankMarketing": (write_bank, {"expected_records": None}),
    "CIFAR10": (write_cifar, {"expected_records": 20, "val_records": 20}),
    "Caltech7": (write_caltech, {}),
    "CreditDefault": (write_credit, {"expected_records": None}),
    "EMNIST": (write_emnist, {"val_records": 20}),
    "FashionMNIST": (write_idx, {"val_records": 20}),
    "Handwritten": (write_handwritten, {}),
    "HumanActivity": (write_activity, {"expected_records": None}),
    "ImageFolderVFL": (write_pictures, {"size": 8}),
    "MNIST": (write_idx, {"val_records": 20}),
    "ModelNet10Views": (write_views, {"size": 8, "val_share": 0.5}),
    "MultiView": (write_npz, {}),
    "Parkinson": (write_parkinson, {"expected_records": None}),
    "Phishing": (write_phishing, {"expected_records": None}),
}
"""The data sets that are read from files: who writes small files of them, and the settings that these need."""
