"""The dominating pairs of each event.

The accountant needs only the curve H(ε) = sup_S P(S) - e^ε·Q(S) of a pair (P, Q), so a new event needs one
class with a curve and one function here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, singledispatch

from dpfewshot.accounting.events import (
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Query,
)
from dpfewshot.accounting.pairs.bounded_range import AddBoundedRange, RemoveBoundedRange
from dpfewshot.accounting.pairs.curve import DominatingPair
from dpfewshot.accounting.pairs.gaussian import AddGaussian, RemoveGaussian, ReplaceGaussian
from dpfewshot.accounting.pairs.product import AddProduct, LowerProduct, RemoveProduct, UpperProduct
from dpfewshot.accounting.pairs.randomized_response import added_response, removed_response
from dpfewshot.accounting.pld.product import composed_queries, lower_product, upper_product
from dpfewshot.errors import InvalidPlan

Pairs = tuple[DominatingPair, DominatingPair]


@singledispatch
def dominating_pairs(event: Event) -> Pairs:
    """The pairs of one step of `event`: with the unit removed, and with it added.

    Both are the same for a symmetric relation, as replace-one is.

    Raises:
        InvalidPlan: the accountant does not know this kind of event.
    """
    raise InvalidPlan(f"no dominating pair is known for {type(event).__name__}")


@dominating_pairs.register
def _(event: PoissonGaussian) -> Pairs:
    remove = RemoveGaussian(event.sampling_rate, event.noise_multiplier)
    if event.sampling_rate == 1:
        return remove, remove  # x -> 1 - x maps one direction to the other
    return remove, AddGaussian(event.sampling_rate, event.noise_multiplier)


@dominating_pairs.register
def _(event: PoissonRandomizedResponse) -> Pairs:
    return (
        removed_response(event.sampling_rate, event.epsilon),
        added_response(event.sampling_rate, event.epsilon),
    )


@dominating_pairs.register
def _(event: FixedSizeGaussian) -> Pairs:
    replace = ReplaceGaussian(event.sampling_rate, event.noise_multiplier)
    return replace, replace


@dominating_pairs.register
def _(event: PoissonBoundedRange) -> Pairs:
    remove = RemoveBoundedRange(event.sampling_rate, event.epsilon)
    if event.sampling_rate == 1:
        return remove, remove  # the pair is its own reverse
    return remove, AddBoundedRange(event.sampling_rate, event.epsilon)


@dominating_pairs.register
def _(event: PoissonProduct) -> Pairs:
    queries = event.merged
    if len(queries) == 1 and queries[0].steps == 1:
        return dominating_pairs(replace(queries[0], sampling_rate=event.sampling_rate))
    product = _product(queries)[0]
    return RemoveProduct(event.sampling_rate, product), AddProduct(event.sampling_rate, product)


def dominated_pairs(event: Event) -> Pairs:
    """Pairs whose curves are at most those of `dominating_pairs`, and at most exact: for lower bounds.

    The same pairs wherever their curves are exact.
    """
    if not isinstance(event, PoissonProduct):
        return dominating_pairs(event)
    queries = event.merged
    if len(queries) == 1 and queries[0].steps == 1:
        return dominating_pairs(event)
    product = _product(queries)[1]
    return RemoveProduct(event.sampling_rate, product), AddProduct(event.sampling_rate, product)


@lru_cache(maxsize=64)
def _product(queries: tuple[Query, ...]) -> tuple[UpperProduct, LowerProduct]:
    curves = composed_queries([(dominating_pairs(query)[0], query.steps) for query in queries])
    upper = upper_product(curves)
    return upper, lower_product(curves, upper)
