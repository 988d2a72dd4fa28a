"""The public numbers that a plan starts from: n, the neighbouring relation, and a default δ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpfewshot.errors import InvalidPlan
from dpfewshot.planning.plan import Stratum
from dpfewshot.planning.settings import FIXED_SIZE
from dpfewshot.records.units import units
from dpfewshot.values import Record, Relation, check_whole

Population = Mapping[str, int] | int | None
"""Public constants n: by label, or one number if labels are free; None counts the units."""

MOST_UNITS = 2**31 - 1
"""The most that the sampler draws from, which counts in 32 bits."""

LARGEST_DEFAULT_DELTA = 1e-5
"""The default δ for up to a thousand units."""


def relation_of(sampling: str, population: Population) -> Relation:
    """The neighbouring relation that a run is stated for."""
    if sampling == FIXED_SIZE:
        return Relation.REPLACE_ONE
    return Relation.ZERO_OUT if population is None else Relation.ADD_REMOVE


def public_stratum(
    sampling: str, population: Population, scope: str | None, labels: tuple[str, ...], counted: int
) -> Stratum:
    """A stratum with its public n, which draws of fixed size count."""
    public = _public_population(population, scope, counted)
    if sampling == FIXED_SIZE and public != counted:
        raise InvalidPlan(f"fixed-size draws use the counted n={counted}, which population must equal")
    return Stratum(scope, labels, public)


def _public_population(population: Population, scope: str | None, counted: int) -> int:
    """The public constant n of a stratum, or the count if none is given."""
    if population is None:
        return counted
    if scope is None:
        if isinstance(population, Mapping):
            raise InvalidPlan(
                "labels are free and draw from the whole data set: population must be one whole number"
            )
        name, number = "population", population
    elif not isinstance(population, Mapping):
        raise InvalidPlan(
            "population must name a number for each label, as in {'refund': 1200}; on the command line "
            "repeat it, as in --set population.refund=1200 --set population.delivery=900"
        )
    elif scope not in population:
        raise InvalidPlan(
            f"population (--set population.LABEL=N) has no number for the label {scope!r}: give each label "
            "its public number"
        )
    else:
        name, number = f"the population of label {scope!r} (--set population.LABEL=N)", population[scope]
    check_whole(name, number)
    if number > MOST_UNITS:
        raise InvalidPlan(f"{name} must be at most {MOST_UNITS}")
    return number


def check_population(population: Population, labels: tuple[str, ...] | None) -> None:
    """Refuse a population that does not say how many units a task has: with labels, all of them or their sum.

    A number is whole, and from 1 to `MOST_UNITS`.
    """
    if labels is None or not isinstance(population, Mapping):
        _public_population(population, None, 0)
        return
    for label in labels:
        _public_population(population, label, 0)
    for name in population:
        if name not in labels:
            raise InvalidPlan(f"population names {name!r}, which is not a label of the task")


def default_delta(population: Population, records: Iterable[Record]) -> float:
    """The smaller of 10⁻⁵ and 1/(100 n), n all units: the δ of a command line that names none.

    δ is printed and determines σ, so it depends only on what the neighbouring relation makes public. With a
    population that is the population. Without one, and in draws of fixed size, it is the number of units: a
    null, or a unit that replaces another, keeps its place in the count. The number of records is always
    private: a unit may have any number of them, under any labels.
    """
    return min(LARGEST_DEFAULT_DELTA, 1 / (100 * max(1, public_units(population, records))))


def public_units(population: Population, records: Iterable[Record]) -> int:
    """The public number of units of the whole data set: the population, or the count without one."""
    if population is None:
        return len(units(records))
    return sum(population.values()) if isinstance(population, Mapping) else population
