"""The border for errors: what leaves the package carries no variable, message or chain that is private.

A traceback holds the variables of every frame that an error came through, and an error holds the ones that
came before it, whose messages quote what they failed on. Crash reporters send on both. So an error that
leaves a function which works on private data leaves it anew: its kind, a message that is public, no frame
below the border, no cause and no context.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from dpfewshot import errors
from dpfewshot.errors import BackendError, DPFewShotError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

_PACKAGE = "dpfewshot"
_RUST = "pyo3_runtime"
_END = object()


def redacts_errors(
    kind: type[DPFewShotError] | None, what: str = ""
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Let errors leave a function, or a generator's steps, without anything private.

    An error of this package keeps its kind and its message, which quotes nothing. Of `KeyboardInterrupt`,
    `SystemExit`, `MemoryError` and whatever is no `Exception` the kind is left, which programs heed.

    Args:
        kind: what any other error becomes, named after its type alone, as its message may quote private text.
            None is for functions that read what the caller iterates: the caller's own error passes with the
            caller's own frames, without those of this package.
        what: the function's work, as the message names it.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        if inspect.isgeneratorfunction(function):
            return cast("Callable[Parameters, Result]", _steps(function, kind, what))
        return _call(function, kind, what)

    return decorate


def redacts_errors_of_methods(kind: type[DPFewShotError], what: str) -> Callable[[Class], Class]:
    """`redacts_errors` for every public method and property of a class."""
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
    """The error to raise in place of another one; arguments as of `redacts_errors`.

    An error whose own text or attributes raise has its kind alone.
    """
    try:
        return _redacted(error, None if _wrongly_called(error) else kind, what)
    except BaseException as fault:
        if not is_failure(fault):
            raise
        return _bare(error, kind, what)


def is_failure(error: BaseException) -> bool:
    """Whether something failed: no interrupt, exit or cancellation.

    A panic of a library in Rust, as of some tokenizers, is one, though no `Exception`; it quotes texts too.
    """
    return isinstance(error, (Exception, BaseExceptionGroup)) or type(error).__module__ == _RUST


def may_pass(error: BaseException) -> bool:
    """Whether it is a `BackendError` that says that the same call may succeed later."""
    try:
        return isinstance(error, BackendError) and bool(error.retryable)
    except BaseException as fault:  # a kind of somebody else's own
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
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised again, bare
                bare = redacted(error, kind, what)
        except BaseException as late:  # noqa: BLE001 - an interrupt of the border, which has the error behind it
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
    if kind is None:
        return error.with_traceback(_frames_of_others(error.__traceback__))
    return kind(
        f"{what} failed with {type(error).__name__}, whose message is withheld: it may quote a record"
    )


def _bare(error: BaseException, kind: type[DPFewShotError] | None, what: str) -> BaseException:
    """A new error of the nearest kind of the package or of Python; nothing of the old one is run."""
    if kind is None or issubclass(type(error), DPFewShotError) or not is_failure(error):
        own = (each for each in type(error).__mro__ if each.__module__ in {errors.__name__, "builtins"})
        nearest = cast("type[BaseException]", next(own))
        bare = nearest.__new__(nearest)
        bare.args = ("an error whose message cannot be shown",)
        return bare
    return kind(f"{what} failed with an error that cannot be shown")


def _wrongly_called(error: BaseException) -> bool:
    """Whether the call itself raised it, as where an argument is missing: it names parameters alone."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _same_message(error: DPFewShotError) -> DPFewShotError:
    """A new error of the package's nearest kind: one of somebody else's own may hold anything."""
    kinds: Iterator[type[DPFewShotError]] = (
        base for base in type(error).__mro__ if issubclass(base, DPFewShotError)
    )
    kind = next(each for each in kinds if each.__module__ == errors.__name__)
    same = kind.__new__(kind)
    text = str.__str__(str(error))  # a plain string
    same.args = (text,)  # past the initialisers, of which each has parameters of its own
    if isinstance(same, BackendError) and isinstance(error, BackendError):
        same.retryable = bool(error.retryable)
    return same


def _kind_alone(error: BaseException) -> BaseException:
    """What ends a process, a thread, a task or a greenlet, without a message."""
    if isinstance(error, SystemExit):  # a text for a status would be printed
        return SystemExit(error.code if error.code is None or isinstance(error.code, int) else 1)
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt()
    if isinstance(error, MemoryError):
        return MemoryError()
    error.args = ()  # the same object: who threw it may look for it
    error.__cause__ = error.__context__ = None
    vars(error).pop("__notes__", None)
    return error.with_traceback(None)


def _frames_of_others(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    rest: TracebackType | None = None
    for each in reversed(frames):
        module = str(each.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != _PACKAGE:
            rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest
