# Draws: rounded normals and uniform integers for tests, Poisson subsets for sampling.py.


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


def poisson_subsets(Py_ssize_t units, uint64_t numerator, uint64_t denominator, uint64_t subsets, source=None):
    """For each unit its subset, uniform on 0..subsets-1, or -1 if the unit is not drawn.

    A unit is drawn with probability numerator/denominator exactly, independently of every other.
    """
    cdef Entropy entropy
    cdef Py_ssize_t i
    if not (0 < numerator <= denominator and 0 < subsets < 2**31):
        raise ValueError("the sampling rate must lie in (0, 1], with at least one subset")
    assignment = np.empty(units, dtype=np.int32)
    cdef int32_t[::1] view = assignment
    entropy_open(&entropy, source)
    try:
        with nogil:
            for i in range(units):
                view[i] = -1
                if uniform_below(&entropy, denominator) < numerator:
                    view[i] = <int32_t>uniform_below(&entropy, subsets)
    finally:
        entropy_wipe(&entropy)
    return assignment
