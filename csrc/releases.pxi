# Releases: exact noise or an exact choice, and the resulting index.


cdef int rate_open(Rate* rate, fraction) except -1:
    mantissa, shift = exact_choice.fixed_point(*fraction)
    rate.mantissa = mantissa
    rate.shift = shift
    rate.fraction = <void*>fraction
    return 0


cdef int decide(
    const Rate* rate, Entropy* entropy, uint64_t gap, uint64_t value, int digits
) except -1 with gil:
    # Python draws the remaining digits.
    source = None if entropy.source == NULL else <object>entropy.source
    return exact_choice.decide_words(value, digits, gap, <object>rate.fraction, source)


cdef int64_t largest_score(const int64_t* scores, Py_ssize_t width) noexcept nogil:
    cdef int64_t best = scores[0]
    cdef Py_ssize_t i
    for i in range(1, width):
        if scores[i] > best:
            best = scores[i]
    return best


cdef Py_ssize_t flip(const int64_t* scores, Py_ssize_t width, const Rate* rate, Entropy* entropy) except -1 nogil:
    # A coin for every candidate, and a winner uniform among the heads: the n-th head replaces the winner
    # so far with probability 1/n.
    cdef int64_t best = largest_score(scores, width)
    cdef Py_ssize_t i, winner = 0
    cdef uint64_t gap, v
    cdef uint64_t heads = 0
    cdef int kept
    for i in range(width):
        gap = <uint64_t>best - <uint64_t>scores[i]
        kept = 1
        if gap > 0:
            v = next_word(entropy)
            kept = keep(&TABLES.exponentials, rate, gap, v)
            if kept < 0:
                kept = decide(rate, entropy, gap, v, 64)
        if kept:
            heads += 1
            if heads == 1 or uniform_below(entropy, heads) == 0:
                winner = i
    return winner


cdef Py_ssize_t draw_softmax(
    const int64_t* scores, Py_ssize_t width, const Rate* rate, Entropy* entropy, uint64_t* cumulative
) except -1 nogil:
    # Propose by integer weights that are slightly too high, and keep proposals below the exact weight.
    cdef int64_t best = largest_score(scores, width)
    cdef uint64_t total = 0
    cdef uint64_t gap, position
    cdef Py_ssize_t i
    cdef Weight weight
    for i in range(width):
        total += weight_of(&TABLES.exponentials, rate, <uint64_t>best - <uint64_t>scores[i]).high
        cumulative[i] = total
    while True:
        position = uniform_below(entropy, total)
        i = cell_of(cumulative, width, position)
        gap = <uint64_t>best - <uint64_t>scores[i]
        weight = weight_of(&TABLES.exponentials, rate, gap)
        position -= cumulative[i] - weight.high
        if position < weight.low or decide(rate, entropy, gap, position, WEIGHT_DIGITS):
            return i


cdef _check_support(Py_ssize_t width):
    if not 0 < width <= WIDEST:
        raise ValueError(f"the support must hold 1 to {WIDEST} candidates, not {width}")


def weight_enclosure(uint64_t gap, numerator, denominator):
    """The fast path's enclosure (low, high) of 2^44 exp(-gap · numerator/denominator). For tests."""
    cdef Rate rate
    fraction = (int(numerator), int(denominator))
    rate_open(&rate, fraction)
    cdef Weight weight = weight_of(&TABLES.exponentials, &rate, gap)
    return weight.low, weight.high


def permute_and_flip(const int64_t[::1] scores, numerator, denominator, source=None):
    """The index of the largest of scores + exponential noise of mean denominator/numerator, exactly.

    Args:
        scores: int64, (support,), 1 to 2^18 of them.
        numerator: of the rate, a positive integer of any size; the noise is in steps of the scores.
        denominator: of the rate, a positive integer of any size.
        source: for tests alone: n to n uniform bytes; None is the operating system's generator.

    Raises:
        ValueError: an empty or too wide support, or a rate that is not positive.
    """
    cdef Entropy entropy
    cdef Rate rate
    cdef Py_ssize_t winner
    _check_support(scores.shape[0])
    fraction = (int(numerator), int(denominator))
    rate_open(&rate, fraction)
    entropy_open(&entropy, source)
    try:
        with nogil:
            winner = flip(&scores[0], scores.shape[0], &rate, &entropy)
    finally:
        entropy_wipe(&entropy)
    return winner


def sample_softmax(const int64_t[::1] scores, numerator, denominator, source=None):
    """An index, with probability proportional to exp(score · numerator/denominator), exactly.

    Arguments and errors are those of `permute_and_flip`.
    """
    cdef Entropy entropy
    cdef Rate rate
    cdef Py_ssize_t index
    _check_support(scores.shape[0])
    fraction = (int(numerator), int(denominator))
    rate_open(&rate, fraction)
    cdef uint64_t* cumulative = <uint64_t*>malloc(scores.shape[0] * sizeof(uint64_t))
    if cumulative == NULL:
        raise MemoryError
    entropy_open(&entropy, source)
    try:
        with nogil:
            index = draw_softmax(&scores[0], scores.shape[0], &rate, &entropy, cumulative)
    finally:
        entropy_wipe(&entropy)
        free(cumulative)
    return index


cdef noisy(const int64_t[::1] total, scale, source):
    # total + round(N(0, scale²)), drawn afresh for every coordinate.
    cdef Entropy entropy
    cdef Normal normal
    cdef Py_ssize_t i
    entropy_open(&entropy, source)
    normal_open(&normal, &entropy, scale)
    found = np.empty(total.shape[0], dtype=np.int64)
    cdef int64_t[::1] view = found
    try:
        with nogil:
            for i in range(total.shape[0]):
                view[i] = total[i] + rounded_normal(&normal)
    finally:
        entropy_wipe(&entropy)
    return found


def noisy_sum_of_probabilities(const float[:, ::1] logprobs, scale, source=None):
    """`sum_of_probabilities` + round(N(0, scale²)), int64 of shape (support,).

    The noise is in grid steps, drawn afresh for every coordinate. The noiseless sum does not leave this
    function.
    """
    return noisy(sum_of_probabilities(logprobs), scale, source)


def noisy_sum_around(
    const float[:, ::1] logprobs, const int64_t[::1] centre, double clip, prompts, scale, source=None
):
    """prompts · centre + `sum_around` + round(N(0, scale²)), int64 of shape (support,).

    Args:
        prompts: M, the constant number of prompts, 1 to 2^20. M times the centre is added after the noise, so
            an absent prompt counts as the centre.

    Raises:
        ValueError: M is outside its range, or as in `sum_around`.
    """
    if not 1 <= prompts <= LARGEST_COUNT:
        raise ValueError(f"the number of prompts must lie in 1..{LARGEST_COUNT}, not {prompts}")
    released = noisy(sum_around(logprobs, centre, clip), scale, source)
    return released + np.asarray(centre) * prompts


def sample_of_clipped_logits(const float[:, ::1] logits, double clip, numerator, denominator, source=None):
    """A token of private prediction: softmax of `sum_of_clipped_logits` times the rate.

    For the mean over s prompts at temperature τ the rate is 1/(s·τ·logit_grid).
    """
    return sample_softmax(sum_of_clipped_logits(logits, clip), numerator, denominator, source)


def sample_of_clipped_differences(
    const float[:, ::1] logprobs,
    const float[::1] public_logprobs,
    double clip,
    prompts,
    numerator,
    denominator,
    source=None,
):
    """A token of InvisibleInk: softmax of B·public row + `sum_of_clipped_differences`, times the rate.

    At temperature τ the rate is 1/(B·τ·logit_grid). The public row is rounded to the grid and clipped
    to ±2^20 nats.

    Args:
        prompts: B, the constant number of prompts, 1 to 2^20.

    Raises:
        ValueError: B is outside its range, or as in `sum_of_clipped_differences` and `sample_softmax`.
    """
    if not 1 <= prompts <= LARGEST_COUNT:
        raise ValueError(f"the number of prompts must lie in 1..{LARGEST_COUNT}, not {prompts}")
    total = sum_of_clipped_differences(logprobs, public_logprobs, clip)
    cut = np.clip(np.asarray(public_logprobs, dtype=np.float64), -LARGEST_LOGIT, LARGEST_LOGIT)
    public = np.rint(cut * LOGIT_GRID).astype(np.int64) * prompts
    return sample_softmax(public + total, numerator, denominator, source)
