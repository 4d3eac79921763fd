"""Values as JSON, CSV and the page show them: each as what it is; and errors as messages tell them.

JSON has no type of its own for most of what a state holds. A float that is not finite is the text `NaN`, `Infinity` or
`-Infinity`, which Python, JavaScript, Java and DuckDB read as a number; null is a null alone.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def bytes_text(size: int) -> str:
    """Return a size with its unit, as `1.2 MB`."""
    if abs(size) < 1000:
        return "1 byte" if size == 1 else f"{size:,} bytes"
    units = ("kB", "MB", "GB", "TB", "PB", "EB")
    step = min((len(str(abs(size))) - 1) // 3, len(units))
    return f"{size / 1000**step:,.1f} {units[step - 1]}"


def error_text(error: BaseException) -> str:
    """Return the class of an error and what it says; the class alone says something if its own text fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 (`__str__` of a user's class may raise anything)
        return f"{type(error).__name__}: <its text cannot be had, for its __str__ raises>"


def shown(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes as hexadecimal digits, other types as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, decimal.Decimal):
        # DuckDB's sums of integers are of this type.
        return int(value) if value.is_finite() and value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, (float, np.floating)):
        value = float(value)
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)
