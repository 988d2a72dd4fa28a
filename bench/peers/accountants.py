"""ε of Poisson-subsampled Gaussians by dp-accounting, prv-accountant and autodp, and OpenDP's noise.

Runs in the environment of these packages. Reads {"rows": [...]} and prints one JSON object a tool and row: ε, and the
seconds of the fastest of three calls.
"""

import importlib.metadata
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

REPEATS = 3
NORMALS = 2_000


def dp_accounting(row: Any) -> Any:
    """Its privacy loss distribution, pessimistic, at its default grid of 1e-4."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    step = dp_event.PoissonSampledDpEvent(row["q"], dp_event.GaussianDpEvent(row["sigma"]))
    accountant.compose(step, row["steps"])
    return accountant.get_epsilon(row["delta"])


def prv_accountant(row: Any) -> Any:
    """The upper end of its bracket, with an error of 0.01."""
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    step = PoissonSubsampledGaussianMechanism(row["q"], row["sigma"])
    steps = [row["steps"]]
    accountant = PRVAccountant(
        prvs=[step], max_self_compositions=steps, eps_error=0.01, delta_error=row["delta"] / 1000
    )
    return accountant.compute_epsilon(row["delta"], steps)[2]


def autodp(row: Any) -> Any:
    """Its Rényi accountant with the bound for Poisson samples."""
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    sampled = AmplificationBySampling(PoissonSampling=True)
    step = sampled(GaussianMechanism(row["sigma"]), row["q"], improved_bound_flag=True)
    return Composition()([step], [row["steps"]]).get_approxDP(row["delta"])


TOOLS = {"dp-accounting": dp_accounting, "prv-accountant": prv_accountant, "autodp": autodp}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the shortest of several runs in seconds."""
    best = math.inf
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - started)
    return result, best


def answered(tool: Callable[[Any], Any], row: Any) -> dict[str, Any]:
    """ε and seconds, or the error."""
    try:
        epsilon, seconds = timed(lambda: float(tool(row)))
    except Exception as error:  # noqa: BLE001 - whatever a package raises is the measurement
        return {"error": f"{type(error).__name__}: {error}"}
    return {"epsilon": epsilon, "seconds": seconds}


def opendp_noise() -> float:
    """Exact Gaussian draws a second."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    measurement = space >> dp.m.then_gaussian(scale=8.0 * 2**27)
    _, seconds = timed(lambda: measurement([0] * NORMALS))
    return NORMALS / seconds


def main() -> None:
    """Answers one request."""
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    for name, tool in TOOLS.items():
        for row in request["rows"]:
            print(json.dumps({"tool": name, **row, **answered(tool, row)}), flush=True)
    print(json.dumps({"tool": "opendp", "normals_a_second": opendp_noise()}), flush=True)
    names = ("autodp", "dp-accounting", "opendp", "prv-accountant", "numpy", "scipy")
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in names}}))


if __name__ == "__main__":
    main()
