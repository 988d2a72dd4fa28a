"""A crash reporter in miniature: all that one could collect from an error that left the package."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

DEPTH = 4


def collected(error: BaseException, depth: int = DEPTH) -> str:
    """Everything of an error and of those it is chained to: messages, notes, attributes, frames' variables.

    Of the frames, those from the first one of the package on: the ones before are the user's own.

    Args:
        error: as it left the package.
        depth: levels of containers and of attributes of variables that are looked into.
    """
    said: list[str] = []
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        said += [str(link), repr(link), repr(link.args), repr(vars(link))]
        said += traceback.format_exception(link)
        chain += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
        for frame in _frames(link):
            for value in frame.f_locals.values():
                said += _shown(value, depth)
    return "\n".join(said)


def _frames(error: BaseException) -> list[FrameType]:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    return frames[names.index("dpfewshot") :] if "dpfewshot" in names else frames


def _shown(value: Any, depth: int) -> Iterator[str]:
    yield repr(value)
    if depth == 0 or isinstance(value, (str, bytes, type, ModuleType, FunctionType, MethodType, FrameType)):
        return
    if isinstance(value, Mapping):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = list(value)
    else:
        inside = list(getattr(value, "__dict__", {}).values())
    for each in inside:
        yield from _shown(each, depth - 1)
