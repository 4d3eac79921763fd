"""Jobs that begin with the savepoint, a checkpoint or the store of another: at their first start, and at no other."""

import shutil
from typing import ClassVar

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, NotFoundError, StoreNotFoundError
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime import GeneratorSource, Job, OutputTable, Restart, Sink
from arrowstate.runtime import running as runtime
from stores import commit, totals_from

ROWS = 720
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
TOTALS = {key: sum(range(key, ROWS, 5)) for key in range(5)}


def numbered(first, count):
    numbers = range(first, first + count)
    return pa.record_batch({"k": [number % 5 for number in numbers], "n": list(numbers)}, schema=SCHEMA)


class Totals(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.total.add_batch(context.group_keys(batch), batch["n"])


class Shop(Sink):
    """Takes rows with their token into one transaction, as a database does."""

    sold: ClassVar[list[int]] = []
    tokens: ClassVar[dict[tuple[str, str, int], int]] = {}
    place = "the shop"

    def commit(self, rows, token):
        of = token.store_id, token.uid, token.subtask
        if self.tokens.get(of, 0) < token.checkpoint_id:
            self.tokens[of] = token.checkpoint_id
            self.sold.extend(rows["n"].to_pylist())


@pytest.fixture(autouse=True)
def _empty_shop():
    Shop.sold.clear()
    Shop.tokens.clear()


def declared(store, *, uid="totals", **options):
    job = Job(store, restart=Restart.none(), **options)
    rows = job.source(GeneratorSource(numbered, SCHEMA, rows=ROWS, splits=3, batch_rows=4), uid="numbers")
    rows.stateful(Totals(), key=["k"], uid=uid)
    rows.sink(OutputTable("copy"))
    rows.sink(Shop(), uid="shop")
    return job


@pytest.fixture
def stopped(tmp_path):
    """A checkpoint of a job that was stopped halfway, and the store of the job."""
    with declared(tmp_path / "old", parallelism=2).start(mode="inline", seed=1) as running:
        running.go_on(120)
        first = running.checkpoint()
        running.store.tag("early", first.checkpoint_id)
        running.go_on(40)
        snapshot = running.stop("saved")
    assert 0 < len(Shop.sold) < ROWS
    return snapshot


def totals(snapshot):
    return dict(snapshot.sql("select k, total from totals.total").fetchall())


def check_whole(snapshot):
    assert totals(snapshot) == TOTALS
    assert sorted(snapshot.sql("select n from copy.rows").fetchall()) == [(n,) for n in range(ROWS)]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("place", ["savepoint", "store", "snapshot"])
def test_a_job_goes_on_from_a_savepoint_and_sinks_get_each_row_once(tmp_path, stopped, place, parallelism):
    given = {"savepoint": stopped.storage.url, "store": tmp_path / "old", "snapshot": stopped}[place]

    finished = declared(tmp_path / "new", from_savepoint=given, parallelism=parallelism).run(mode="inline")

    check_whole(finished)
    # The rows of the last checkpoint are in it, and the shop had them.
    assert sorted(Shop.sold) == list(range(ROWS))
    assert next(iter(Shop.tokens))[0] != finished.store_id


@pytest.mark.parametrize("by_tag", [False, True])
def test_an_older_checkpoint_is_named_by_its_id_or_a_tag(tmp_path, stopped, by_tag):
    reference = "early" if by_tag else arrowstate.open_store(tmp_path / "old").tags()["early"]
    job = declared(tmp_path / "new", from_savepoint=f"{tmp_path}/old@{reference}", max_parallelism=7)

    with job.start(mode="inline") as running:
        began = running.store.latest()
        old = arrowstate.open_store(tmp_path / "old").snapshot("early")
        assert totals(began) == totals(old)
        assert running._max_parallelism == 7
    check_whole(declared(tmp_path / "new", max_parallelism=5).run(mode="inline"))


def test_the_second_start_goes_on_and_does_not_need_the_place_any_more(tmp_path, stopped):
    begins = {"from_savepoint": stopped.storage.url}
    with declared(tmp_path / "new", **begins).start(mode="inline") as running:
        # It is killed before its first checkpoint.
        running.go_on(20)
    began = arrowstate.open_store(tmp_path / "new").latest()
    shutil.rmtree(stopped.storage.url)
    with declared(tmp_path / "new", **begins).start(mode="inline", seed=2) as running:
        running.go_on(60)
        later = running.checkpoint()
        running.rescale(parallelism=2)
        running.go_on(10)
        running.checkpoint()

    finished = declared(tmp_path / "new", **begins).run(mode="inline")

    assert totals(began) == totals(arrowstate.open_store(tmp_path / "old").latest()) != totals(later)
    check_whole(finished)
    assert sorted(Shop.sold) == list(range(ROWS))


def test_a_start_that_was_killed_within_the_import_is_made_up_for(tmp_path, stopped, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    job = declared(tmp_path / "new", from_savepoint=stopped.storage.url)
    with monkeypatch.context() as patched:
        # It has copied the files and taken the fence.
        patched.setattr("arrowstate.checkpoints.importing.Committer.commit", kill)
        with pytest.raises(Killed):
            job.start(mode="inline")

    check_whole(job.run(mode="inline"))


def test_of_two_first_starts_at_once_the_second_goes_on_from_what_the_first_has(tmp_path, stopped, monkeypatch):
    real, first = runtime.import_checkpoint, []

    def late(*given, **named):
        if not first:
            first.append(None)
            with declared(tmp_path / "new", from_savepoint=stopped.storage.url).start(mode="inline") as running:
                running.go_on(80)
                first[0] = running.checkpoint()
        return real(*given, **named)

    monkeypatch.setattr(runtime, "import_checkpoint", late)

    with declared(tmp_path / "new", from_savepoint=stopped.storage.url).start(mode="inline") as running:
        assert running.store.latest().checkpoint_id == first[0].checkpoint_id
        check_whole(running.wait())
    assert sorted(Shop.sold) == list(range(ROWS))


def test_a_store_that_has_begun_elsewhere_is_refused_and_stays_as_it_was(tmp_path, stopped):
    commit(arrowstate.open_store(tmp_path / "filled", create=True), {"totals": [totals_from()]})
    declared(tmp_path / "begun", from_savepoint=tmp_path / "old@early").run(mode="inline")

    for store, begun in (("filled", "none of another"), ("begun", f"{tmp_path}/old@early")):
        number = CommitLog(arrowstate.open_store(tmp_path / store).storage).latest().document.number
        with pytest.raises(InvalidInputError, match=f"began with {begun}, so it cannot begin with .*/saved; leave"):
            declared(tmp_path / store, from_savepoint=stopped.storage.url).start(mode="inline")
        assert CommitLog(arrowstate.open_store(tmp_path / store).storage).latest().document.number == number


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"uid": "sums"}, InvalidInputError, "keyed state named 'totals', which the job does not declare"),
        ({"uid": "shop2", "max_parallelism": 1, "parallelism": 2}, InvalidInputError, "parallelism must be 1 to 1"),
        ({"from_savepoint": "/nowhere/at/all"}, StoreNotFoundError, "/nowhere/at/all"),
        ({"from_savepoint": "{old}@9000"}, NotFoundError, "9000"),
        ({"from_savepoint": "{old}@late"}, NotFoundError, "'late'"),
        ({"from_savepoint": "{old}/x@1"}, StoreNotFoundError, "x"),
    ],
)
def test_what_a_job_cannot_begin_with_leaves_its_store_empty(tmp_path, stopped, options, error, message):
    place = str(options.pop("from_savepoint", stopped.storage.url)).format(old=tmp_path / "old")

    with pytest.raises(error, match=message):
        declared(tmp_path / "new", from_savepoint=place, **options).start(mode="inline")

    assert CommitLog(arrowstate.open_store(tmp_path / "new").storage).latest() is None


def test_operators_that_the_job_does_not_have_are_let_go_where_that_is_allowed(tmp_path, stopped):
    job = declared(tmp_path / "new", uid="sums", from_savepoint=stopped.storage.url, allow_non_restored_state=True)

    finished = job.run(mode="inline")

    # The new operator saw the rows that were left.
    assert {operator.uid for operator in finished.entry.operators if operator.key} == {"sums"}
    left = set(range(ROWS)) - {n for (n,) in stopped.sql("select n from copy.rows").fetchall()}
    assert finished.sql("select sum(total) from sums.total").fetchall() == [(sum(left),)]
    assert sorted(Shop.sold) == list(range(ROWS))


def test_a_job_begins_with_a_store_that_another_engine_has_written(tmp_path):
    other = arrowstate.open_store(tmp_path / "other", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=16)
    backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")).add_batch([1], [1_000])
    with other.writer() as writer:
        writer.checkpoint({"totals": [backend]}, properties={"offset": 1})

    finished = declared(tmp_path / "new", from_savepoint=tmp_path / "other").run(mode="inline")

    assert totals(finished) == {**TOTALS, 1: TOTALS[1] + 1_000}
    assert {operator.max_parallelism for operator in finished.entry.operators if operator.key} == {16}
