"""When checkpoints begin and how they end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowstate.checkpoints.coordination import CheckpointOptions, Coordination, Status
from arrowstate.checkpoints.protocol import (
    Abort,
    Acknowledge,
    Border,
    Cancel,
    Commit,
    CommitLost,
    CommitRefused,
    CommitUnknown,
    CommitWon,
    Complete,
    Decline,
    Discard,
    Refuse,
    Start,
    Stop,
    Tick,
    Trigger,
)
from arrowstate.errors import InvalidInputError


def coordination(*subtasks: str, newest_id: int = 0, **options) -> Coordination:
    return Coordination(subtasks or ("a", "b"), CheckpointOptions(**options), newest_id=newest_id)


def acknowledged(subject: Coordination, id: int, now_ms: int = 1, subtasks=("a", "b")):
    """Acknowledge by all subtasks; return the last actions."""
    actions = []
    for subtask in subtasks:
        actions = subject.handle(Acknowledge(now_ms, id, subtask, f"{subtask}{id}"))
    return actions


def test_a_checkpoint_is_complete_when_all_have_acknowledged_and_the_commit_has_won():
    subject = coordination(newest_id=41)

    assert subject.handle(Trigger(0)) == [Start(42, "checkpoint")]
    assert subject.handle(Acknowledge(3, 42, "b", "files b", metrics=7)) == []
    assert subject.handle(Acknowledge(4, 42, "a", "files a")) == [Commit(42, "checkpoint", ("files a", "files b"))]
    assert subject.handle(CommitWon(6, 42)) == [Complete(42, "checkpoint")]

    (record,) = subject.records
    assert (record.status, record.triggered_at_ms, record.ended_at_ms, record.reason) == (Status.COMPLETED, 0, 6, None)
    assert (record.acknowledged["b"].acknowledged_at_ms, record.acknowledged["b"].metrics) == (3, 7)


def test_an_acknowledgement_that_comes_twice_counts_once_and_other_files_are_deleted():
    subject = coordination()
    subject.handle(Trigger(0))
    subject.handle(Acknowledge(1, 1, "a", "first"))

    assert subject.handle(Acknowledge(2, 1, "a", "first")) == []
    assert subject.handle(Acknowledge(2, 1, "a", "second")) == [Discard(1, "a", "second")]
    assert subject.handle(Acknowledge(2, 1, "nobody", "x")) == [Discard(1, "nobody", "x")]
    assert subject.handle(Acknowledge(3, 1, "b", "files")) == [Commit(1, "checkpoint", ("first", "files"))]


def test_a_late_acknowledgement_discards_its_data():
    subject = coordination(tolerated_failures=1)
    subject.handle(Trigger(0))
    subject.handle(Decline(1, 1, "b", "no disk"))

    assert subject.handle(Acknowledge(2, 1, "a", "late")) == [Discard(1, "a", "late")]
    assert subject.handle(Acknowledge(2, 77, "a", "unheard of")) == [Discard(77, "a", "unheard of")]
    assert subject.handle(Decline(3, 1, "a", "me too")) == []


def test_a_declined_checkpoint_deletes_what_was_written_and_fails_the_job_where_none_is_tolerated():
    subject = coordination()
    subject.handle(Trigger(0))
    subject.handle(Acknowledge(1, 1, "a", "files"))

    actions = subject.handle(Decline(2, 1, "b", "no disk"))

    assert actions[:2] == [Abort(1, "b declined: no disk"), Discard(1, "a", "files")]
    assert isinstance(actions[2], Stop)
    assert isinstance(subject.handle(Trigger(3))[0], Refuse)
    assert subject.next_tick_ms() is None


def test_failures_in_a_row_are_tolerated_up_to_the_limit_and_a_success_starts_the_count_anew():
    subject = coordination(tolerated_failures=1)

    for id in (1, 3):
        subject.handle(Trigger(0))
        assert not any(isinstance(action, Stop) for action in subject.handle(Decline(0, id, "a", "no")))
        subject.handle(Trigger(0))
        acknowledged(subject, id + 1)
        subject.handle(CommitWon(0, id + 1))
    subject.handle(Trigger(0))
    subject.handle(Decline(0, 5, "a", "no"))
    subject.handle(Trigger(0))

    assert isinstance(subject.handle(Decline(0, 6, "a", "no"))[-1], Stop)


def test_a_checkpoint_expires_after_its_timeout_and_not_before():
    subject = coordination(timeout_ms=100, tolerated_failures=5)
    subject.handle(Trigger(1000))
    subject.handle(Acknowledge(1001, 1, "a", "files"))

    assert subject.next_tick_ms() == 1100
    assert subject.handle(Tick(1099)) == []
    assert subject.handle(Tick(1100)) == [Abort(1, "not done after 100 ms"), Discard(1, "a", "files")]
    assert subject.records[0].status is Status.EXPIRED


def test_a_checkpoint_that_is_being_committed_cannot_expire_or_be_cancelled():
    subject = coordination(timeout_ms=100)
    subject.handle(Trigger(0))
    acknowledged(subject, 1)

    assert subject.handle(Tick(10_000)) == []
    assert subject.handle(Cancel(10_000, "stop it")) == []
    assert subject.handle(CommitWon(10_001, 1)) == [Complete(1, "checkpoint")]


def test_periodic_checkpoints_keep_interval_and_pause_and_the_first_is_due_at_once():
    subject = coordination("a", interval_ms=100, min_pause_ms=70)

    assert subject.handle(Tick(5)) == []
    assert subject.handle(Border(5)) == [Start(1, "checkpoint")]
    assert subject.handle(Border(200)) == []
    acknowledged(subject, 1, 210, ("a",))
    subject.handle(CommitWon(220, 1))

    assert subject.handle(Border(289)) == []
    assert subject.handle(Border(290)) == [Start(2, "checkpoint")]
    acknowledged(subject, 2, 291, ("a",))
    subject.handle(CommitWon(292, 2))
    assert subject.handle(Border(389)) == []
    assert subject.handle(Border(390)) == [Start(3, "checkpoint")]


def test_after_a_clock_was_set_back_checkpoints_begin_and_expire_as_before():
    hour = 3_600_000
    subject = coordination("a", interval_ms=100, timeout_ms=50, tolerated_failures=5)
    subject.handle(Border(hour))
    acknowledged(subject, 1, hour + 10, ("a",))
    subject.handle(CommitWon(hour + 20, 1))

    assert subject.handle(Border(0)) == []
    assert subject.handle(Border(99)) == []
    assert subject.handle(Border(100)) == [Start(2, "checkpoint")]
    assert subject.handle(Tick(40)) == []
    assert subject.next_tick_ms() == 90
    assert subject.handle(Tick(90)) == [Abort(2, "not done after 50 ms")]


def test_no_more_checkpoints_at_once_than_the_options_say_but_savepoints_go_beside_them():
    subject = coordination("a", max_concurrent=2)

    assert subject.handle(Trigger(0)) == [Start(1, "checkpoint")]
    assert subject.handle(Trigger(0)) == [Start(2, "checkpoint")]
    assert isinstance(subject.handle(Trigger(0))[0], Refuse)
    assert subject.handle(Trigger(0, "savepoint")) == [Start(3, "savepoint")]
    assert subject.in_progress == (1, 2, 3)


def test_a_complete_checkpoint_subsumes_older_ones_and_neither_is_a_savepoint():
    subject = coordination("a", max_concurrent=3)
    for kind in ("checkpoint", "savepoint", "checkpoint", "checkpoint"):
        subject.handle(Trigger(0, kind))

    assert acknowledged(subject, 3, subtasks=("a",)) == [Commit(3, "checkpoint", ("a3",))]
    assert subject.handle(CommitWon(2, 3)) == [
        Complete(3, "checkpoint"),
        Abort(1, "checkpoint 3 is newer and complete"),
    ]
    acknowledged(subject, 2, subtasks=("a",))
    assert subject.handle(CommitWon(3, 2)) == [Complete(2, "savepoint")]
    assert subject.in_progress == (4,)
    assert subject.handle(Acknowledge(4, 1, "a", "late")) == [Discard(1, "a", "late")]


def test_commits_happen_one_at_a_time_and_an_older_one_that_waited_is_subsumed():
    subject = coordination("a", max_concurrent=2, tolerated_failures=9)
    subject.handle(Trigger(0))
    subject.handle(Trigger(0))

    assert acknowledged(subject, 2, subtasks=("a",)) == [Commit(2, "checkpoint", ("a2",))]
    assert acknowledged(subject, 1, subtasks=("a",)) == []
    assert subject.handle(CommitWon(2, 2)) == [
        Complete(2, "checkpoint"),
        Abort(1, "checkpoint 2 is newer and complete"),
        Discard(1, "a", "a1"),
    ]


def test_after_a_commit_that_failed_the_next_one_in_line_is_tried():
    subject = coordination("a", max_concurrent=2, tolerated_failures=9)
    subject.handle(Trigger(0))
    subject.handle(Trigger(0))
    acknowledged(subject, 2, subtasks=("a",))
    acknowledged(subject, 1, subtasks=("a",))

    assert subject.handle(CommitRefused(2, 2, "disk full")) == [
        Abort(2, "disk full"),
        Discard(2, "a", "a2"),
        Commit(1, "checkpoint", ("a1",)),
    ]


def test_a_lost_commit_stops_everything_and_deletes_what_nobody_names():
    subject = coordination("a", max_concurrent=2)
    subject.handle(Trigger(0))
    subject.handle(Trigger(0))
    acknowledged(subject, 1, subtasks=("a",))

    actions = subject.handle(CommitLost(2, 1, "fenced"))

    assert actions[:2] == [Abort(1, "fenced"), Discard(1, "a", "a1")]
    assert Abort(2, actions[-1].reason) in actions
    assert isinstance(actions[-1], Stop)
    assert subject.in_progress == ()


def test_after_an_unknown_commit_its_files_stay():
    subject = coordination("a", max_concurrent=2)
    subject.handle(Trigger(0))
    acknowledged(subject, 1, subtasks=("a",))

    assert subject.handle(CommitUnknown(2, 1, "no answer")) == [Abort(1, "no answer"), Stop("no answer")]
    assert subject.records[0].status is Status.UNKNOWN


def test_cancelling_ends_one_checkpoint_or_all_and_is_no_failure():
    subject = coordination("a", max_concurrent=3)
    for _ in range(3):
        subject.handle(Trigger(0))

    assert subject.handle(Cancel(1, "changed my mind", 2)) == [Abort(2, "changed my mind")]
    assert subject.handle(Cancel(1, "going down")) == [Abort(1, "going down"), Abort(3, "going down")]
    assert subject.stopped is None


@pytest.mark.parametrize(
    "options",
    [{"interval_ms": 0}, {"timeout_ms": 0}, {"min_pause_ms": -1}, {"max_concurrent": 0}, {"tolerated_failures": -1},
     {"writer_threads": 0},
     {"max_concurrent": True}, {"timeout_ms": 1.5}],
)  # fmt: skip
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        CheckpointOptions(**options)


def test_subtasks_must_be_named_once():
    with pytest.raises(InvalidInputError):
        Coordination([], CheckpointOptions())
    with pytest.raises(InvalidInputError):
        Coordination(["a", "a"], CheckpointOptions())


def test_records_of_the_past_hold_no_handles():
    subject = coordination("a")
    subject.handle(Trigger(0))
    subject.handle(Acknowledge(3, 1, "a", "files", "figures"))

    subject.handle(CommitWon(4, 1))

    told = subject.records[0].acknowledged["a"]
    assert (told.handle, told.metrics, told.acknowledged_at_ms) == (None, "figures", 3)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["tick", "border", "trigger", "savepoint", "acknowledge", "decline", "cancel", "won", "refused"]
        ),
        st.integers(0, 30),
        st.integers(1, 12),
        st.sampled_from("ab"),
    ),
    max_size=60,
)


@given(steps=STEPS, concurrent=st.integers(1, 3), tolerated=st.integers(0, 3))
def test_whatever_happens_each_handle_is_committed_or_discarded_once_and_ids_rise(steps, concurrent, tolerated):
    subject = coordination(
        interval_ms=40, timeout_ms=100, min_pause_ms=10, max_concurrent=concurrent, tolerated_failures=tolerated
    )
    now_ms, serial = 0, 0
    given_handles, committed, discarded, started, completed = [], [], [], [], []
    committing = None

    def done(actions):
        nonlocal committing
        for action in actions:
            match action:
                case Start(id):
                    started.append(id)
                case Commit(id, _, handles):
                    assert committing is None, "two commits at once"
                    committing = (id, handles)
                case Discard(_, _, handle):
                    discarded.append(handle)
                case Complete(id, "checkpoint"):
                    completed.append(id)

    for what, passed, id, subtask in steps:
        now_ms += passed
        match what:
            case "tick":
                done(subject.handle(Tick(now_ms)))
            case "border":
                done(subject.handle(Border(now_ms)))
            case "trigger" | "savepoint":
                done(subject.handle(Trigger(now_ms, "checkpoint" if what == "trigger" else "savepoint")))
            case "acknowledge":
                serial += 1
                given_handles.append(serial)
                done(subject.handle(Acknowledge(now_ms, id, subtask, serial)))
            case "decline":
                done(subject.handle(Decline(now_ms, id, subtask, "no")))
            case "cancel":
                done(subject.handle(Cancel(now_ms, "stop", id)))
            case _ if committing is not None:
                (ended, handles), committing = committing, None
                if what == "won":
                    committed.extend(handles)
                    done(subject.handle(CommitWon(now_ms, ended)))
                else:
                    done(subject.handle(CommitRefused(now_ms, ended, "full")))
        pending = [record for record in subject.records if record.checkpoint_id in subject.in_progress]
        assert sum(record.kind == "checkpoint" for record in pending) <= concurrent
    held = [part.handle for id in subject.in_progress for part in _record(subject, id).acknowledged.values()]

    assert sorted([*committed, *discarded, *held]) == given_handles
    assert started == sorted(set(started))
    assert completed == sorted(set(completed))


def _record(subject: Coordination, id: int):
    return next(record for record in subject.records if record.checkpoint_id == id)
