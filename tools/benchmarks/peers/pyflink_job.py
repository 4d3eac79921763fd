"""PyFlink beside the runtime, in its thread mode, run by a Python that has it: rows made in the JVM by its own sources.

    python pyflink_job.py WORK KEYS ROWS PARALLELISM [CHECKPOINT_FOLDER]

WORK is `record`, a running sum per key by a process function with value state; `idiom`, the sums by SQL; or `window`,
counts of tumbling windows of 10 s by SQL. It is run with a quarter of the rows and with all of them, and the difference
is what is timed: starting takes as long for both.
"""

# mypy: ignore-errors
# Nothing but the Python that runs it has PyFlink.

from __future__ import annotations

import os
import sys
import sysconfig

# The interpreter in the JVM is not that of the environment, so it is told where its packages are; they are looked for
# when it starts, so what runs here begins anew with it.
if "PYTHONPATH" not in os.environ:
    os.environ["PYTHONPATH"] = sysconfig.get_paths()["purelib"]
    os.execv(sys.executable, [sys.executable, *sys.argv])

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment
from timing import Watch, ready

ROWS_PER_MS = 100


class Totals(KeyedProcessFunction):
    """The sum of each key."""

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value, ctx):  # noqa: ARG002
        self.total.update((self.total.value() or 0) + value % 100)
        return ()


def environment(parallelism, folder):
    """Return an environment, which starts a cluster within its process."""
    options = Configuration()
    options.set_string("python.execution-mode", "thread")
    options.set_string("python.executable", sys.executable)
    options.set_string("rest.port", "0")
    options.set_string("table.exec.mini-batch.enabled", "true")
    options.set_string("table.exec.mini-batch.allow-latency", "100 ms")
    options.set_string("table.exec.mini-batch.size", "10000")
    if folder is not None:
        options.set_string("execution.checkpointing.interval", "1s")
        options.set_string("execution.checkpointing.dir", f"file://{folder}")
    made = StreamExecutionEnvironment.get_execution_environment(options)
    made.set_parallelism(parallelism)
    return made


def run(work, keys, rows, parallelism, folder):
    """Run to the end."""
    env = environment(parallelism, folder)
    if work == "record":
        numbers = env.from_source(NumberSequenceSource(1, rows), WatermarkStrategy.no_watermarks(), "rows")
        # A prime factor scatters the keys.
        keyed = numbers.key_by(lambda number: number * 2_654_435_761 % keys, key_type=Types.LONG())
        keyed.process(Totals(), output_type=Types.LONG()).print()
        env.execute("sums")
        return
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        f"""create table given (`key` bigint, n bigint, `at` as to_timestamp_ltz(n / {ROWS_PER_MS}, 3),
                watermark for `at` as `at` - interval '1' second) with ('connector' = 'datagen',
                'rows-per-second' = '1000000000', 'number-of-rows' = '{rows}', 'fields.key.min' = '0',
                'fields.key.max' = '{keys - 1}', 'fields.n.kind' = 'sequence', 'fields.n.start' = '1',
                'fields.n.end' = '{rows}')"""
    )
    tables.execute_sql("create table nowhere (`key` bigint, n bigint) with ('connector' = 'blackhole')")
    made = "select `key`, sum(mod(n, 100)) from given group by `key`"
    if work == "window":
        made = """select `key`, count(*) from table(tumble(table given, descriptor(`at`), interval '10' second))
                  group by `key`, window_start, window_end"""
    tables.execute_sql(f"insert into nowhere {made}").wait()


def main(work, keys, rows, parallelism, folder=None):
    """Run with a quarter of the rows and with all of them."""
    watch = Watch()
    # The first run of all starts the JVM's classes.
    run(work, keys, 1000, parallelism, None)
    ready()
    for count, sign in ((rows // 4, -1), (rows, 1)):
        watch.start()
        run(work, keys, count, parallelism, folder)
        watch.stop(sign)
    watch.done(rows - rows // 4)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
