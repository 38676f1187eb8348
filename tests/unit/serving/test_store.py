"""Law: an endpoint answers from a database as from a Parquet file with the same records."""

import asyncio
import datetime
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper

from lightning_vfl.commands.alone import notes_on_records
from lightning_vfl.commands.light import answer
from lightning_vfl.datamodules.records.auto_steps import choose_steps
from lightning_vfl.datamodules.records.step_chain import fit_chain
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import RECORDS, Engine, Manifest, PartyHalf, Port, Program, hash_of
from lightning_vfl.serving import endpoint as endpoints
from lightning_vfl.serving.party_half import Records, ServedParty
from lightning_vfl.serving.store import Store
from tests.served import CLEAR, COLUMNS, PARTIES, Subject, running

NUMBER = 60
DAY = datetime.date(2024, 2, 1)
NOON = datetime.datetime(2024, 2, 1, 12, 30)


def gaps(cells):
    """Every seventh cell is missing."""
    return [None if place % 7 == 3 else cell for place, cell in enumerate(cells)]


CELLS = {  # column -> its type in SQL, its type in Arrow, its cells
    "visits": ("INTEGER", pa.int64(), [*range(NUMBER)]),
    "age": ("INTEGER", pa.int64(), gaps(20 + one % 50 for one in range(NUMBER))),
    "income": ("DOUBLE PRECISION", pa.float64(), gaps(one / 7 for one in range(NUMBER))),
    "balance": ("NUMERIC(12, 2)", pa.decimal128(12, 2), gaps(Decimal(one * 37) / 100 for one in range(NUMBER))),
    "active": ("BOOLEAN", pa.bool_(), gaps(one % 3 == 0 for one in range(NUMBER))),
    "born": ("DATE", pa.date32(), gaps(DAY + datetime.timedelta(days=40 * one) for one in range(NUMBER))),
    "seen": ("TIMESTAMP", pa.timestamp("us"), [NOON + datetime.timedelta(hours=5 * one) for one in range(NUMBER)]),
    "branch": ("VARCHAR(8)", pa.string(), [f"{one % 5:03d}" for one in range(NUMBER)]),
    "city": ("TEXT", pa.string(), gaps(("Oslo", "Paris", "St. John's")[one % 3] for one in range(NUMBER))),
}
ZONED = [one.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=3))) for one in CELLS["seen"][2]]
IDS = {
    "whole numbers": ("INTEGER", pa.int64(), [7 * one - 20 for one in range(NUMBER)]),
    "numbers as text": ("VARCHAR(9)", pa.string(), [str(7 * one - 20) for one in range(NUMBER)]),
    "codes": ("TEXT", pa.string(), [f"{one:04d}" for one in range(NUMBER)]),
    "padded": ("CHAR(9)", pa.string(), [f"a{one}" for one in range(NUMBER)]),
}


class Case:
    """The same records in a Parquet file and in a database, and a half whose embeddings are the encoded columns."""

    def __init__(self, folder, ids, cells):
        self.folder = folder
        self.columns = {"id": ids, **cells}
        self.file = folder / "bank.parquet"
        arrays = {name: pa.array(values, kind) for name, (_, kind, values) in self.columns.items()}
        pq.write_table(pa.table(arrays), self.file)
        table = pd.read_parquet(self.file)
        self._open = []
        chains = [fit_chain(choose_steps(table[name], party="bank").steps, table[name], "bank") for name in cells]
        self.half = folder / "bank"
        write_half(self.half, [chain.state() for chain in chains], sum(len(chain.names) for chain in chains))

    def create(self, execute, place):
        """Fill the table ``customers``, which has a further column; ``place`` is the sign of a parameter."""
        kinds = ", ".join(f"{name} {kind}" for name, (kind, _, _) in self.columns.items())
        execute(f"CREATE TABLE customers ({kinds}, label INTEGER DEFAULT 1)")
        names = ", ".join(self.columns)
        signs = ", ".join([place] * len(self.columns))
        for row in zip(*(cells for _, _, cells in self.columns.values()), strict=True):
            execute(f"INSERT INTO customers ({names}) VALUES ({signs})", row)

    def party(self, url=None, table="customers"):
        self._open.append(ServedParty(self.half, Records(self.file) if url is None else Store(url, table)))
        return self._open[-1]

    def close(self):
        for party in self._open:
            party.close()

    def assert_same(self, url, table="customers"):
        """The embeddings of all records together and each alone are those of the Parquet file."""
        expected, found = self.party(), self.party(url, table)
        ids = np.sort(expected.all_ids())
        other = np.array(["x' OR '1'='1", "a\0", "é"]) if expected.ids == "text" else np.array([2**62, -(2**40), 123])
        assert (found.ids, len(found)) == (expected.ids, NUMBER)
        assert sorted(found.all_ids().tolist()) == ids.tolist()
        asked = np.concatenate([ids, other])
        values, known, refused = expected.embed(asked)
        assert known.sum() == NUMBER
        for some in (slice(None), *(slice(one, one + 1) for one in (0, 3, 4, len(ids), len(ids) + 1))):
            of_database = found.embed(asked[some])
            np.testing.assert_array_equal(of_database[0], values[some])
            np.testing.assert_array_equal(of_database[1], known[some])
            np.testing.assert_array_equal(of_database[2], refused[some])


def write_half(folder, states, width):
    folder.mkdir()
    inputs = [helper.make_tensor_value_info("features", TensorProto.DOUBLE, [RECORDS, width])]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [RECORDS, width])]
    cast = helper.make_node("Cast", ["features"], ["embedding"], to=TensorProto.FLOAT)
    graph = helper.make_graph([cast], "bank", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "half.onnx")
    ports = (Port("features", (RECORDS, width), "float64"),), (Port("embedding", (RECORDS, width), "float32"),)
    programs = {Engine.ONNX: Program("half.onnx", hash_of(folder / "half.onnx"))}
    Manifest("bank", "f" * 64, PartyHalf(tuple(states), (), CLEAR, "a1"), *ports, programs).write(folder)


def in_sqlite(cells):
    """The columns as SQLite has them, which stores decimals as floats."""
    numbers = [None if one is None else float(one) for one in cells["balance"][2]]
    return cells | {"balance": ("NUMERIC(12, 2)", pa.float64(), numbers)}


def sqlite_url(case, then=()):
    """A file of SQLite with the table, in which further statements were executed."""
    path = case.folder / "bank.sqlite"
    plain = {Decimal: float, datetime.date: str, datetime.datetime: str}

    def execute(statement, row=()):
        connection.execute(statement, [plain.get(type(one), lambda same: same)(one) for one in row])

    with sqlite3.connect(path) as connection:
        case.create(execute, "?")
        for statement in then:
            connection.execute(statement)
    connection.close()
    return f"sqlite:///{path}"


def execute(url, statement):
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(statement)
    connection.close()


@pytest.fixture
def made(tmp_path):
    """Makes a case, whose parties are closed at the end."""
    cases = []

    def make(ids, cells):
        cases.append(Case(tmp_path, IDS[ids], cells))
        return cases[-1]

    yield make
    for case in cases:
        case.close()


@pytest.fixture
def case(made):
    return made("whole numbers", {name: CELLS[name] for name in ("visits", "age", "income", "city")})


@pytest.mark.parametrize("ids", ["whole numbers", "numbers as text", "codes"])
def test_sqlite_gives_the_embeddings_of_a_parquet_file(ids, made):
    case = made(ids, in_sqlite(CELLS))
    case.assert_same(sqlite_url(case))


def test_only_columns_that_the_half_uses_are_read_and_a_view_is_read_like_a_table(case):
    overflow = "abs(-9223372036854775807 - visits - 1) AS secret"
    view = f"CREATE VIEW seen AS SELECT id, visits, age, income, city, {overflow} FROM customers WHERE id > -1000"
    url = sqlite_url(case, [view])
    with pytest.raises(sqlite3.OperationalError, match="overflow"):
        sqlite3.connect(url.removeprefix("sqlite:///")).execute("SELECT secret FROM seen").fetchall()
    case.assert_same(url, "seen")


def test_each_request_reads_the_records_as_they_are(case):
    url = sqlite_url(case)
    party = case.party(url)
    ids = np.array([-20, 5000])
    before = party.embed(ids)
    execute(url, "UPDATE customers SET visits = 1000 WHERE id = -20")
    execute(url, "INSERT INTO customers (id, visits, age, city) VALUES (5000, 3, 4, 'Bergen')")
    after = party.embed(ids)
    execute(url, "DELETE FROM customers WHERE id = -20")
    last = party.embed(ids)
    assert [one[1].tolist() for one in (before, after, last)] == [[True, False], [True, True], [False, True]]
    assert (before[0][0, 0], after[0][0, 0], after[0][1, 0]) == (0, 1000, 3)


def test_a_record_that_cannot_be_encoded_is_refused_and_no_other_one(case):
    url = sqlite_url(case)
    party = case.party(url)
    ids = np.sort(party.all_ids())
    before = party.embed(ids)
    execute(url, f"UPDATE customers SET income = 9e999 WHERE id = {ids[5]}")
    values, known, refused = party.embed(ids)
    assert np.flatnonzero(refused).tolist() == [5]
    assert (known == (np.arange(NUMBER) != 5)).all()
    np.testing.assert_array_equal(values[known], before[0][known])


def test_what_is_unlike_the_training_records_is_told_as_of_a_file(case, capsys, told):
    url = sqlite_url(case, ["UPDATE customers SET visits = 100000, age = NULL"])
    table = pq.read_table(case.file)
    for column, cell in (("visits", 100_000), ("age", None)):
        cells = pa.array([cell] * NUMBER, table.schema.field(column).type)
        table = table.set_column(table.schema.get_field_index(column), column, cells)
    pq.write_table(table, case.file)
    notes = []
    for where in (None, url):
        told.clear()
        with notes_on_records():
            case.party(where)
        # where an earlier test has imported Lightning, its logger has the notes
        notes.append("".join(f"{line}\n" for line in told) or capsys.readouterr().err)
    assert f"lie outside those of the training records in: visits {NUMBER}\n" in notes[0]
    assert f"are missing, more than in the training records, in: age {NUMBER} (" in notes[0]
    assert notes[1] == notes[0]


SECRET = "horse7staple"
WRONG = {
    "bank.sqlite": "--store is no URL",
    f"postgresql://bank:{SECRET}@127.0.0.1:port/customers": "--store is no URL",
    f"nosql://bank:{SECRET}@127.0.0.1/customers": "begins with 'nosql', which SQLAlchemy does not know",
    f"mssql+pyodbc://bank:{SECRET}@127.0.0.1/customers": "pip install pyodbc",
    "sqlite:///nowhere.sqlite": "--store names no file of SQLite",
    "sqlite://": "--store names no file of SQLite",
}


@pytest.mark.parametrize(("url", "said"), WRONG.items(), ids=range(len(WRONG)))
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url, said, case, capsys):
    arguments = ["endpoint", str(case.half), "--store", url, "--table", "customers"]
    found = refused(case, arguments, capsys)
    assert said in found
    assert SECRET not in found


def test_a_database_that_cannot_be_reached_is_named_without_a_password(case, capsys):
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    url = f"postgresql+psycopg://bank:{SECRET}@127.0.0.1:1/customers?sslpassword={SECRET}x"
    found = refused(case, ["endpoint", str(case.half), "--store", url, "--table", "customers"], capsys)
    assert "the database postgresql://127.0.0.1/customers does not give the records" in found
    assert SECRET not in found
    assert SECRET not in repr(Store(url, "customers"))


def refused(case, arguments, capsys):
    """The one line with which a command that is started at the party's host refuses."""
    if not (case.folder / "federation.yaml").exists():
        subject = Subject(case.folder)
        (case.folder / "seat.yaml").write_text("key: keys/bank.key\n")
        assert subject.charter.parties
    host = ["--federation", str(case.folder / "federation.yaml"), "--seat", str(case.folder / "seat.yaml")]
    assert answer([*arguments, *host]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


TABLES = {
    "no such table": ("DROP TABLE customers", "--table customers is no table or view of the database"),
    "another name": ("ALTER TABLE customers RENAME TO customer", "did you mean customer?"),
    "no id": ("ALTER TABLE customers RENAME COLUMN id TO number", "has no id column 'id'"),
    "missing column": ("ALTER TABLE customers RENAME COLUMN age TO years", "is without age"),
    "no record": ("DELETE FROM customers", "holds no record"),
    "id twice": ("UPDATE customers SET id = 1 WHERE id < 10", "are duplicates"),
    "no id in a record": ("UPDATE customers SET id = NULL WHERE id = 1", "1 records of party 'bank' have no id"),
    "another kind": ("UPDATE customers SET visits = 'many' WHERE id = 1", "column 'visits' of party 'bank' is INTEGER"),
    "fractions": ("UPDATE customers SET age = 1.5 WHERE id = 1", "has cells of another type"),
    "infinite": ("UPDATE customers SET income = 9e999 WHERE id = 1", "column 'income' of party 'bank'"),
    "no text": ("UPDATE customers SET city = x'ff' WHERE id = 1", "column 'city' of party 'bank' is TEXT"),
}


@pytest.mark.parametrize("which", TABLES)
def test_a_table_that_does_not_fit_the_half_is_refused_in_one_line(which, case, capsys):
    statement, said = TABLES[which]
    url = sqlite_url(case, [statement])
    assert said in refused(case, ["endpoint", str(case.half), "--store", url, "--table", "customers"], capsys)


def test_ids_with_blanks_around_them_are_refused(made):
    case = made("codes", {name: CELLS[name] for name in ("visits", "city")})
    url = sqlite_url(case, ["UPDATE customers SET id = ' x' WHERE id = '0001'"])
    with pytest.raises(ConfigurationError, match=r"1 ids .* have blanks around them"):
        case.party(url)


def test_options_of_files_are_refused_beside_a_database(case, capsys):
    url = sqlite_url(case)
    arguments = ["endpoint", str(case.half), "--store", url, "--table", "customers", "--separator", ";"]
    assert "--separator is for a file" in refused(case, arguments, capsys)


class OfStore(Subject):
    """Parties of whom the bank has its records in SQLite."""

    def __init__(self, folder):
        super().__init__(folder)
        path = self.folder / "bank.sqlite"
        with sqlite3.connect(path) as connection:
            names = ", ".join(f"bank{place} REAL" for place in range(COLUMNS))
            connection.execute(f"CREATE TABLE customers (id INTEGER PRIMARY KEY, {names})")
            for one, values in self.tables["bank"].items():
                connection.execute("INSERT INTO customers VALUES (?, ?, ?, ?)", [one, *values.tolist()])
        connection.close()
        self.url = f"sqlite:///{path}"

    def records(self, name):
        return Store(f"{self.url}?timeout=0.05", "customers") if name == "bank" else super().records(name)


def test_a_party_whose_database_does_not_answer_is_absent_and_comes_back_by_itself(tmp_path, capsys):
    subject = OfStore(tmp_path)
    ids = np.arange(10)

    async def ask():
        async with running(subject) as (gateway, _):
            before = await gateway.predict(ids)
            lock = sqlite3.connect(subject.url.removeprefix("sqlite:///"), isolation_level=None)
            lock.execute("BEGIN EXCLUSIVE")
            during = [await gateway.predict(ids) for _ in range(3)]
            lock.close()
            return before, *during, await gateway.predict(ids)

    joined = asyncio.run(ask())
    away = ("bank",)
    assert [one.absent for one in joined] == [(), away, away, away, ()]
    for one in joined:
        there = [name for name in PARTIES if name not in one.absent]
        np.testing.assert_allclose(one.values, subject.expected(ids, there), atol=1e-5)
    log = capsys.readouterr().err.splitlines()
    assert sum('"request refused"' in line and "database is locked" in line for line in log) == 1  # once, not thrice


def test_a_database_that_never_answers_holds_up_neither_the_process_nor_later_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoints, "_LOOKUP", 0.1)
    subject = OfStore(tmp_path)
    ids, go_on = np.arange(10), threading.Event()

    async def ask():
        async with running(subject) as (gateway, tasks):
            source = tasks["bank"][0]._half._source
            find = source.find
            source.find = lambda asked: find(asked) if go_on.wait(20) else None
            during = await gateway.predict(ids)
            await asyncio.sleep(0.01)
            states = gateway.states
            go_on.set()
            return during, states, await gateway.predict(ids)

    during, states, after = asyncio.run(ask())
    assert (during.absent, states["bank"], after.absent) == (("bank",), "connected", ())
    np.testing.assert_allclose(after.values, subject.expected(ids), atol=1e-5)


# ---- PostgreSQL


def programs():
    """The folder of PostgreSQL's programs, which Debian does not put into the path; None: it is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


class Server:
    """A server of PostgreSQL in a folder of its own, which answers at a socket there."""

    def __init__(self, folder):
        self.folder = folder
        self.user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.user:
            shutil.chown(folder, "postgres")
        self.run("initdb", "-D", folder / "data", "-U", "bank", "--auth=trust", "--no-sync", "-E", "UTF8")
        self.start()

    def run(self, program, *words):
        command = [*self.user, str(programs() / program), *map(str, words)]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, timeout=60)

    def start(self):
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self.run("pg_ctl", "-D", self.folder / "data", "-o", settings, "-l", self.folder / "log", "-w", "start")

    def stop(self):
        self.run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")

    def url(self, user="bank"):
        return f"postgresql+psycopg://{user}@/postgres?host={self.folder}"

    def execute(self, statement, row=None):
        import psycopg

        with psycopg.connect(f"host={self.folder} user=bank dbname=postgres", autocommit=True) as connection:
            connection.execute(statement, row)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp())
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def filled(server, case):
    server.execute("DROP TABLE IF EXISTS customers CASCADE")
    case.create(server.execute, "%s")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("ids", IDS)
def test_postgresql_gives_the_embeddings_of_a_parquet_file(ids, server, made):
    case = made(ids, CELLS | {"zoned": ("TIMESTAMPTZ", pa.timestamp("us", "UTC"), ZONED)})
    filled(server, case)
    server.execute("DROP ROLE IF EXISTS reader")
    server.execute("CREATE ROLE reader LOGIN")
    server.execute("ALTER ROLE reader SET timezone TO 'Asia/Tokyo'")
    server.execute(f"GRANT SELECT ({', '.join(case.columns)}) ON customers TO reader")  # and not the label
    case.assert_same(server.url("reader"))
    case.assert_same(server.url(), "public.customers")
    server.execute("DROP OWNED BY reader")


@pytest.mark.slow
@pytest.mark.processes
def test_a_party_outlives_the_end_of_postgresql_and_of_its_connections(server, case, capsys):
    filled(server, case)
    party = case.party(server.url())
    ids = np.sort(party.all_ids())
    expected = party.embed(ids)[0]
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    np.testing.assert_array_equal(party.embed(ids)[0], expected)  # not even one request fails
    server.stop()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=re.escape("does not give the records")):
            party.embed(ids)
    server.start()
    np.testing.assert_array_equal(party.embed(ids)[0], expected)
    server.execute("CREATE ROLE stranger LOGIN")
    with pytest.raises(ConfigurationError, match="permission denied"):
        case.party(server.url("stranger"))
