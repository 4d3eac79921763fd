"""What completion shows of what users hold: their verbs, and nothing that the project itself calls."""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.schema.descriptors import TimerStateDescriptor

KEY = pa.schema([("user", pa.string())])
COMMON = {"current_namespace", "descriptor", "memory_bytes"}
ONE_ROW = COMMON | {"clear", "clear_batch", "get_batch", "read_keys"}
MERGING = {"merge_namespaces", "merge_namespaces_batch"}
DESCRIPTORS = {
    "value": arrowstate.ValueStateDescriptor("s", pa.int64()),
    "reducing": arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum"),
    "aggregating": arrowstate.AggregatingStateDescriptor("s", pa.int64(), aggregate="mean"),
    "list": arrowstate.ListStateDescriptor("s", pa.int64()),
    "map": arrowstate.MapStateDescriptor("s", pa.int64(), pa.int64()),
    "timer": TimerStateDescriptor("s", "event_time"),
}
STATES = {
    "value": ONE_ROW | {"update", "update_batch", "value"},
    "reducing": ONE_ROW | MERGING | {"add", "add_batch", "get"},
    "aggregating": ONE_ROW | MERGING | {"add", "add_batch", "get"},
    "list": COMMON
    | MERGING
    | {"add", "add_all", "add_all_batch", "add_batch", "clear", "clear_batch", "get", "get_batch"}
    | {"update", "update_batch"},
    "map": COMMON
    | {"clear", "clear_batch", "contains", "contains_batch", "entries_batch", "get", "get_batch", "is_empty", "items"}
    | {"keys", "put", "put_all", "put_batch", "remove", "remove_batch", "values"},
    "timer": COMMON | {"contains_batch", "delete_batch", "next_timestamp", "pop_due", "register_batch"},
}
PER_RECORD = {
    "value": {"clear", "current_namespace", "update", "value"},
    "reducing": {"add", "clear", "current_namespace", "get", "merge_namespaces"},
    "aggregating": {"add", "clear", "current_namespace", "get", "merge_namespaces"},
    "list": {"add", "add_all", "clear", "current_namespace", "get", "merge_namespaces", "update"},
    "map": {"clear", "contains", "current_namespace", "get", "is_empty", "items", "keys", "put", "put_all", "remove"}
    | {"values"},
}
RUNNER = {
    *("advance_processing_time", "advance_watermark", "close", "next_processing_time", "process", "side_output"),
    "snapshot_state",
}
TIMERS = {
    "delete_event_time_timer",
    "delete_processing_time_timer",
    "register_event_time_timer",
    "register_processing_time_timer",
}


def shown(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def backend_of():
    return arrowstate.KeyedStateBackend(key=KEY, max_parallelism=16)


@pytest.mark.parametrize("kind", STATES)
def test_a_state_shows_the_verbs_of_users(kind):
    assert shown(backend_of().state(DESCRIPTORS[kind])) == STATES[kind]


def test_a_backend_shows_the_verbs_of_users():
    assert shown(backend_of()) == {
        *("advance_watermark", "apply_to_all_keys", "clear_key", "current_key", "current_timestamp", "freeze"),
        *("group_keys", "key", "key_group_sizes", "key_groups", "keys", "keys_and_namespaces", "largest_keys"),
        *("max_parallelism", "memory_bytes", "state", "state_names", "state_sizes", "timers", "transaction"),
        "watermark",
    }
    assert shown(arrowstate.OperatorStateBackend()) == {"freeze", "state", "state_names"}


@pytest.mark.parametrize("kind", PER_RECORD)
def test_what_a_process_function_holds_shows_the_verbs_of_users(kind):
    class Function(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.seen = shown(context), shown(context.timers), shown(context.state(DESCRIPTORS[kind]))

        def on_timer(self, timestamp, context, out):
            pass

    function = Function()

    with arrowstate.KeyedProcessRunner(backend_of(), function) as runner:
        assert shown(runner) == RUNNER

    context, timers, state = function.seen
    assert context == {
        *(
            "broadcast",
            "clock",
            "current_key",
            "is_restored",
            "operator_state",
            "output",
            "state",
            "timers",
            "timestamp",
            "watermark",
        )
    }
    assert timers == TIMERS
    assert state == PER_RECORD[kind]


def test_what_a_batch_function_holds_shows_the_verbs_of_users():
    class Function(arrowstate.BatchFunction):
        def open(self, context):
            self.seen = shown(context)

    function = Function()

    with arrowstate.BatchRunner(backend_of(), function) as runner:
        assert shown(runner) == RUNNER

    assert function.seen == {
        *("backend", "broadcast", "clock", "group_keys", "key", "key_columns", "processing_time", "state", "timers"),
        *("is_restored", "operator_state", "output", "timers_name", "watermark"),
    }


def test_what_is_not_shown_is_still_there():
    state = backend_of().state(DESCRIPTORS["value"])

    assert "freeze" not in dir(state)
    assert state.freeze().live_rows == 0
    assert "__repr__" in dir(state)
