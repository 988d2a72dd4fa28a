"""The border for errors: an error that leaves the package carries no private variable, message or chain.

A traceback holds the variables of every frame that an error passed. An error also holds its causes, whose
messages quote the values they failed on. Crash reporters transmit both. A function on private data therefore
raises a new error: of the same kind, with a public message, no frame below the border, no cause and no
context.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from numbers import Number
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from dpfewshot import errors
from dpfewshot.errors import BackendError, BudgetExceeded, DPFewShotError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

_PACKAGE = "dpfewshot"
_RUST = "pyo3_runtime"
_OF_A_REFUSAL = ("asked", "remaining", "remaining_by_scope")
"""Public amounts of an account."""
_END = object()


def redacts_errors(
    kind: type[DPFewShotError] | None, what: str = ""
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function or a generator so that its errors carry nothing private.

    An error of this package keeps its kind and its message, which quotes nothing private. Programs act on
    `KeyboardInterrupt`, `SystemExit`, `MemoryError` and all that is not an `Exception`: these keep their kind
    alone.

    Args:
        kind: the class that replaces any other error. Its message names the type alone, since the original
            message may quote private text. None is for functions that consume the caller's iterator: the
            caller's own error passes with the caller's own frames, without those of this package.
        what: the function's work, for the message.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        if inspect.isgeneratorfunction(function):
            return cast("Callable[Parameters, Result]", _steps(function, kind, what))
        return _call(function, kind, what)

    return decorate


def redacts_errors_of_methods(kind: type[DPFewShotError], what: str) -> Callable[[Class], Class]:
    """Apply `redacts_errors` to every public method and property of a class."""
    redacts = redacts_errors(kind, what)

    def decorate(owner: Class) -> Class:
        for name, member in list(vars(owner).items()):
            if name.startswith("_"):
                continue
            if isinstance(member, FunctionType):
                setattr(owner, name, redacts(member))
            elif isinstance(member, classmethod):
                setattr(owner, name, classmethod(redacts(member.__func__)))
            elif isinstance(member, property) and member.fget is not None:
                setattr(owner, name, property(redacts(member.fget), doc=member.__doc__))
        return owner

    return decorate


def redacted(error: BaseException, kind: type[DPFewShotError] | None, what: str = "") -> BaseException:
    """The error to raise in place of another; of one whose own text or attributes raise, the kind alone."""
    try:
        return _redacted(error, kind, what)
    except BaseException as fault:
        if not is_failure(fault):
            raise
        return _bare(error, kind, what)


def is_failure(error: BaseException) -> bool:
    """Whether an error is a failure, and not an interrupt, exit or cancellation.

    A panic of a Rust library, such as some tokenizers, is a failure although it is not an `Exception`.
    """
    return isinstance(error, (Exception, BaseExceptionGroup)) or type(error).__module__ == _RUST


def none_if_it_fails(work: Callable[[], Result], *, for_good: bool = False) -> Result | None:
    """What a step on a private record gives; None, a null, if it fails: an error would say it was drawn.

    With `for_good`, an error that may pass is raised all the same.
    """
    try:
        return work()
    except BaseException as error:  # its message may quote the record
        if not is_failure(error) or (for_good and may_pass(error)):
            raise
        return None


def may_pass(error: BaseException) -> bool:
    """Return whether an error is a retryable `BackendError`: the same call may succeed later."""
    try:
        return isinstance(error, BackendError) and bool(error.retryable)
    except BaseException as fault:  # a custom subclass may raise anything
        if not is_failure(fault):
            raise
        return False


def _call(
    function: Callable[Parameters, Result], kind: type[DPFewShotError] | None, what: str
) -> Callable[Parameters, Result]:
    @wraps(function)
    def redacting(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            try:
                return function(*arguments, **named)
            except BaseException as error:  # noqa: BLE001 - raised again, redacted
                bare = redacted(error, kind, what)
        except BaseException as late:  # noqa: BLE001 - an interrupt of the border itself
            late.__context__ = None
            bare = redacted(late, kind, what)
        del arguments, named  # this frame stays in the traceback
        try:
            raise bare
        finally:
            del bare  # it holds this frame

    return redacting


def _steps(
    function: Callable[Parameters, Any], kind: type[DPFewShotError] | None, what: str
) -> Callable[Parameters, Iterator[Any]]:
    @wraps(function)
    def redacting(*arguments: Parameters.args, **named: Parameters.kwargs) -> Iterator[Any]:
        steps = function(*arguments, **named)
        del arguments, named
        advance = _call(lambda: next(steps, _END), kind, what)
        while (item := advance()) is not _END:
            yield item
            del item

    return redacting


def _redacted(error: BaseException, kind: type[DPFewShotError] | None, what: str) -> BaseException:
    if isinstance(error, DPFewShotError):
        return _same_message(error)
    if isinstance(error, MemoryError) or not is_failure(error):
        return _kind_alone(error)
    frames = _frames(error.__traceback__)
    if isinstance(error, TypeError) and len(frames) == 1:  # the call itself failed: it names parameters
        return error.with_traceback(None)
    if kind is None:
        if not frames or not _is_ours(frames[-1]):
            return error.with_traceback(_frames_of_others(frames))
        place = f"{_module(frames[-1])}, line {frames[-1].tb_lineno}"
        return DPFewShotError(
            f"failed with {type(error).__name__} in {place}; its message is withheld: it may quote a record"
        )
    return kind(
        f"{what} failed with {type(error).__name__}, whose message is withheld: it may quote a record"
    )


def _bare(error: BaseException, kind: type[DPFewShotError] | None, what: str) -> BaseException:
    """Return a new error of this package's or Python's nearest class, without running the old one's code."""
    if kind is None or issubclass(type(error), DPFewShotError) or not is_failure(error):
        own = (each for each in type(error).__mro__ if each.__module__ in {errors.__name__, "builtins"})
        nearest = cast("type[BaseException]", next(own))
        bare = nearest.__new__(nearest)
        bare.args = ("an error whose message cannot be shown",)
        return bare
    return kind(f"{what} failed with an error that cannot be shown")


def _same_message(error: DPFewShotError) -> DPFewShotError:
    """Return a new error of this package's nearest class: a custom subclass may hold anything."""
    kinds: Iterator[type[DPFewShotError]] = (
        base for base in type(error).__mro__ if issubclass(base, DPFewShotError)
    )
    kind = next(each for each in kinds if each.__module__ == errors.__name__)
    same = kind.__new__(kind)
    text = str.__str__(str(error))  # a plain string
    same.args = (text,)  # the initialisers of some classes take other parameters
    if isinstance(same, BackendError) and isinstance(error, BackendError):
        same.retryable = bool(error.retryable)
    if type(error) is BudgetExceeded:
        vars(same).update({name: getattr(error, name) for name in _OF_A_REFUSAL})
    return same


def _kind_alone(error: BaseException) -> BaseException:
    """Return an error that ends a process, a thread, a task or a greenlet, without a message."""
    if isinstance(error, SystemExit):  # a text as the status would be printed
        return SystemExit(error.code if error.code is None or isinstance(error.code, int) else 1)
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt()
    if isinstance(error, MemoryError):
        return MemoryError()
    error.args = ()  # the same object, since its thrower may compare by identity
    error.__cause__ = error.__context__ = None
    vars(error).pop("__notes__", None)
    for name, value in list(vars(error).items()):
        if issubclass(type(value), Collection | Number):  # what a timeout remembers of the call that it ended
            vars(error)[name] = None
    return error.with_traceback(None)


def portable(error: BaseException) -> BaseException:
    """An error that another process can read: one of Python's or this package's own classes.

    Any other class may need arguments, and nobody in another process can compare it by identity.
    """
    if type(error).__module__ in {errors.__name__, "builtins"}:
        return error
    return BackendError(f"a worker ended with {type(error).__name__}, whose message is withheld")


def _frames_of_others(frames: list[TracebackType]) -> TracebackType | None:
    rest: TracebackType | None = None
    for each in reversed(frames):
        if not _is_ours(each):
            rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _is_ours(trace: TracebackType) -> bool:
    return _module(trace).partition(".")[0] == _PACKAGE


def _module(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))
