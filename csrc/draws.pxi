# Draws: rounded normals and uniform integers for tests, Poisson subsets for sampling.py.

cdef extern from *:
    int population_count "__builtin_popcountll"(unsigned long long word) nogil
    int trailing_zeros "__builtin_ctzll"(unsigned long long word) nogil


cdef int64_t undecided(Normal* normal, uint64_t u, uint64_t x, uint64_t v) except? -1:
    # Python draws the remaining digits: -2 if the proposal is rejected.
    source = None if normal.entropy.source == NULL else <object>normal.entropy.source
    magnitude = exact_normal.decide_words(u, x, v, normal.steps_per_cell, source)
    return -2 if magnitude is None else min(magnitude, LARGEST_NOISE)


cdef int64_t rounded_normal(Normal* normal) except? -1 nogil:
    cdef uint64_t u, x, v
    cdef uint64_t magnitude = 0
    cdef int64_t late
    cdef int kept
    while True:
        u = next_word(normal.entropy)
        x = next_word(normal.entropy)
        v = next_word(normal.entropy)
        kept = propose(normal, &TABLES, u, x, v, &magnitude)
        if kept == 1:
            return signed_magnitude(normal, magnitude)
        if kept == -1:
            with gil:
                late = undecided(normal, u, x, v)
            if late >= 0:
                return signed_magnitude(normal, <uint64_t>late)


cdef int normal_open(Normal* normal, Entropy* entropy, scale) except -1:
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(f"the noise scale must lie in 1..2^48 grid steps, not {scale}")
    normal.steps_per_cell = exact_normal.check_scale(scale)
    normal.entropy = entropy
    normal.signs_left = 0
    return 0


def rounded_normals(scale, Py_ssize_t count, source=None):
    """`count` exact draws of round(N(0, scale²)), int64.

    For tests and benchmarks: the mechanisms draw their noise where they use it.
    """
    cdef Entropy entropy
    cdef Normal normal
    cdef Py_ssize_t i
    draws = np.empty(count, dtype=np.int64)
    cdef int64_t[::1] view = draws
    entropy_open(&entropy, source)
    normal_open(&normal, &entropy, scale)
    try:
        with nogil:
            for i in range(count):
                view[i] = rounded_normal(&normal)
    finally:
        entropy_wipe(&entropy)
    return draws


def uniform_integers(uint64_t bound, Py_ssize_t count, source=None):
    """`count` exact draws from 0..bound-1, uint64."""
    cdef Entropy entropy
    cdef Py_ssize_t i
    if bound < 1:
        raise ValueError("the bound must be at least 1")
    draws = np.empty(count, dtype=np.uint64)
    cdef uint64_t[::1] view = draws
    entropy_open(&entropy, source)
    try:
        with nogil:
            for i in range(count):
                view[i] = uniform_below(&entropy, bound)
    finally:
        entropy_wipe(&entropy)
    return draws


cdef uint64_t fair_binomial(Entropy* entropy, uint64_t trials) except? 0 nogil:
    # The ones among so many random bits.
    cdef uint64_t ones = 0
    while trials >= 64:
        ones += population_count(next_word(entropy))
        trials -= 64
    if trials > 0:
        ones += population_count(next_word(entropy) >> (64 - trials))
    return ones


cdef uint64_t binomial(Entropy* entropy, uint64_t trials, uint64_t numerator, uint64_t denominator) except? 0 nogil:
    # So many uniform numbers are compared with q, binary digit by digit, q's next digit being floor(2 * rest / d):
    # `below` is decided, `tied` has the digits of q so far. docs/proofs/sampling.md, Lemma 5.
    cdef uint64_t below = 0
    cdef uint64_t tied = trials
    cdef uint64_t ones
    cdef uint128 rest = numerator
    while tied > 0 and rest > 0:
        rest = 2 * rest
        ones = fair_binomial(entropy, tied)
        if rest >= denominator:
            rest = rest - denominator
            below += tied - ones
            tied = ones
        else:
            tied -= ones
    return below


cdef int mark_subset(Entropy* entropy, uint64_t[::1] marks, uint64_t size, uint64_t units) except -1 nogil:
    # Floyd's algorithm (Bentley and Floyd 1987): every subset of this size is equally likely. One bit a unit.
    cdef uint64_t last, unit
    for last in range(units - size, units):
        unit = uniform_below(entropy, last + 1)
        if marks[unit >> 6] >> (unit & 63) & 1:
            unit = last
        marks[unit >> 6] |= <uint64_t>1 << (unit & 63)
    return 0


def poisson_subsets(Py_ssize_t units, uint64_t numerator, uint64_t denominator, uint64_t subsets, source=None):
    """The units drawn, ascending, int64, and for each its subset, uniform on 0..subsets-1, int32.

    A unit is drawn with probability numerator/denominator exactly, independently of every other. The number of
    drawn units comes first, then which they are: two random bits a unit in all.
    """
    cdef Entropy entropy
    cdef uint64_t size = 0
    cdef uint64_t word
    cdef Py_ssize_t i, place
    if not (0 < numerator <= denominator and 0 < subsets < 2**31):
        raise ValueError("the sampling rate must lie in (0, 1], with at least one subset")
    cdef uint64_t[::1] marks = np.zeros((units + 63) >> 6, dtype=np.uint64)
    cdef int64_t[::1] drawn
    cdef int32_t[::1] assigned
    entropy_open(&entropy, source)
    try:
        with nogil:
            size = binomial(&entropy, units, numerator, denominator)
            mark_subset(&entropy, marks, size, units)
        members, assignment = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int32)
        drawn, assigned = members, assignment
        with nogil:
            place = 0
            for i in range(marks.shape[0]):
                word = marks[i]
                while word != 0:
                    drawn[place] = 64 * i + trailing_zeros(word)
                    assigned[place] = <int32_t>uniform_below(&entropy, subsets)
                    word &= word - 1
                    place += 1
    finally:
        entropy_wipe(&entropy)
    return members, assignment
