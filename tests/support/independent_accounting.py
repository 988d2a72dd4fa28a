"""δ of composed events by numerical inversion of the moment function: nothing here comes from the accountant.

With M(z) = E_P[e^{z·loss}] of a step, and any s > 0,

    δ(ε) = 1/2πi ∫ M(z)^T·e^{-zε} / (z·(z + 1)) dz   along Re z = s.

The trapezoidal rule on that line errs by what lies a period of losses away, which is exponentially small.
M is summed over quadrature nodes of the two densities themselves, for all frequencies at once (a non-uniform
fast Fourier transform). A smooth filter ends the line. All of it is repeated with more frequencies until two
results agree. Their difference is returned with the result, and what both leave out is added to it: tails,
what lies a period away, recurrences at higher frequencies, round-off. These are estimates, not bounds.

One step, and steps with two outcomes, have sums of their own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import rfft
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

Array = NDArray[np.float64]

FAR = 13.0  # standard deviations at which a normal density ends: beyond are 6e-39
TRIMMED = 1e-10  # of δ: the mass of tails that is left out; δ cannot miss more than that
DIGITS = 32.0  # natural logarithm of what is negligible
SPARE = 9.0  # and of by how much the integrand may exceed the result
KERNEL, STEEP = 16, 36.8  # grid points under a spreading kernel, and its shape
ROUND_OFF = 2e-15  # of a moment of one step
NODES, LEGENDRE = 16, np.polynomial.legendre.leggauss(16)
MUCH = 10.0
NO_DENSITY = 1e-24
FEWEST, MOST = 2**12, 2**17  # frequencies
SEEN = 0.25  # of the frequencies: where a recurrence is seen by two sums that disagree
MOST_PANELS = 2e6
FACTORS = 1.1, 1.3, 1.7, 2.5, 4.0, 8.0  # of the line's order: where the tail above a period is bounded
AGREEMENT = 3e-7
LEAST_REST = 1e-3  # of δ: near 1 the digits of 1 - δ count, down to this share


class Piece(NamedTuple):
    """A density on an interval: the loss at each place, and the density there."""

    low: float
    high: float
    loss: Callable[[Array], Array]
    density: Callable[[Array], Array]
    smooth: float


@dataclass(frozen=True)
class Law:
    """The loss of one step in one direction, which is repeated `steps` times."""

    pieces: tuple[Piece, ...]
    atoms: tuple[tuple[float, float], ...]
    steps: int

    def nodes(self, frequency: float) -> tuple[Array, Array]:
        """Losses and weights that integrate e^{i·t·loss} up to this frequency t."""
        losses, weights = [np.array([a for a, _ in self.atoms])], [np.array([m for _, m in self.atoms])]
        for piece in self.pieces:
            places, widths = _panels(piece, frequency)
            losses.append(piece.loss(places))
            weights.append(piece.density(places) * widths)
        return np.concatenate(losses), np.concatenate(weights)

    def trimmed(self, mass: float) -> Law:
        """The law without the ends of its pieces, which hold this mass in all steps together, or less.

        A tail that rare moves δ by no more, but a tilt would find nothing else.
        """
        pieces, least = [], mass / (2 * len(self.pieces) * self.steps) if self.pieces else 0.0
        for piece in self.pieces:
            places, widths = _panels(piece, 0.0)
            masses = piece.density(places) * widths
            low = places[np.cumsum(masses) <= least].max(initial=piece.low)
            high = places[np.cumsum(masses[::-1])[::-1] <= least].min(initial=piece.high)
            if low < high:
                pieces.append(piece._replace(low=float(low), high=float(high)))
        return replace(self, pieces=tuple(pieces))


class TooFineError(Exception):
    """More panels than fit in memory: nothing is claimed."""


def _panels(piece: Piece, frequency: float) -> tuple[Array, Array]:
    """Nodes of Gauss and Legendre in panels on which neither the density nor the phase changes much."""
    fine = np.linspace(piece.low, piece.high, 4001)
    losses = piece.loss(fine)
    counts = (losses[1:] > 0) | (
        piece.density(fine[1:]) > NO_DENSITY
    )  # a tilt raises what lies above 0 alone
    phase = np.where(counts, np.abs(np.diff(losses)), 0.0) * frequency / 10.0
    effort = np.concatenate([[0.0], np.cumsum(np.diff(fine) / piece.smooth + phase)])
    if effort[-1] > MOST_PANELS:
        raise TooFineError
    ends = np.interp(np.linspace(0, effort[-1], math.ceil(effort[-1]) + 2), effort, fine)
    half, middle = np.diff(ends)[:, None] / 2, (ends[1:] + ends[:-1])[:, None] / 2
    return (middle + half * LEGENDRE[0]).ravel(), (half * LEGENDRE[1]).ravel()


# ---- the laws of single steps ---------------------------------------------------------------------------


def log_mixture(q: float, exponent: Array) -> Array:
    """log(1 - q + q·e^exponent)."""
    if q == 1:
        return exponent
    change = q * np.expm1(np.minimum(exponent, 1.0))
    near = np.log1p(np.maximum(change, -0.5))
    return np.where(
        (exponent <= 1) & (change > -0.5), near, np.logaddexp(math.log1p(-q), math.log(q) + exponent)
    )


def normal(u: Array) -> Array:
    return np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def gaussian(q: float, sigma: float, steps: int, *, removed: bool) -> Law:
    """N(0, σ²) and (1-q)·N(0, σ²) + q·N(1, σ²), in units of σ."""
    return Law(tuple(_gaussian_beside(q, sigma, 0.0, 1.0, removed=removed)), (), steps)


def fixed_size(m: int, n: int, sigma: float, steps: int) -> Law:
    """A draw of fixed size, one unit replaced: the removal's losses above 0, mirrored, and the rest at 0."""
    q, middle = m / n, 0.5 / sigma
    removal = gaussian(q, sigma, steps, removed=True).pieces[0]
    above = removal._replace(low=middle)
    below = Piece(middle, middle + FAR, lambda u: -removal.loss(u), normal, 0.5)
    rest = 1 - q - 2 * (1 - q) * float(ndtr(-middle))
    return Law((above, below), ((0.0, max(rest, 0.0)),), steps)


def bounded_range(q: float, width: float, steps: int, *, removed: bool) -> Law:
    """The pair (A, B) on losses g in ±width: densities e^{±g/2} / (4·sinh(width/2))."""

    def base(g: Array, sign: float) -> Array:  # in a form that does not overflow
        return np.exp((sign * g - width) / 2) / (-2 * math.expm1(-width))

    def mixed(g: Array) -> Array:
        return (1 - q) * base(g, -1) + q * base(g, 1)

    if removed:
        return Law((Piece(-width, width, lambda g: log_mixture(q, g), mixed, 1.0),), (), steps)
    return Law((Piece(-width, width, lambda g: -log_mixture(q, g), lambda g: base(g, -1), 1.0),), (), steps)


def response(q: float, cost: float, steps: int, *, removed: bool) -> Law:
    """Two outcomes."""
    losses = [float(each) for each in log_mixture(q, np.array([-cost, cost]))]
    likely, rare = 1 / (1 + math.exp(-cost)), math.exp(-cost) / (1 + math.exp(-cost))
    if removed:
        second = (1 - q) * rare + q * likely
        return Law((), ((losses[0], (1 - q) * likely + q * rare), (losses[1], second)), steps)
    return Law((), ((-losses[1], rare), (-losses[0], likely)), steps)


# ---- the laws of several queries on one draw, as densities ------------------------------------------------


class Shared(NamedTuple):
    """Queries on the same records: a Gaussian or draws of bounded range, and randomised responses.

    Attributes:
        sigma: of the Gaussian; None is no Gaussian.
        width: of the range of each of `ranges` queries.
        ranges: how many.
        responses: ε₀ of each randomised response.
    """

    sigma: float | None
    width: float
    ranges: int
    responses: tuple[float, ...]


def product(q: float, shared: Shared, steps: int, *, removed: bool) -> Law:
    """All outcomes of the responses, each beside a density, sampled together."""
    outcomes = [(0.0, 1.0)]
    for cost in shared.responses:
        likely = 1 / (1 + math.exp(-cost))
        outcomes = [
            (loss + sign * cost, mass * (likely if sign > 0 else math.exp(-cost) * likely))
            for loss, mass in outcomes
            for sign in (-1, 1)
        ]
    pieces: list[Piece] = []
    atoms: list[tuple[float, float]] = []
    for at, mass in outcomes:
        mixed = (1 - q) * mass * math.exp(-at) + q * mass
        if shared.sigma is not None:
            pieces += _gaussian_beside(q, shared.sigma, at, mass, removed=removed)
        elif shared.ranges:
            pieces += _ranges_beside(q, shared, at, mass, removed=removed)
        else:
            loss = float(log_mixture(q, np.array([at]))[0])
            atoms.append((loss, mixed) if removed else (-loss, mass * math.exp(-at)))
    return Law(tuple(pieces), tuple(atoms), steps)


def _gaussian_beside(q: float, sigma: float, at: float, mass: float, *, removed: bool) -> list[Piece]:
    """Beside an outcome of responses with a loss `at` and a mass."""
    without = mass * math.exp(-at)

    def loss(u: Array) -> Array:
        return log_mixture(q, u / sigma - 0.5 / sigma**2 + at)

    def mixed(u: Array) -> Array:
        return (1 - q) * without * normal(u) + q * mass * normal(u - 1 / sigma)

    if removed:
        return [Piece(-FAR, 1 / sigma + FAR, loss, mixed, 0.5)]
    return [Piece(-FAR, FAR, lambda u: -loss(u), lambda u: without * normal(u), 0.5)]


def _ranges_beside(q: float, shared: Shared, at: float, mass: float, *, removed: bool) -> list[Piece]:
    """The sum of equal losses with density e^{g/2}: that of uniform variables, tilted."""
    width, count, without = shared.width, shared.ranges, mass * math.exp(-at)

    def base(g: Array, sign: float) -> Array:
        within = np.clip((g + count * width) / (2 * width), 0.0, count)
        near = np.minimum(within, count - within)
        terms = [
            (-1) ** k * math.comb(count, k) * np.maximum(near - k, 0.0) ** (count - 1) for k in range(count)
        ]
        volume = np.maximum(sum(terms[1:], terms[0]), 0.0) / math.factorial(count - 1)
        scale = -2 * math.expm1(-width)
        return np.exp((sign * g - count * width) / 2) * volume * (2 * width) ** (count - 1) / scale**count

    def loss(g: Array) -> Array:
        return log_mixture(q, g + at)

    def mixed(g: Array) -> Array:
        return (1 - q) * without * base(g, -1) + q * mass * base(g, 1)

    ends = [-count * width + 2 * width * k for k in range(count + 1)]
    smooth = min(1.0, width)
    if removed:
        return [Piece(low, high, loss, mixed, smooth) for low, high in itertools.pairwise(ends)]
    return [
        Piece(low, high, lambda g: -loss(g), lambda g: without * base(g, -1), smooth)
        for low, high in itertools.pairwise(ends)
    ]


# ---- compositions ---------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """δ, and how far off it may be: by how much two computations differ, and what both left out."""

    delta: float
    doubt: float


def chosen(choose: Callable[[Iterable[float]], float], estimates: Iterable[Estimate]) -> Estimate:
    """The largest or the least δ, where any may be it that is not surely smaller or larger."""
    estimates = tuple(estimates)
    found = choose(each.delta for each in estimates)
    low, high = (choose(each.delta + sign * each.doubt for each in estimates) for sign in (-1, 1))
    return Estimate(found, max(high - found, found - low))


def delta_of(laws: Iterable[Law], epsilon: float, near: float) -> Estimate:
    """δ of the composition at `epsilon`, where it is about `near`."""
    laws = tuple(laws)
    if not any(law.pieces for law in laws):
        return Estimate(_of_atoms(laws, epsilon), 0.0)
    if sum(law.steps for law in laws) == 1:
        found, finer = (_of_one_step(laws[0], epsilon, frequency) for frequency in (1.0, 2.0))
        return Estimate(finer, abs(finer - found))
    return _inverted(laws, epsilon, near)


def _inverted(laws: tuple[Law, ...], epsilon: float, near: float) -> Estimate:
    """δ by inversion, without tails that could not move it; again, if it is far above `near`."""
    neglected = near * (math.exp(-DIGITS) + TRIMMED) + sum(law.steps for law in laws) * float(ndtr(-FAR))
    trimmed = tuple(law.trimmed(TRIMMED * near / len(laws)) for law in laws)
    if sum(map(_greatest, trimmed)) <= epsilon:
        return Estimate(0.0, neglected)
    found, doubt, count = 0.0, math.inf, FEWEST
    try:
        inversion = _Inversion(trimmed, epsilon, near)
        if inversion.negligible:
            return Estimate(0.0, neglected)
        found, *_ = inversion.delta(count)
        while doubt > AGREEMENT * max(min(near, 1 - near), LEAST_REST * near) and count < MOST:
            count *= 2
            before, (found, round_off, unseen) = found, inversion.delta(count)
            doubt = abs(found - before) + unseen
    except TooFineError:
        return Estimate(found, math.inf)
    if min(found, 1.0) > MUCH * near:  # line and period were made for another δ
        return _inverted(laws, epsilon, min(found, 1.0))
    # no probability is below 0 or above 1: so far it is off for sure
    return Estimate(found, max(doubt + round_off + neglected, -found, found - 1))


def _greatest(law: Law) -> float:
    """The largest loss of all steps together."""
    ends = [float(piece.loss(np.array([piece.low, piece.high])).max()) for piece in law.pieces]
    return law.steps * max(ends + [loss for loss, _ in law.atoms])


def _of_atoms(laws: tuple[Law, ...], epsilon: float) -> float:
    """Steps with two outcomes: binomial sums, of at most two laws. Few steps with more: all sequences."""
    losses, logs = np.zeros(1), np.zeros(1)
    for law in laws:
        if len(law.atoms) != 2:
            each, masses = (np.array(column) for column in zip(*law.atoms, strict=True))
            for _ in range(law.steps):
                losses = np.add.outer(losses, each).ravel()
                logs = np.add.outer(logs, _log(masses)).ravel()
            continue
        (first, _), (second, mass) = law.atoms
        counts = np.arange(law.steps + 1)
        gained = first * (law.steps - counts) + second * counts
        losses = np.add.outer(losses, gained).ravel()
        logs = np.add.outer(logs, binom.logpmf(counts, law.steps, mass)).ravel()
    above = losses > epsilon
    return float(np.sum(np.exp(logs[above]) * -np.expm1(epsilon - losses[above])))


def _of_one_step(law: Law, epsilon: float, frequency: float) -> float:
    """Quadrature from the place where the loss is ε, whose panels are as narrow as for this frequency."""
    total = sum(mass * -math.expm1(epsilon - loss) for loss, mass in law.atoms if loss > epsilon)
    for piece in law.pieces:
        low, high = piece.low, piece.high
        sign = 1.0 if piece.loss(np.array([high]))[0] > piece.loss(np.array([low]))[0] else -1.0
        for _ in range(200):
            middle = (low + high) / 2
            above = sign * (float(piece.loss(np.array([middle]))[0]) - epsilon) > 0
            low, high = (low, middle) if above else (middle, high)
        rest = piece._replace(low=low) if sign > 0 else piece._replace(high=low)
        places, widths = _panels(rest, frequency)
        gain = np.maximum(-np.expm1(np.minimum(epsilon - piece.loss(places), 0.0)), 0.0)
        total += float(np.sum(piece.density(places) * widths * gain))
    return total


class _Inversion:
    """One inversion: the line, the period, and the sum at a number of frequencies."""

    def __init__(self, laws: tuple[Law, ...], epsilon: float, near: float) -> None:
        self.laws, self.epsilon, self.negligible = laws, epsilon, False
        self._resolve(0.0)
        self.order = self._line(near)
        if self.negligible:
            return
        self._resolve(FACTORS[-1] * self.order)
        self.period = self._period(near)
        self.recurrences = self._recurrences()

    def _resolve(self, order: float) -> None:
        """Take nodes between which a tilt of this order hardly changes: its mass may be next to an edge."""
        self._resolved = order
        nodes = [law.nodes(order) for law in self.laws]
        self._logs = [
            (losses, _log(weights), law.steps)
            for (losses, weights), law in zip(nodes, self.laws, strict=True)
        ]

    def log_moment(self, order: float) -> float:
        return sum(steps * float(logsumexp(order * losses + logs)) for losses, logs, steps in self._logs)

    def _slopes(self, order: float) -> tuple[float, float]:
        mean, variance = 0.0, 0.0
        for losses, logs, steps in self._logs:
            tilted = np.exp(order * losses + logs - logsumexp(order * losses + logs))
            centre = float(np.sum(tilted * losses))  # not BLAS: its threads cost more
            mean += steps * centre
            variance += steps * float(np.sum(tilted * (losses - centre) ** 2))
        return mean, variance

    def _line(self, near: float) -> float:
        """A real part near the saddle point, and well above 0. On the way it bounds δ (Chernoff)."""
        mean, variance = self._slopes(0.0)
        variance = max(variance, (0.1 * (mean - self.epsilon)) ** 2, 1e-300)
        low, high = 0.0, 1.0 / math.sqrt(variance)
        while True:
            above = self._slopes(high)[0] >= self.epsilon
            negligible = self.log_moment(high) - high * self.epsilon < math.log(near) - DIGITS
            if not above and not negligible:
                low, high = high, 2 * high
            elif self._resolved < high:
                self._resolve(high)
                low, high = 0.0, 1.0 / math.sqrt(variance)
            elif above:
                break
            else:
                self.negligible = True
                return high
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if self._slopes(middle)[0] < self.epsilon else (low, middle)
        far = 0.3 / math.sqrt(variance)  # the shorter the period, but the integrand must not exceed δ by much
        if far > self._resolved:
            self._resolve(far)
        while far > high and self._height(far) > math.log(near) + SPARE:
            far /= 1.5
        return max(0.9 * high, far)

    def _height(self, order: float) -> float:
        """The logarithm of about the largest integrand, with the length of line that it has."""
        return self.log_moment(order) - order * self.epsilon - math.log1p(order)

    def _period(self, near: float) -> float:
        """Long enough that what lies a period below or above is negligible."""
        order, base = self.order, self.log_moment(self.order)
        excess = base - order * self.epsilon - math.log(near)
        below = (DIGITS + max(-math.log(near), 0.0)) / order
        above = min(
            (self.log_moment(f * order) - base + DIGITS + max(excess, 0.0)) / ((f - 1) * order) - self.epsilon
            for f in FACTORS
        )
        return max(below, above)

    def _recurrences(self) -> list[tuple[float, float]]:
        """Where two outcomes bring the integrand back, and the share that the other laws let through."""
        found = []
        for each in self.laws:
            if len(each.atoms) == 2:
                frequency = 2 * math.pi / abs(each.atoms[0][0] - each.atoms[1][0])
                shares = [self._share(law, frequency) for law in self.laws if law is not each]
                found.append((frequency, math.prod(shares)))
        return found

    def _share(self, law: Law, frequency: float) -> float:
        try:
            losses, weights = law.nodes(frequency)
        except TooFineError:  # of a lower frequency a smooth law lets more through
            return self._share(law, frequency / 2)
        logs = self.order * losses + _log(weights)
        tilted = np.exp(logs - logsumexp(logs))
        return float(np.abs(np.sum(tilted * np.exp(1j * frequency * losses)))) ** law.steps

    def delta(self, count: int) -> tuple[float, float, float]:
        """The sum over `count` frequencies, and about the most of round-off and of what recurs beyond."""
        step = 2 * math.pi / self.period
        times = step * np.arange(count // 2 + 1)
        total, low, log_scale = np.ones(1), np.ones(1), 0.0
        off = np.zeros(1)
        threshold = self.epsilon / sum(law.steps for law in self.laws)
        for law in self.laws:
            losses, weights = law.nodes(float(times[-1]))
            logs = self.order * losses + _log(weights)
            scale = float(logsumexp(logs))
            tilted = np.exp(logs - scale)
            counts = tilted > 1e-19
            off_step = ROUND_OFF + float(np.sum(tilted[~counts]))
            losses, tilted = losses[counts], tilted[counts]
            lower = losses <= threshold  # steps that all lie here add up to no loss above ε
            below = _transform(losses[lower] / self.period, tilted[lower], count)
            both = below + _transform(losses[~lower] / self.period, tilted[~lower], count)
            size = np.abs(both)
            off = off * size**law.steps + np.abs(total) * law.steps * size ** (law.steps - 1) * off_step
            total, low = total * both**law.steps, low * below**law.steps
            log_scale += law.steps * scale
        z = self.order + 1j * times
        smooth = np.exp(-DIGITS * (times / times[-1]) ** 8)
        terms = (total - low) * smooth * np.exp(-1j * times * self.epsilon) / (z * (z + 1))
        value = 2 * float(terms.real.sum()) - float(terms[0].real)
        round_off = 2 * float(np.sum(off * smooth / np.abs(z * (z + 1))))
        unseen = sum(share / at**2 for at, share in self.recurrences if at > SEEN * times[-1])
        unseen *= 4 * float(np.sum(np.abs(total - low) * smooth))  # on both sides, and again: 1/k² of all
        scale = math.exp(log_scale - self.order * self.epsilon) / self.period
        return value * scale, round_off * scale, unseen * scale


def _log(weights: Array) -> Array:
    return np.log(weights, out=np.full_like(weights, -np.inf), where=weights > 0)


def _transform(places: Array, weights: Array, count: int) -> NDArray[np.complex128]:
    """Σ weight·e^{2πi·k·place} for k = 0 .. count/2, by spreading on a grid of twice as many points."""
    size = 2 * count
    at = (places - np.floor(places)) * size
    first = np.ceil(at - KERNEL / 2).astype(np.int64)
    grid = np.zeros(size)
    for j in range(KERNEL):
        away = np.clip((first + j - at) / (KERNEL / 2), -1.0, 1.0)
        spread = np.exp(STEEP * (np.sqrt(1 - away * away) - 1))
        grid += np.bincount((first + j) % size, weights * spread, size)
    return np.conj(rfft(grid)[: count // 2 + 1]) / _kernel_transform(count)


@functools.cache
def _kernel_transform(count: int) -> Array:
    places, widths = np.polynomial.legendre.leggauss(100)
    shape = np.exp(STEEP * (np.sqrt(1 - places**2) - 1)) * widths * KERNEL / 2
    frequencies = np.pi * np.arange(count // 2 + 1) / count * KERNEL / 2
    return np.cos(np.multiply.outer(frequencies, places)) @ shape
