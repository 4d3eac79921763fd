"""Storages in which something happens at chosen calls: what others do meanwhile, an error, the death of the process."""

import itertools
from contextlib import contextmanager

from arrowstate.testing.faults import Call, Fault, FaultyStorage


class Crash(Exception):
    """What a process meets that dies."""


class Hooked:
    """A storage that lets others act before or after chosen calls, once each, or dies at some call."""

    def __init__(self, storage):
        self.storage = storage
        self.before = []
        self.after = []
        self.calls = []
        self.crash_at = None
        self.at = {}

    def __getattr__(self, name):
        value = getattr(self.storage, name)
        if not callable(value):
            return value

        def call(*arguments, **options):
            if self.crash_at is not None and len(self.calls) >= self.crash_at:
                raise Crash
            path = arguments[0] if arguments else ""
            self.calls.append((name, path))
            self.at.pop(len(self.calls), lambda: None)()
            self._run(self.before, name, path)
            result = value(*arguments, **options)
            self._run(self.after, name, path)
            return result

        return call

    @staticmethod
    def _run(hooks, name, path):
        for hook in [hook for hook in hooks if hook[0] == name and path.startswith(hook[1])]:
            if hook in hooks:
                hooks.remove(hook)
                if isinstance(hook[2], BaseException):
                    raise hook[2]
                hook[2]()

    def act_at(self, number, act):
        """Act before the call of a number, the first of which is 1."""
        self.at[number] = act

    def act_before(self, verb, prefix, act):
        """Act before the next call of a verb for a path that begins so; an error is raised instead."""
        self.before.append((verb, prefix, act))
        return self

    def act_after(self, verb, prefix, act):
        """Act after the next such call; an error is raised instead of its answer."""
        self.after.append((verb, prefix, act))
        return self


class Failing:
    """A storage that fails at the n-th file it is asked to make, before or after making it."""

    def __init__(self, storage, number, error, after=False):
        self._storage = storage
        self._number = number
        self._error = error
        self._after = after

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def _count(self):
        self._number -= 1
        if self._number == 0:
            raise self._error

    @contextmanager
    def write_file(self, path):
        with self._storage.write_file(path) as file:
            yield file
            self._count()

    def put_if_absent(self, path, data, commit_id):
        if not self._after:
            self._count()
        outcome = self._storage.put_if_absent(path, data, commit_id)
        if self._after:
            self._count()
        return outcome

    def put_hint(self, path, data):
        if not self._after:
            self._storage.put_hint(path, data)
            return
        self._count()


def refusing(storage, *verbs, prefix="", fault=Fault.FAIL_BEFORE):
    """A storage of which some calls fail, those for a path that begins so."""

    def choose(call: Call):
        return fault if call.verb in verbs and call.path.startswith(prefix) else None

    return FaultyStorage(storage, choose)


def failing_once(storage, number, *verbs, fault=Fault.FAIL_BEFORE):
    """A storage of which the call of a number fails, counted over some verbs."""
    numbers = itertools.count(1)

    def choose(call: Call):
        return fault if call.verb in verbs and next(numbers) == number else None

    return FaultyStorage(storage, choose)
