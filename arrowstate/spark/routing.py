"""Which task of a micro-batch gets a row: the rule of the key groups, as an expression that the JVM evaluates.

Spark's `xxhash64` is the key hash of the store, so the row reaches the subtask that owns its key group without
a Python worker having seen it. The expression is `key_groups` of `arrowstate_formats`, and then the key group
times the parallelism over the max parallelism, which is the subtask whose range holds it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["quoted", "subtask_expression"]


def quoted(name: str) -> str:
    """Return a column name as Spark SQL reads it, whatever characters it has.

    Examples
    --------
    >>> quoted("delay in `min`")
    '`delay in ``min```'
    """
    return "`" + name.replace("`", "``") + "`"


def subtask_expression(key: Sequence[str], parallelism: int, max_parallelism: int) -> str:
    """Return the SQL expression for the subtask of a row: an int from 0 to `parallelism - 1`, never null.

    Parameters
    ----------
    key
        The key columns, in the order of the key schema. A null leaves the hash unchanged.
    parallelism, max_parallelism
        1 <= parallelism <= max_parallelism <= 32768.

    Examples
    --------
    >>> subtask_expression(["id"], 2, 128)
    'CAST((shiftright((shiftright(xxhash64(`id`), 32) + 2147483648L) * 128L, 32) * 2L) DIV 128L AS INT)'
    """
    columns = ", ".join(map(quoted, key))
    # At most 2^32 * 2^15 and 2^15 * 2^15: no product overflows, so the expression is safe under ANSI mode.
    group = f"shiftright((shiftright(xxhash64({columns}), 32) + 2147483648L) * {max_parallelism}L, 32)"
    return f"CAST(({group} * {parallelism}L) DIV {max_parallelism}L AS INT)"
