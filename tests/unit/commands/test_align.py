"""``lightning-vfl align``: tables in, aligned tables out, which ``CSVTables`` reads; mistakes are one line."""

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.commands.light import answer
from lightning_vfl.datamodules import CSVTables

PARTIES = ("bank", "shop")

pytestmark = pytest.mark.filterwarnings("ignore:label 'y' has classes of fewer than 10 records")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables()
    return tmp_path


def tables(ending="csv"):
    """A bank with labels and a shop, with 12 customers in common of 16 and 14, in orders of their own."""
    draw = np.random.default_rng(0)
    for party, ids in (("bank", range(16)), ("shop", range(4, 18))):
        ids = draw.permutation(list(ids))
        table = pd.DataFrame({"id": ids, f"{party}_x": ids * 1.5, "code": [f"0{i}" for i in ids]})
        if party == "bank":
            table["y"] = ids % 2
        table.to_csv(f"{party}.csv", index=False) if ending == "csv" else table.to_parquet(f"{party}.parquet")


def align(*words, error=None, capsys=None):
    """Run a step; ``error``: the line that it ends with."""
    status = answer(["align", *map(str, words)])
    if error is None:
        assert status == 0
        return
    said = capsys.readouterr().err
    assert status
    assert error in said
    assert said.startswith("lightning-vfl: error: ")
    assert said.count("\n") == 1


def masked(party, *more, table=None):
    align("mask", "--party", party, "--parties", "bank,shop", "--table", table or f"{party}.csv", "--out", "o", *more)


def run_all(*more):
    for party in PARTIES:
        masked(party, *more)
    for party in PARTIES:
        align("pass", "--party", party, "--in", "o")
    align("match", "--in", "o")


def read(path):
    return pd.read_parquet(path) if path.endswith("parquet") else pd.read_csv(path, dtype={"code": str})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_steps_give_tables_that_are_read_unchanged(ending, capsys):
    run_all()
    for party in PARTIES:
        align("take", "--party", party, "--in", "o", "--out", f"{party}.aligned.{ending}")
    printed = capsys.readouterr().out
    assert "o/bank.for-shop.points: 16 places; give it to shop, as bank.for-shop.points" in printed
    assert "12 records in common of bank, shop" in printed
    bank, shop = (read(f"{party}.aligned.{ending}") for party in PARTIES)
    assert bank["id"].tolist() == shop["id"].tolist() == list(range(12))
    assert bank["bank_x"].tolist() == shop["shop_x"].tolist()
    assert bank["code"].tolist() == [f"0{round(x / 1.5)}" for x in bank["bank_x"]]
    ids = pd.read_csv("bank.aligned.map.csv")
    assert (ids["record"].tolist(), (ids["id"] * 1.5).tolist()) == (list(range(12)), bank["bank_x"].tolist())
    data = CSVTables({party: f"{party}.aligned.{ending}" for party in PARTIES}, "bank", "y", preprocess="auto", seed=0)
    data.setup("fit")
    assert len(data.records("train")) + len(data.records("val")) < 12
    data.setup("test")


def test_the_order_says_nothing_about_a_file(folder):
    """Another session has another order; the order of the rows of a file changes nothing but its own list."""
    orders = []
    for name in "ab":
        align("local", "--tables", "bank=bank.csv", "shop=shop.csv", "--out", name, "--session", name)
        orders.append(read(f"{name}/bank.parquet")["bank_x"].tolist())
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])
    assert not [path for path in folder.glob("a/*") if path.name.startswith(".")]


def test_maps_and_keys_are_for_their_owner_alone(folder):
    run_all()
    align("take", "--party", "bank", "--in", "o", "--out", "bank.aligned.csv")
    for name in ("o/bank.key", "bank.aligned.map.csv"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600


def test_composite_and_several_keys_are_left_out_of_the_tables(capsys):
    bank = {"mail": ["a@x", None, "c@x"], "first": ["Jo", "Al", "Bo"], "born": [1990, 1991, 1992], "x": [1, 2, 3]}
    shop = {"first": ["AL", "Jo", "Zoe"], "born": [1991, 1, 1992], "mail": ["q@x", "A@X ", "z@x"], "w": [7, 8, 9]}
    pd.DataFrame(bank).to_csv("bank.csv", index=False)
    pd.DataFrame(shop).to_parquet("shop.parquet")
    words = ("--tables", "bank=bank.csv", "shop=shop.parquet", "--id-column", "mail", "first+born", "--normalise")
    align("local", *words, "--format", "csv")
    assert "2 records in common of bank, shop" in capsys.readouterr().out
    one, other = read("aligned/bank.csv"), read("aligned/shop.csv")
    assert (list(one), list(other)) == (["id", "x"], ["id", "w"])
    assert sorted(zip(one["x"], other["w"], strict=True)) == [(1, 8), (2, 7)]
    assert list(read("aligned/bank.map.csv")) == ["record", "mail", "first", "born"]


def test_zeros_in_front_are_dropped_only_if_asked(capsys):
    for party, ids in (("bank", ["007", "8", "c"]), ("shop", ["7", "8", "d"])):
        pd.DataFrame({"id": ids, "x": 1}).to_csv(f"{party}.csv", index=False)
    for number, steps in ((1, ()), (1, ("--normalise",)), (2, ("--normalise", "zeros"))):
        align("local", "--tables", "bank=bank.csv", "shop=shop.csv", *steps)
        assert f"{number} records in common" in capsys.readouterr().out


FORMS = {  # how the shop writes nine ids of the bank such as 05x, and what is told; a tenth is written alike
    "zeros": (lambda i: f"5{i}x"[:2], "9 more ids would be in common with --normalise zeros"),
    "case": (lambda i: f"05{i}X", "9 more ids would be in common with --normalise casefold"),
    "blanks": (lambda i: f"05{i}x\u00a0", "9 more ids would be in common with --normalise strip"),
    "others": (lambda i: f"06{i}x", ""),
}


def test_the_steps_that_are_told_are_the_fewest_in_their_order(capsys):
    for party, ids in (("bank", ["0a", "0B7", "007", "z"]), ("shop", ["0A ", "0b7", "7", "z"])):
        pd.DataFrame({"id": ids, "x": 1}).to_csv(f"{party}.csv", index=False)
    align("local", "--tables", "bank=bank.csv", "shop=shop.csv", "--normalise", "strip")
    assert "3 more ids would be in common with --normalise strip casefold zeros\n" in capsys.readouterr().out


@pytest.mark.parametrize("form", FORMS)
def test_of_how_many_records_are_in_common_and_what_would_make_more_of_them_alike(form, capsys):
    write, said = FORMS[form]
    ids = [f"05{i}" if form == "zeros" else f"05{i}x" for i in range(9)]
    pd.DataFrame({"id": [*ids, "c"], "x": 1}).to_csv("bank.csv", index=False)
    pd.DataFrame({"id": [*map(write, range(9)), "c", "d", "e"], "x": 1}).to_parquet("shop.parquet")
    align("local", "--tables", "bank=bank.csv", "shop=shop.parquet")
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "1 records in common of bank, shop; their lists have 10 and 12 places"
    assert [line for line in others if "would be" in line] == ([said] if said else [])
    if said:
        align("local", "--tables", "bank=bank.csv", "shop=shop.parquet", *said.split(" with ")[1].split())
        assert capsys.readouterr().out.splitlines()[0].startswith("10 records in common")
    for party, table in (("bank", "bank.csv"), ("shop", "shop.parquet")):
        align("mask", "--party", party, "--parties", "bank,shop", "--table", table, "--out", "o")
    for party in PARTIES:
        align("pass", "--party", party, "--in", "o")
    align("match", "--in", "o")
    assert "less than half of the shortest list; if the parties expect more" in capsys.readouterr().out
    align("take", "--party", "shop", "--in", "o", "--out", "shop.csv")
    assert "shop.csv: 1 of 12 records; read by CSVTables" in capsys.readouterr().out


def test_whole_numbers_of_parquet_are_those_of_csv(capsys):
    table = pd.DataFrame({"id": pd.array([4, 5, 2**63 + 9], dtype="uint64"), "x": 1})
    table.to_parquet("bank.parquet")
    table.astype(str).to_csv("shop.csv", index=False)
    align("local", "--tables", "bank=bank.parquet", "shop=shop.csv")
    assert "3 records in common" in capsys.readouterr().out


def test_the_label_party_keeps_all_records_for_overlap_keep(capsys):
    words = ("--reveal", "label-party", "--label-party", "bank")
    align("local", "--tables", "bank=bank.csv", "shop=shop.csv", *words)
    assert "12 records in common of shop and bank" in capsys.readouterr().out
    assert (len(read("aligned/bank.parquet")), len(read("aligned/shop.parquet"))) == (16, 12)
    files = {party: f"aligned/{party}.parquet" for party in PARTIES}
    data = CSVTables(files, "bank", "y", overlap="keep", preprocess="auto", seed=0, val_share=0.0, test_share=0.5)
    data.setup("fit")
    assert data.records("train").present is not None


def test_the_size_alone_writes_no_table(folder, capsys):
    run_all("--reveal", "size", "--pad-to", 40)
    align("take", "--party", "bank", "--in", "o", "--out", "bank.parquet")
    assert (
        "12 of 16 records in common; --reveal size tells nothing else, so no table is written"
        in capsys.readouterr().out
    )
    assert not (folder / "bank.parquet").exists()


def test_counts_come_first(folder, capsys):
    for party in PARTIES:
        masked(party)
    for party in PARTIES:
        align("pass", "--party", party, "--in", "o")
    align("match", "--in", "o", "--count")
    assert "12 records in common of bank, shop" in capsys.readouterr().out
    assert not list(folder.glob("o/*.rows"))


# ---- mistakes


MASK = ("mask", "--party", "bank", "--parties", "bank,shop", "--table", "bank.csv", "--out", "o")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "align needs a step; got ''; use one of mask, pass, match, take, local"),
        (("mach",), "align needs a step; got 'mach'; did you mean match?"),
        (("mask", "--party", "bank"), "align mask needs --parties and --table; see align mask --help"),
        ((*MASK, "--id_kolumn", "x"), "unknown option --id_kolumn"),
        ((*MASK, "--id-column", "idd"), "bank.csv of party 'bank' has no column 'idd', only id, bank_x, code, y; did"),
        ((*MASK, "--id-column", "id+cod"), "has no column 'cod', only id, bank_x, code, y; did you mean code?"),
        ((*MASK, "--id-column", "id+id"), "--id-column names 'id' twice"),
        ((*MASK, "--id-column", "bank_x+id", "--separator", ";"), "y; give --separator ','"),
        ((*MASK, "--id-column", "bank", "--separator", r"\t"), "y; give --separator ','"),
        ((*MASK, "--normalise", "strp"), "there is no step 'strp'; did you mean strip?"),
        ((*MASK, "--reveal", "all"), "--reveal: 'all' is none of intersection, label-party, size"),
        ((*MASK, "--reveal", "label-party"), "--reveal label-party and --label-party belong together"),
        ((*MASK, "--pad-to", "3"), "--pad-to 3 is less than the 16 records"),
        ((*MASK[:2], "bnk", *MASK[3:]), "bnk is not one of the parties bank, shop of this session"),
        ((*MASK[:4], "bank", *MASK[5:]), "an alignment needs two parties or more; got bank"),
        ((*MASK[:4], "bank,sh op", *MASK[5:]), "'sh op' cannot be the name of a party"),
        ((*MASK[:6], "bnk.csv", *MASK[7:]), "bnk.csv of party 'bank' cannot be read"),
        (("pass", "--party", "bank", "--in", "o"), "o/bank.key is not there; run lightning-vfl align mask --party ban"),
        (("match", "--in", "nowhere"), "nowhere has no list for the comparer"),
        (("take", "--party", "bank", "--in", "o", "--out", "x.parquet"), "o/bank.key is not there"),
        (
            ("take", "--party", "bank", "--in", "o", "--out", "x.txt"),
            "--out x.txt: the aligned table is a .csv or .parq",
        ),
        (("local", "--tables", "bank.csv", "shop.csv"), "--tables takes PARTY=FILE, once for each party; got bank.csv"),
        (("local", "--tables", "bank=bank.csv"), "an alignment needs two parties or more; got bank"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(folder, capsys, words, line):
    align(*words, error=line, capsys=capsys)
    assert {path.name for path in folder.iterdir()} - {"aligned"} == {"bank.csv", "shop.csv"}
    assert not list(folder.glob("aligned/*"))


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        (["a", "b", "a"], "duplicate ids of bank: 1, in 2 records; keep one record of each id"),
        (["a", None, None], "records of bank without an id: 2; add ids or remove the records"),
        (["a", "", "c"], "records of bank without an id: 1; add"),
        ([1.5, 2.5, 3.5], "column 'id' of party 'bank' is Float64; ids are text or whole numbers"),
        ([True, False, None], "column 'id' of party 'bank' is boolean"),
        (pd.to_datetime(["2020-01-01"] * 3), "column 'id' of party 'bank' is datetime64"),
        ([], "the table of bank has no record"),
    ],
)
def test_bad_ids_are_one_line_with_counts(folder, capsys, ids, line):
    pd.DataFrame({"id": ids, "x": range(len(ids))}).to_parquet("bank.parquet")
    align(*MASK[:6], "bank.parquet", *MASK[7:], error=line, capsys=capsys)
    assert not (folder / "o").exists()


def test_no_record_in_common_is_one_line(folder, capsys):
    pd.DataFrame({"id": [99], "x": 1}).to_csv("shop.csv", index=False)
    align("local", "--tables", "bank=bank.csv", "shop=shop.csv", error="no record in common", capsys=capsys)
    assert not list(folder.glob("aligned/*"))


def test_a_table_that_has_changed_is_refused(folder, capsys):
    run_all()
    capsys.readouterr()
    pd.read_csv("bank.csv")[:-1].to_csv("bank.csv", index=False)
    line = "the ids of"
    align("take", "--party", "bank", "--in", "o", "--out", "bank.parquet", error=line, capsys=capsys)
    assert not (folder / "bank.parquet").exists()


def test_a_table_that_has_moved_is_named(folder, capsys):
    run_all()
    (folder / "bank.csv").rename(folder / "moved.csv")
    capsys.readouterr()
    take = ("take", "--party", "bank", "--in", "o", "--out", "bank.parquet")
    align(*take, error="bank.csv of party 'bank' cannot be read", capsys=capsys)
    align(*take, "--table", "moved.csv")
    assert read("bank.parquet")["id"].tolist() == list(range(12))


def test_another_column_of_the_name_of_the_numbers_is_refused(folder, capsys):
    run_all("--id-column", "code")
    capsys.readouterr()
    take = ("take", "--party", "bank", "--in", "o", "--out", "bank.parquet")
    align(*take, error="has a column 'id' that is no id; name the column", capsys=capsys)
    assert not (folder / "bank.parquet").exists()
    align(*take, "--id-name", "row")
    assert list(read("bank.parquet")) == ["row", "id", "bank_x", "y"]


def test_pass_says_what_has_not_come(capsys):
    masked("shop")
    capsys.readouterr()
    assert answer(["align", "pass", "--party", "shop", "--in", "o"]) == 1
    said = capsys.readouterr()
    assert said.out == "the list of bank has not come yet, bank gives it; then run this command again\n"
    assert said.err == "lightning-vfl: error: o has no list for shop yet (*.for-shop.points)\n"


@pytest.mark.slow
def test_the_command_is_in_the_one_parser_too(capsys):
    from lightning_vfl.cli import run
    from lightning_vfl.errors import ConfigurationError

    run(["align", "local", "--tables", "bank=bank.csv", "shop=shop.csv"])
    assert "12 records in common" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match=r"needs .*--parties|parties"):
        run(["align", "mask", "--party", "bank"])


def people_of_two():
    """A bank with labels and a shop; of twelve people in both, four are written in another way."""
    rows = [(f"name{chr(97 + i) * 3}", f"19{40 + 3 * i}-0{1 + i % 9}-17", f"{i}{i} long street") for i in range(18)]
    draw = np.random.default_rng(1)
    for party, persons in (("bank", range(14)), ("shop", range(2, 18))):
        order = draw.permutation(list(persons))
        table = pd.DataFrame([rows[i] for i in order], columns=["who", "born", "home"]).assign(x=order * 1.5)
        if party == "bank":
            table["y"] = order % 2
        else:
            table.loc[table["x"].isin([3.0, 6.0, 9.0]), "home"] += "t"
            table.loc[table["x"] == 12.0, "who"] = table["who"].str.upper()
        table.to_csv(f"{party}.csv", index=False)


FUZZY = ("--id-column", "who+born+home")


def test_fuzzy_steps_pair_records_with_errors_and_carry_the_similarity_into_training(folder, capsys):
    people_of_two()
    (folder / "linkage.key").write_bytes(bytes(range(32)))
    for party in PARTIES:
        masked(party, *FUZZY, "--fuzzy", "linkage.key")
    align("match", "--in", "o", "--count")
    assert not (folder / "o/bank.links").exists()
    align("match", "--in", "o", "--threshold", "0.8")
    printed = capsys.readouterr().out
    assert "o/bank.for-comparer.filters: give it to the comparer alone" in printed
    assert "12 pairs of records, 3 of them with differences" in printed
    align("take", "--party", "bank", "--in", "o", "--out", "bank.aligned.csv", "--similarity")
    align("take", "--party", "shop", "--in", "o", "--out", "shop.aligned.csv")
    bank, shop = (read(f"{party}.aligned.csv") for party in PARTIES)
    assert (list(bank), list(shop)) == (["id", "similarity", "x", "y"], ["id", "x"])
    assert bank["x"].tolist() == shop["x"].tolist()
    changed = bank["x"].isin([3.0, 6.0, 9.0])
    assert bank["similarity"][~changed].eq(1).all()
    assert bank["similarity"][changed].between(0.8, 0.999).all()
    ids = pd.read_csv("shop.aligned.map.csv")
    assert ids["similarity"].tolist() == pytest.approx(bank["similarity"].tolist())
    for name in ("o/bank.table", "shop.aligned.map.csv"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    tables = {party: f"{party}.aligned.csv" for party in PARTIES}
    data = CSVTables(tables, "bank", "y", preprocess="auto", seed=0, sample_weight="similarity")
    data.setup("fit")
    train = data.records("train")
    similarity = bank["similarity"].to_numpy()[train.ids.astype(int)]
    assert train.weights.tolist() == pytest.approx((similarity / similarity.mean()).tolist())


def test_fuzzy_local_is_the_steps_on_one_machine(folder, capsys):
    people_of_two()
    words = ("local", "--tables", "bank=bank.csv", "shop=shop.csv", *FUZZY, "--fuzzy", "--format", "csv")
    align(*words, "--similarity", "bank")
    bank, shop = read("aligned/bank.csv"), read("aligned/shop.csv")
    assert bank["x"].tolist() == shop["x"].tolist()
    assert sorted(bank["x"]) == [1.5 * i for i in range(2, 14)]
    assert "similarity" in bank
    assert "similarity" not in shop
    assert not [path for path in folder.glob("aligned/*") if path.name.startswith(".")]
    capsys.readouterr()
    align(*words, "--similarity", "bnak", error="did you mean bank", capsys=capsys)


def test_fuzzy_mistakes_are_one_line(folder, capsys):
    people_of_two()
    (folder / "linkage.key").write_bytes(bytes(range(32)))
    (folder / "other.key").write_bytes(bytes(range(1, 33)))
    (folder / "short.key").write_bytes(b"short")
    mask = ("mask", "--party", "bank", "--parties", "bank,shop", "--table", "bank.csv", "--out", "o", *FUZZY)
    for more, error in (
        (("--fuzzy", "no.key"), "no.key cannot be read (No such file or directory); make one secret for both parties"),
        (("--fuzzy", "short.key"), "short.key has 5 bytes; a shared secret needs 16 or more random bytes"),
        (("--fuzzy", "linkage.key", "--pad-to", "99"), "--fuzzy does not hide how many records there are"),
        (("--fuzzy", "linkage.key", "--reveal", "size"), "--fuzzy tells the pairs that were found"),
        (("--fuzzy", "linkage.key", "--parties", "bank,shop,telco"), "--fuzzy links two parties; got 3"),
        (("--fuzzy", "linkage.key", "--id-column", "who", "born"), "--fuzzy compares one key of several columns"),
    ):
        align(*mask, *more, error=error, capsys=capsys)
    align(*mask, "--fuzzy", "linkage.key")
    align("match", "--in", "o", error="shop.for-comparer.filters is not there; shop writes it by mask", capsys=capsys)
    masked("shop", *FUZZY, "--fuzzy", "other.key")
    align("match", "--in", "o", error="no pair of records is as similar as --threshold 0.85", capsys=capsys)
    masked("shop", *FUZZY, "--fuzzy", "linkage.key", "--session", "other")
    align("match", "--in", "o", error="of two sessions: its name is other, not align as with bank", capsys=capsys)
    masked("shop", *FUZZY, "--fuzzy", "linkage.key")
    align("match", "--in", "o")
    (folder / "bank.csv").write_text((folder / "bank.csv").read_text().replace("long", "short"))
    take = ("take", "--party", "bank", "--in", "o", "--out", "b.csv")
    align(*take, error="bank.links cannot be used: it is about other filters of bank", capsys=capsys)
    align("take", "--party", "shop", "--in", "o", "--out", "s.csv", "--table", "gone.csv", error="gone", capsys=capsys)
    table = folder / "o/bank.for-comparer.filters"
    table.write_bytes(table.read_bytes()[:-1])
    align("match", "--in", "o", error="truncated or was changed", capsys=capsys)
