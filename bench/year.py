"""What a Rényi account saves: the least noise at which equal plans share one budget, by each rule.

Run: python -m bench.year
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.rule import Rule
from dpfewshot.accounting import (
    Event,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    calibrate,
    epsilon,
)
from dpfewshot.errors import InvalidPlan
from dpfewshot.values import PrivacyBudget

BUDGET: Final = PrivacyBudget(4.0, 1e-5)
PLANS: Final = (1, 3, 10, 100, 365, 1000)
KINDS: Final[dict[str, Callable[[float], Event]]] = {
    "Gaussian, q = 80/835, 15 draws": lambda sigma: PoissonGaussian(80 / 835, sigma, 15),
    "Gaussian, q = 0.02, 40 draws": lambda sigma: PoissonGaussian(0.02, sigma, 40),
    "Gaussian, q = 1, 10 draws": lambda sigma: PoissonGaussian(1.0, sigma, 10),
    "softmax, q = 0.05, 40 draws": lambda sigma: PoissonBoundedRange(0.05, min(1 / sigma, 100.0), 40),
    "softmax, q = 0.05, 10 draws of 4 tokens": lambda sigma: PoissonProduct(
        0.05, (PoissonBoundedRange(1.0, min(1 / sigma, 100.0), 4),), 10
    ),
}
_CLOSE: Final = 1e-4


def noise_by_sum(event: Callable[[float], Event], plans: int) -> float:
    """The least noise at which the sums of `plans` equal plans fit an account of sums."""
    return calibrate(event, epsilon=BUDGET.epsilon / plans, delta=BUDGET.delta / plans)


def noise_by_renyi(event: Callable[[float], Event], plans: int) -> float:
    """The least noise at which `plans` equal plans fit an account with a Rényi order by their divergences."""
    limit = Amount.of_budget(BUDGET)
    rule = Rule.of("renyi", limit)

    def fits(sigma: float) -> bool:
        try:
            entry = rule.tally(EventCost(Amount(10**30, 0), event(sigma)))
        except InvalidPlan:
            return False
        return rule.fits(entry.times(plans), limit)

    small, enough = 2.0**-6, 2.0**14
    while enough / small > 1 + _CLOSE:
        middle = (small * enough) ** 0.5
        small, enough = (small, middle) if fits(middle) else (middle, enough)
    return enough


def main() -> None:
    """Print a row for each kind of plan and each number of plans."""
    print(f"epsilon={BUDGET.epsilon}, delta={BUDGET.delta}, {Rule.of('renyi', Amount.of_budget(BUDGET))}")
    for name, event in KINDS.items():
        for plans in PLANS:
            by_sum, by_renyi = noise_by_sum(event, plans), noise_by_renyi(event, plans)
            share = BUDGET.epsilon / plans
            alone = epsilon(event(by_renyi), BUDGET.delta / plans).upper
            print(
                f"{name} | {plans} | {by_sum:.3f} | {by_renyi:.3f} | {by_sum / by_renyi:.2f} | "
                f"{share:.4f} | {alone:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
