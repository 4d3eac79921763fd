"""All stores and Flink snapshots below a folder as one database, and states in a DuckDB of the user's."""

import json
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import arrowstate
from arrowstate import discovery
from arrowstate.errors import CorruptDataError, InvalidInputError, StateNotFoundError, StoreNotFoundError
from arrowstate.storage import open_storage
from flink_truth import unpack
from stores import backend_of, run

FIXTURES = Path(__file__).parents[1] / "foreign" / "flink" / "fixtures"
USER = pa.schema([("user", pa.string())])
CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
NAMES = ["flink/job-7/chk-5", "flink/savepoint-1", "jobs/clicks", "jobs/clicks/savepoints/before", "jobs/old-clicks"]


def fill(place, *counts):
    """A store whose checkpoints hold the clicks of one user."""
    store = arrowstate.open_store(place, create=True)
    backend = backend_of(USER)
    with store.writer() as writer:
        for count in counts:
            backend.state(CLICKS).add_batch(["ann"], [count])
            writer.checkpoint({"counter": [backend]})
    return store


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """Three stores, one of them a savepoint of another, and two snapshots of Flink."""
    root = tmp_path_factory.mktemp("found")
    folder = root / "folder"
    fill(folder / "jobs" / "clicks", 1, 2).savepoint("before")
    fill(folder / "jobs" / "old-clicks", 40)
    for fixture in ("core-hashmap-canonical", "small-hashmap-inline-checkpoint"):
        unpack(FIXTURES / f"{fixture}.tar.xz", root)
    (folder / "flink").mkdir()
    shutil.move(root / "core-hashmap-canonical" / "savepoint", folder / "flink" / "savepoint-1")
    shutil.move(root / "small-hashmap-inline-checkpoint" / "savepoint", folder / "flink" / "job-7")
    (folder / "notes").mkdir()
    (folder / "notes" / "readme.txt").write_text("no store")
    return folder


@pytest.fixture
def folder(unchanged, tmp_path):
    return Path(shutil.copytree(unchanged, tmp_path / "folder"))


def test_stores_savepoints_and_snapshots_of_flink_are_found_by_their_paths(unchanged):
    catalog = arrowstate.discover(unchanged)

    assert [found.name for found in catalog.found] == NAMES
    assert [found.kind for found in catalog.found] == ["flink", "flink", "store", "store", "store"]
    assert all(found.url == f"{unchanged}/{found.name}" for found in catalog.found)
    assert isinstance(catalog.open("jobs/clicks"), arrowstate.StateStore)
    assert catalog.open("flink/savepoint-1").states


def test_what_was_found_is_queried_as_one_database(unchanged):
    catalog = arrowstate.discover(unchanged)
    savepoint = catalog.open("flink/savepoint-1")
    name, state = next(iter(savepoint.states.items()))
    operator, _, of_operator = name.partition(".")

    rows = catalog.sql(
        'select now.clicks, before.clicks, old.clicks from "jobs/clicks".counter.clicks as now '
        'join "jobs/clicks/savepoints/before".counter.clicks as before using (user) '
        'join "jobs/old-clicks".counter.clicks as old using (user) where user = $user',
        params={"user": "ann"},
    ).fetchall()
    of_flink = catalog.sql(f'select count(*) from "flink/savepoint-1"."{operator}"."{of_operator}"').fetchall()

    assert rows == [(3, 3, 40)]
    assert of_flink == [(state.to_arrow().num_rows,)]
    assert state.to_arrow().num_rows > 0


def test_the_names_are_tables_too(unchanged):
    catalog = arrowstate.discover(unchanged)

    listed = catalog.sql("select name, kind from arrowstate.snapshots order by name").fetchall()
    schemas = catalog.sql("show schemas").fetchall()

    assert [name for name, _ in listed] == NAMES
    assert {database for database, schema, _ in schemas if schema != "main"} == {*NAMES, "memory"}
    assert ("jobs/clicks", "counter", False) in schemas


def test_each_folder_is_listed_once_and_none_inside_of_what_was_found(unchanged, monkeypatch):
    listed = []
    real = discovery.listed_level
    monkeypatch.setattr(discovery, "listed_level", lambda storage, at: (listed.append(at), real(storage, at))[1])

    arrowstate.discover(unchanged)

    assert sorted(listed) == sorted(
        ["", "flink", "flink/job-7", "jobs", "jobs/clicks/savepoints", "notes", *NAMES],
    )


def test_a_folder_that_is_a_store_is_found_under_its_own_name(unchanged):
    catalog = arrowstate.discover(unchanged / "jobs" / "clicks")

    assert [found.name for found in catalog.found] == ["clicks", "savepoints/before"]
    assert catalog.sql("select clicks from clicks.counter.clicks").fetchall() == [(3,)]


def test_names_that_duckdb_could_not_tell_apart_have_a_number(tmp_path):
    paths = ("Clicks", "clicks", "clicks_2", "main", "arrowstate", "memory", "information_schema", "TEMP")
    for number, path in enumerate(paths):
        fill(tmp_path / path, number)

    catalog = arrowstate.discover(tmp_path)

    names = {found.name: found.url.rpartition("/")[2] for found in catalog.found}
    assert names == {
        "Clicks": "Clicks",
        "TEMP_2": "TEMP",
        "arrowstate_2": "arrowstate",
        "clicks_2": "clicks",
        "clicks_2_2": "clicks_2",
        "information_schema_2": "information_schema",
        "main_2": "main",
        "memory_2": "memory",
    }
    for name, path in names.items():
        assert catalog.sql(f'select clicks from "{name}".counter.clicks').fetchall() == [(paths.index(path),)]
    assert len(catalog.sql("select table_catalog from information_schema.tables where table_name = 'clicks'")) == 8


def test_no_deeper_than_asked(unchanged):
    assert [found.name for found in arrowstate.discover(unchanged, depth=2).found] == [
        "flink/savepoint-1",
        "jobs/clicks",
        "jobs/old-clicks",
    ]
    assert arrowstate.discover(unchanged, depth=0).found == ()


def test_too_many_folders_are_refused(unchanged, monkeypatch):
    monkeypatch.setattr(discovery, "_MOST_FOLDERS", 4)

    with pytest.raises(InvalidInputError, match="more than 4 folders; search one of them"):
        arrowstate.discover(unchanged)


def test_no_such_folder_is_refused(tmp_path):
    with pytest.raises(StoreNotFoundError):
        arrowstate.discover(tmp_path / "nothing")


def test_below_a_bucket_prefix(tmp_path):
    for job in ("clicks", "views"):
        fill(f"memory://discovered/jobs/{job}", 5)

    catalog = arrowstate.discover("memory://discovered/jobs")

    query = "select c.clicks + v.clicks from clicks.counter.clicks c join views.counter.clicks v using (user)"
    assert catalog.sql(query).fetchall() == [(10,)]


def test_a_damaged_store_is_in_nobodys_way_but_its_own(folder):
    entries = sorted((folder / "jobs" / "old-clicks" / "log").iterdir())
    entries[-1].write_bytes(entries[-1].read_bytes()[:-9])
    catalog = arrowstate.discover(folder)

    rows = catalog.sql('select clicks from "jobs/clicks".counter.clicks').fetchall()
    with pytest.warns(RuntimeWarning, match="jobs/old-clicks is left out: .*damaged"):
        schemas = catalog.sql("show schemas").fetchall()

    assert rows == [(3,)]
    assert "jobs/old-clicks" not in {database for database, _, _ in schemas}
    with pytest.raises(CorruptDataError):
        catalog.sql('select clicks from "jobs/old-clicks".counter.clicks')


def test_a_scan_that_meets_damage_raises_it(folder):
    for path in (folder / "jobs" / "clicks").rglob("*"):
        if path.is_file() and "/log/" in str(path):
            assert path.stat().st_size > 0
    store = fill(folder / "jobs" / "large", 1)
    backend = backend_of(USER)
    users = [f"user {number}" for number in range(5000)]
    backend.state(CLICKS).add_batch(users, [1] * len(users))
    with store.writer() as writer:
        writer.checkpoint({"counter": [backend]})
    (run_file,) = (folder / "jobs" / "large" / "data").rglob("*.arrow")
    data = bytearray(run_file.read_bytes())
    data[len(data) // 2] ^= 255
    run_file.write_bytes(data)

    with pytest.raises(CorruptDataError, match="checksum"):
        arrowstate.discover(folder).sql('select sum(clicks) from "jobs/large".counter.clicks').fetchall()


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ('select * from "jobs/click".counter.clicks', StateNotFoundError, '"jobs/clicks".OPERATOR.STATE'),
        ('select * from "jobs/clicks".counter.click', StateNotFoundError, '"jobs/clicks".counter.clicks'),
        ('select user_ from "jobs/clicks".counter.clicks', InvalidInputError, "user_"),
        ("drop table x", InvalidInputError, "takes one SELECT"),
    ],
)
def test_what_is_not_there_is_said_with_what_there_is(unchanged, query, error, message):
    with pytest.raises(error) as raised:
        arrowstate.discover(unchanged).sql(query)

    assert message in str(raised.value)


def test_an_unknown_name_is_refused_with_those_there_are(unchanged):
    with pytest.raises(InvalidInputError, match="nothing named 'click' was found in .*; there is 'flink/job-7/chk-5'"):
        arrowstate.discover(unchanged).open("click")


def test_states_are_attached_to_a_connection_of_the_user(unchanged):
    connection = duckdb.connect()
    connection.execute("create table cities as select 'ann' as user, 'Rome' as city")

    name = arrowstate.attach(connection, unchanged / "jobs" / "clicks")
    other = arrowstate.attach(connection, str(unchanged / "flink" / "savepoint-1"), "flink")

    query = "select city, clicks from clicks.counter.clicks join cities using (user)"
    assert (name, other) == ("clicks", "flink")
    assert connection.sql(query).fetchall() == [("Rome", 3)]
    assert "flink" in {row[0] for row in connection.sql("show schemas").fetchall()}


def test_attached_states_stay_with_their_checkpoint_until_they_are_attached_again(tmp_path):
    store = fill(tmp_path / "clicks", 1)
    connection = duckdb.connect()
    arrowstate.attach(connection, store)
    fill(tmp_path / "clicks", 5)

    before = connection.sql("select clicks from clicks.counter.clicks").fetchall()
    with pytest.raises(InvalidInputError, match='run detach "clicks" first'):
        arrowstate.attach(connection, store)
    connection.execute("detach clicks")
    arrowstate.attach(connection, store)

    assert before == [(1,)]
    assert connection.sql("select clicks from clicks.counter.clicks").fetchall() == [(5,)]


def test_an_older_checkpoint_is_attached(tmp_path):
    store = fill(tmp_path / "clicks", 1, 5)
    connection = duckdb.connect()

    arrowstate.attach(connection, store.snapshot(1), "first")

    assert connection.sql("select clicks from first.counter.clicks").fetchall() == [(1,)]


@pytest.mark.parametrize("name", ["memory", "MEMORY", ""])
def test_a_name_that_the_connection_has_is_refused(unchanged, name):
    with pytest.raises(InvalidInputError, match="must be a text that the connection has no database of"):
        arrowstate.attach(duckdb.connect(), unchanged / "jobs" / "clicks", name)


def test_neither_a_store_nor_a_savepoint_is_refused(unchanged):
    with pytest.raises(StoreNotFoundError):
        arrowstate.attach(duckdb.connect(), unchanged / "notes")


def test_the_command_line_queries_and_lists_a_folder(unchanged, capsys):
    query = 'select clicks from "jobs/clicks".counter.clicks'
    code, printed, _ = run(capsys, "sql", unchanged, query, "--json")
    listed_code, listed, _ = run(capsys, "list", unchanged, "--json")
    _, table, _ = run(capsys, "list", unchanged)

    assert (code, json.loads(printed)) == (0, [{"clicks": 3}])
    assert listed_code == 0
    assert [(line["name"], line["checkpoint_id"]) for line in json.loads(listed)][2:] == [
        ("jobs/clicks", 2),
        ("jobs/clicks/savepoints/before", 2),
        ("jobs/old-clicks", 1),
    ]
    assert all(name in table for name in NAMES)


def test_an_option_for_one_store_names_those_there_are(unchanged, capsys):
    code, _, told = run(capsys, "sql", unchanged, "select 1", "--checkpoint", "1")

    assert code != 0
    assert "--checkpoint is for one store" in told
    assert "jobs/clicks" in told


def test_a_folder_without_stores_is_no_store(unchanged, capsys):
    code, _, told = run(capsys, "list", unchanged / "notes")

    assert code != 0
    assert "no store at" in told


def test_levels_of_a_storage_without_a_method_for_them_are_those_of_its_listing():
    storage = open_storage("memory://levels", create=True)
    for path in ("a/b/c", "a/d", "e"):
        storage.put_hint(path, b"")

    assert discovery.listed_level(storage, "") == (["a"], ["e"])
    assert discovery.listed_level(storage, "a") == (["b"], ["d"])
    assert discovery.listed_level(storage, "nothing") == ([], [])
