"""The job that a Python file declares."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arrowstate.errors import InvalidInputError

if TYPE_CHECKING:
    from arrowstate.runtime.job import Job

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load_job(path: str, name: str | None) -> Job:
    """Run a file and return its job: the variable or the function of a name, or else the only one.

    A function is one without parameters that says `-> Job`, or that is called `job`. The file is not run as a script:
    its `__name__` is that of the file, and the folder that it is in comes first in `sys.path`.
    """
    module = _run(Path(path).absolute(), path)
    if name is not None:
        return _named(module, path, name)
    found = {key: value for key, value in vars(module).items() if _is_job(value)}
    jobs = {id(value): key for key, value in reversed(found.items())}
    functions = [key for key, value in vars(module).items() if _returns_job(value, key, module)]
    names = [*jobs.values()] or functions
    if not names:
        raise InvalidInputError(
            f"{path} has no job: give a variable one, as in 'job = Job(...)', or write a function that returns it, "
            "'def job() -> Job'"
        )
    if len(names) > 1:
        raise InvalidInputError(f"{path} has several jobs, {', '.join(sorted(names))}; choose one with --job")
    return _named(module, path, names[0])


def _run(path: Path, given: str) -> ModuleType:
    if not path.is_file():
        raise InvalidInputError(f"there is no file {given}")
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        # It must not take the place of a module that something else imports.
        name = f"arrowstate_job_of_{''.join(letter if letter.isalnum() else '_' for letter in name)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{given} is no file of Python; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        shown = "".join(traceback.format_exception(type(error), error, _from_file(error, path)))
        raise InvalidInputError(f"{given} cannot be loaded:\n{shown.rstrip()}") from error
    _pickle_by_value(module)
    return module


def _from_file(error: BaseException, path: Path) -> Any:
    """Return the part of a traceback that begins in the file; all of it where the file was not begun."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(path):
        frame = frame.tb_next
    return frame


def _pickle_by_value(module: ModuleType) -> None:
    """Let slots in processes of their own have the functions of the file, which they cannot import."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def _is_job(value: Any) -> bool:
    from arrowstate.runtime.job import Job

    return isinstance(value, Job)


def _returns_job(value: Any, name: str, module: ModuleType) -> bool:
    if not inspect.isfunction(value) or value.__module__ != module.__name__:
        return False
    says = value.__annotations__.get("return")
    text = says if isinstance(says, str) else getattr(says, "__name__", "")
    return text.strip("'\"").rpartition(".")[2] == "Job" or name == "job"


def _named(module: ModuleType, path: str, name: str) -> Job:
    if not hasattr(module, name):
        raise InvalidInputError(f"{path} has no {name!r}; --job is the name of a variable, or of a function")
    value = getattr(module, name)
    if not _is_job(value) and callable(value):
        value = _called(value, path, name)
    if not _is_job(value):
        raise InvalidInputError(f"{name!r} of {path} is no Job, and returns none; it is {type(value).__name__}")
    job: Job = value
    return job


def _called(function: Callable[..., Any], path: str, name: str) -> Any:
    parameters = inspect.signature(function).parameters.values()
    needed = [item.name for item in parameters if item.default is item.empty and item.kind not in _MANY]
    if needed:
        raise InvalidInputError(
            f"{name!r} of {path} is called without arguments; give a default to {', '.join(needed)}"
        )
    try:
        return function()
    except (Exception, SystemExit) as error:
        shown = "".join(traceback.format_exception(type(error), error, _from_file(error, Path(path).absolute())))
        raise InvalidInputError(f"{name!r} of {path} failed:\n{shown.rstrip()}") from error
