"""Whatever is made at its first use, used first by eight threads at once, in fresh processes.

`tools/python tests/support/first_uses.py --rounds 50` tries all of it, `sql verify` the uses that are named. Each round
is a fork of a process that has imported arrowstate and has done nothing: first all threads do the same, then, in
another round, each does something else. It exits with 1 after a round that did not end with 0.
"""

import argparse
import faulthandler
import os
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

import arrowstate
from arrowstate_formats.run_files import RunFormat
from object_servers import S3_OPTIONS

FORMATS: tuple[RunFormat, ...] = ("arrow", "parquet", "lance")
THREADS = 8
ROWS = 1_000
SECONDS_FOR_A_ROUND = 120


class Stores:
    """What the threads read and write: stores on a disk, one in a bucket, and room of its own for each thread."""

    def __init__(self, folder: Path, endpoint: str | None) -> None:
        self.folder = folder
        self.endpoint = endpoint

    def make(self) -> None:
        for run_format in FORMATS:
            fill(arrowstate.open_store(self.folder / run_format, create=True), run_format)
        if self.endpoint is not None:
            fill(self.bucket(create=True), "arrow")

    def local(self, run_format: RunFormat = "arrow") -> arrowstate.StateStore:
        return arrowstate.open_store(self.folder / run_format)

    def bucket(self, *, create: bool = False) -> arrowstate.StateStore:
        given = {**S3_OPTIONS, "endpoint_url": self.endpoint, "cache_dir": str(self.folder / "cache")}
        return arrowstate.open_store("s3://bucket/first", storage_options=given, create=create)


def fill(store: arrowstate.StateStore, run_format: RunFormat) -> None:
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=16)
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    names = backend.state(arrowstate.MapStateDescriptor("names", pa.string(), pa.float64()))
    with store.writer() as writer:
        for number in range(3):
            total.add_batch(range(ROWS), [number + 1] * ROWS)
            names.put_batch(range(ROWS), ["a"] * ROWS, [0.5] * ROWS)
            writer.checkpoint({"op": [backend]}, format=run_format)


def lookup(stores: Stores, _: int) -> None:
    assert stores.local().latest().lookup("op.total", [7])["total"].to_pylist() == [6]


def sql(stores: Stores, _: int) -> None:
    assert stores.local().sql("select count(*), sum(total) from op.total").fetchall() == [(ROWS, 6 * ROWS)]


def parquet(stores: Stores, _: int) -> None:
    assert stores.local("parquet").latest().to_arrow("op.total").num_rows == ROWS


def lance(stores: Stores, _: int) -> None:
    assert stores.local("lance").latest().to_arrow("op.total").num_rows == ROWS


def polars(stores: Stores, _: int) -> None:
    assert stores.local().latest().to_polars("op.total").height == ROWS


def pandas(stores: Stores, _: int) -> None:
    assert len(stores.local().latest()["op.total"].to_pandas()) == ROWS


def verify(stores: Stores, _: int) -> None:
    assert not stores.local().verify(deep=True).problems


def diff(stores: Stores, _: int) -> None:
    assert stores.local().diff(2, 3).to_arrow().num_rows > 0


def write(stores: Stores, number: int) -> None:
    fill(arrowstate.open_store(stores.folder / f"{os.getpid()}-{number}", create=True), "arrow")


def restore(stores: Stores, _: int) -> None:
    backend = stores.local().latest().restore("op")
    state = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    state.add_batch([1, 2], [1, 1])
    assert state.get_batch([1]).to_pylist() == [7]


def edit(stores: Stores, _: int) -> None:
    edited = stores.local().edit()
    edited.execute("update op.total set total = total + 1 where k < 10")
    assert not edited.plan().is_empty


def bucket(stores: Stores, _: int) -> None:
    assert stores.bucket().latest().lookup("op.total", [7])["total"].to_pylist() == [6]


def verify_bucket(stores: Stores, _: int) -> None:
    assert not stores.bucket().verify(deep=True).problems


def job(stores: Stores, number: int) -> None:
    from arrowstate.runtime import Job, OutputTable, TableSource

    rows = pa.table({"k": pa.array([0, 1] * 50, pa.int64())})
    job = Job(stores.folder / f"job-{os.getpid()}-{number}")
    job.source(TableSource(rows), uid="rows").sink(OutputTable("copies"))
    assert job.run(mode="threads").sql("select count(*) from copies.rows").fetchall() == [(100,)]


def bootstrap(stores: Stores, number: int) -> None:
    store = arrowstate.open_store(stores.folder / f"loaded-{os.getpid()}-{number}", create=True)
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    store.bootstrap("op", ["k"], [total], pa.table({"k": range(10), "total": range(10)}))
    assert store.latest().sql("select sum(total) from op.total").fetchall() == [(45,)]


def kernels(_: Stores, number: int) -> None:
    from arrowstate_formats.compiled import KERNELS

    for kernel in KERNELS[number % 2 :] + KERNELS[: number % 2]:
        kernel.compile()


USES: dict[str, Callable[[Stores, int], None]] = {
    use.__name__: use
    for use in (
        lookup,
        sql,
        parquet,
        lance,
        polars,
        pandas,
        verify,
        diff,
        write,
        restore,
        edit,
        job,
        bootstrap,
        kernels,
        bucket,
        verify_bucket,
    )
}


def one_round(stores: Stores, uses: Sequence[str]) -> int:
    """Let each thread do one of the uses first; return how many failed."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(SECONDS_FOR_A_ROUND, exit=True)
    sys.setswitchinterval(1e-6)
    start, failures = threading.Barrier(THREADS), []
    threading.excepthook = lambda args: failures.append("".join(traceback.format_exception(args.exc_value)))

    def do(number: int) -> None:
        start.wait()
        USES[uses[number % len(uses)]](stores, number)

    threads = [threading.Thread(target=do, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stderr.write("\n".join(sorted(set(failures))))
    sys.stderr.flush()
    return len(failures)


def forked(call: Callable[[], object]) -> int:
    """Return how a process ended that did nothing else: 0, 1 after an error, or -11 after SIGSEGV."""
    with warnings.catch_warnings():
        # From Python 3.12 on; what the child does with threads is what is tried.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            code = 1 if call() else 0
        except BaseException:  # noqa: BLE001 (this process ends here)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uses", nargs="*", help=f"of {', '.join(USES)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is tried (default 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first round (default 0)")
    parser.add_argument("--mixed", action="store_true", help="only rounds in which each thread does something else")
    parser.add_argument("--endpoint", help="of a server of S3 with a bucket named bucket; without it none is tried")
    options = parser.parse_args()
    uses = options.uses or [use for use in USES if options.endpoint or "bucket" not in use]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        stores = Stores(Path(folder), options.endpoint)
        # By another process: what is made at its first use must not be there yet in this one.
        bad += forked(stores.make)
        for number in range(options.first, options.first + options.rounds):
            first = number * THREADS % len(uses)
            mixed = [*uses[first:], *uses[:first]]
            for together in [mixed] if options.mixed else [*([use] for use in uses), mixed]:
                code = forked(partial(one_round, stores, together))
                print(f"round {number}, {', '.join(together)}: {code}", flush=True)
                bad += code != 0
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
