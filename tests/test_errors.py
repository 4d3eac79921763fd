"""The error tree: what every error promises to a caller that catches, prints or pickles it."""

import copy
import inspect
import pickle

import pytest

from arrowstate import errors

EXAMPLES = [
    errors.StoreNotFoundError("/data/clicks"),
    errors.StoreNotFoundError("/data/clicks", "savepoint of Flink", "give its folder"),
    errors.CheckpointNotFoundError(7, [41, 42]),
    errors.CheckpointNotFoundError(None, []),
    errors.CheckpointsCollectedError(7, [41, 42]),
    errors.OperatorNotFoundError("conter", ["counter", "routes"], 41),
    errors.StateNotFoundError("cuonts", ["clicks", "counts"], "counter", 41),
    errors.StateNotFoundError("cuonts", []),
    errors.MissingFileError("/data/clicks", "log/00000000000000000007.json"),
    errors.InvalidInputError("max_parallelism must be at least 1, got 0"),
    errors.KeyTypeError("int64", "int32"),
    errors.NullKeyError("user", 17),
    errors.KeyOutOfRangeError(77, 0, 42),
    errors.ValueTypeError("clicks", "int64", "string"),
    errors.ValueOverflowError("clicks", "sum", "int32"),
    errors.ProcessElementError(17, "ZeroDivisionError: division by zero"),
    errors.SourceError("part-7.csv", {"row": 7}, "changed while it was read"),
    errors.SourceError("part-7.csv", None, "no number", row=3),
    errors.UnavailableError("Kafka at broker:9092", "reading topic 'payments'", "timed out after 5 s"),
    errors.ConcurrentUseError("a verb of another thread is running"),
    errors.UserFunctionError("totals", "KeyError: 'x'", "row 7 with key 'ann'", 'File "job.py", line 12'),
    errors.JobFailedError("operator 'totals' failed at row 7: ZeroDivisionError: division by zero"),
    errors.UnsupportedStorageError("s3://bucket/x", "s3", ["a local path"], "not safe"),
    errors.IncompatibleStateError("clicks", "sum of int64", "sum of int32", "declare int64"),
    errors.FencedError(3, 4),
    errors.EditConflictError(3, 4),
    errors.QueryConflictError("counter", "b2", 0, "a1", 6),
    errors.QueryConflictError("counter", "a1", 9, "a1", 6),
    errors.CommitUnknownError("log/7.json", "9b2e", "connection lost"),
    errors.StorageFullError("data/1.arrow", "No space left on device"),
    errors.FileTooLargeError("data/1.arrow", 6_000_000, 5_242_880),
    errors.StorageError("data/1.arrow", "Permission denied"),
    errors.CollectedError(["data/1.arrow", "data/2.arrow"]),
    errors.CollectedError(["data/1.arrow"], 41),
    errors.CollectedError(["data/1.arrow"], 41, acknowledged=False),
    errors.NameTakenError("data/1.arrow"),
    errors.CheckpointAbortedError(41, "expired", "not done after 600000 ms"),
    errors.CheckpointsStoppedError("3 checkpoints in a row failed, the last one: no room"),
    errors.CheckpointCancelledError(42),
    errors.CheckpointCancelledError(),
    errors.CompactionConflictError("/data/clicks", 5),
    errors.CorruptDataError("log/7.json", "truncated"),
    errors.FormatVersionError("arrowstate.json", 7, 1),
    errors.UnknownFeatureError("log/7.json", "encrypted-runs", 2, 2),
    errors.MissingDependencyError("the Spark sink", "pyspark", "spark"),
    errors.MissingDependencyError("streaming reads", "pyspark", "spark", "PySpark 4.0.5", "4.2"),
]


def error_classes() -> list[type[Exception]]:
    return [found for name in errors.__all__ if issubclass(found := getattr(errors, name), Exception)]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_error_survives_pickling_and_copying_with_every_value(error, again):
    restored = again(error)

    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert vars(restored) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_notes_in_another_process(error):
    noted = copy.copy(error)
    noted.add_note("while flight 17 was counted")

    restored = pickle.loads(pickle.dumps(noted))

    assert restored.__notes__ == ["while flight 17 was counted"]
    assert str(restored) == str(error)


@pytest.mark.parametrize("error", filter(vars, EXAMPLES), ids=lambda error: type(error).__name__)
def test_an_error_takes_its_values_by_name_as_well_and_is_the_same(error):
    values = {name: getattr(error, name) for name in inspect.signature(type(error)).parameters}

    again = type(error)(**values)

    assert (again.args, vars(again), str(again), repr(again)) == (error.args, vars(error), str(error), repr(error))


def test_errors_are_told_apart_by_what_they_are_and_not_by_their_values():
    one, other = errors.FencedError(3, 4), errors.FencedError(3, 4)

    assert len({one, other}) == 2


def test_every_error_that_a_caller_can_meet_has_an_example_here():
    groups = {errors.ArrowStateError, errors.NotFoundError}

    shown = {type(example) for example in EXAMPLES}

    assert shown == set(error_classes()) - groups


def test_every_error_is_of_the_one_tree_and_of_a_builtin_that_fits():
    builtin = (LookupError, ValueError, TypeError, RuntimeError, OSError, ImportError)

    outside = [found for found in error_classes() if not issubclass(found, errors.ArrowStateError)]
    without = [found for found in error_classes() if not issubclass(found, builtin)]

    assert outside == []
    assert without == [errors.ArrowStateError]


def test_a_query_conflict_is_caught_as_a_fenced_writer_and_has_its_attributes():
    error = errors.QueryConflictError("counter", "b2", 0, "a1", 6)

    assert isinstance(error, errors.FencedError)
    assert (error.writer_epoch, error.current_epoch) == (None, None)


def test_a_missing_dependency_names_the_package_as_import_errors_do():
    error = errors.MissingDependencyError("the Spark sink", "pyspark", "spark")

    assert error.name == "pyspark"
    assert "pip install 'arrowstate[spark]'" in str(error)


def test_a_message_lists_no_more_names_than_a_person_reads():
    error = errors.CheckpointNotFoundError(5000, range(1000))

    assert str(error).endswith("998, 999 and 980 earlier ones")
    assert len(error.available) == 1000
