"""A query of Nexmark by Flink's SQL, run by a Python that has PyFlink: Python declares it, all else is in the JVM.

    python nexmark_job.py SCRIPT 0 EVENTS

SCRIPT is a JSON file with the settings, the folder of the result, and the statements of three runs. The first writes
the result of all events. Then the same query runs over a quarter of the events twice, for after the first time what is
hot is compiled, and over all of them. The difference of the last two is what is timed: starting takes as long for both.
"""

# mypy: ignore-errors
# Nothing but the Python that runs it has PyFlink.

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment
from timing import Watch, ready


def run(settings, statements):
    """Run statements in a cluster within the process; the last one to its end."""
    options = Configuration()
    for name, value in settings.items():
        options.set_string(name, value)
    made = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(options).build()
    tables = TableEnvironment.create(made)
    for statement in statements[:-1]:
        tables.execute_sql(statement)
    tables.execute_sql(statements[-1]).wait()


def main(script, rows):
    """Write the result, and then take the time of a quarter of the events and of all."""
    told = json.loads(Path(script).read_text())
    shutil.rmtree(told["result"], ignore_errors=True)
    run(told["settings"], told["written"])
    run(told["settings"], told["quarter"])
    watch = Watch()
    ready()
    for name, sign in (("quarter", -1), ("all", 1)):
        watch.start()
        run(told["settings"], told[name])
        watch.stop(sign)
    watch.done(rows - rows // 4)


main(sys.argv[1], int(sys.argv[3]))
