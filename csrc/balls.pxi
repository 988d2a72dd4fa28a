# Balls: how many rows lie in the ball around a centre, and how well a radius gathers the rows of a draw.
#
# A row is its probabilities as integers, exactly as in the sums. A row that is absent there lies in no ball and
# has none of its own. A radius r is floor(r · grid) steps, and squared distances are compared as integers.


cdef int64_t rows_within(const float[:, ::1] rows, const int32_t* centre, int64_t radius) except -1 nogil:
    cdef Py_ssize_t width = rows.shape[1]
    cdef Py_ssize_t row
    cdef uint128 allowed = <uint128>radius * radius
    cdef int64_t found = 0
    if rows.shape[0] == 0 or width == 0:
        return 0
    cdef int32_t* integers = <int32_t*>malloc(width * sizeof(int32_t))
    if integers == NULL:
        with gil:
            raise MemoryError
    for row in range(rows.shape[0]):
        if not probabilities_of(&rows[row, 0], width, integers):
            continue
        subtract(integers, centre, width)
        if squared_norm(integers, width) <= allowed:
            found += 1
    free(integers)
    return found


def _radius_steps(radius):
    # floor(radius * grid), exactly.
    if not 0 <= radius <= LARGEST_CENTRED_CLIP:
        raise ValueError(f"the radius must lie between 0 and {LARGEST_CENTRED_CLIP}, not {radius}")
    return math.floor(Fraction(radius) * GRID)


def count_within(const float[:, ::1] logprobs, const int64_t[::1] centre, double radius):
    """How many rows' probabilities lie within the radius of the centre, in L2.

    Args:
        logprobs: float32, (prompts, support).
        centre: public, int64, (support,), in grid steps, each in 0..grid.
        radius: r in 0..√2.

    Raises:
        ValueError: the radius or a coordinate of the centre is outside its range, or the widths differ.
    """
    cdef const int32_t[::1] narrow = _narrow_centre(logprobs, centre)
    cdef int64_t steps = _radius_steps(radius)
    cdef int64_t found = 0
    if narrow.shape[0]:
        with nogil:
            found = rows_within(logprobs, &narrow[0], steps)
    return found


def noisy_count_within(
    const float[:, ::1] logprobs, const int64_t[::1] centre, double radius, scale, source=None
):
    """count_grid · `count_within` + round(N(0, scale²)), an int; the noise is in steps of 1/count_grid.

    One row more or less, or one row replaced, changes the count by at most 1.
    """
    return noisy_counts([count_within(logprobs, centre, radius)], scale, source)[0]


cdef noisy_counts(counts, scale, source):
    return noisy(np.array(counts, dtype=np.int64) * COUNT_GRID, scale, source).tolist()


cdef class Distances:
    """The squared distances between the rows of a draw, computed once and kept here: private.

    Mechanisms read only noisy scores from it.

    Args:
        logprobs: float32, (prompts, support).
    """

    cdef Py_ssize_t rows
    cdef int64_t[:, ::1] squared  # below the diagonal

    def __cinit__(self, const float[:, ::1] logprobs):
        cdef Py_ssize_t width = logprobs.shape[1]
        self.rows = 0
        self.squared = np.zeros((logprobs.shape[0], logprobs.shape[0]), dtype=np.int64)
        if logprobs.shape[0] == 0 or width == 0:
            return
        cdef int32_t* integers = <int32_t*>malloc(logprobs.shape[0] * width * sizeof(int32_t))
        if integers == NULL:
            raise MemoryError
        with nogil:
            self.rows = present_rows(logprobs, integers)
            add_distances(integers, self.rows, width, self.squared)
        free(integers)

    def scores(self, radii, size):
        """For each radius r the sum of the t largest of min(B_r(row), t): Gao et al.'s t · L(r).

        B_r(row) is the number of rows within r of the row, itself included. If there are fewer than t rows,
        the missing ones count 0. For tests.

        Args:
            radii: each r in 0..√2.
            size: t, a constant, 1 to 2^20.

        Raises:
            ValueError: a radius or t is outside its range.
        """
        if not 1 <= size <= LARGEST_COUNT:
            raise ValueError(f"the size of the cluster must lie in 1..{LARGEST_COUNT}, not {size}")
        return [self.score(_radius_steps(radius), size) for radius in radii]

    def noisy_scores(self, radii, size, scale, source=None):
        """count_grid · `scores` + round(N(0, scale²)), a list of ints.

        The noise is in steps of 1/count_grid, drawn afresh for every radius. One row more or less, or one row
        replaced, changes a score by at most 2t - 1.
        """
        return noisy_counts(self.scores(radii, size), scale, source)

    cdef int64_t score(self, int64_t radius, int64_t size) except -1:
        cdef int64_t* counts = <int64_t*>malloc((self.rows + 1) * sizeof(int64_t))
        cdef int64_t* tally = <int64_t*>malloc((self.rows + 1) * sizeof(int64_t))
        cdef int64_t total = 0
        if counts != NULL and tally != NULL:
            with nogil:
                count_balls(self.squared, self.rows, radius * radius, counts)
                total = sum_of_largest(counts, self.rows, size, tally)
        free(tally)
        free(counts)
        if counts == NULL or tally == NULL:
            raise MemoryError
        return total


cdef Py_ssize_t present_rows(const float[:, ::1] logprobs, int32_t* integers) noexcept nogil:
    # Copies the present rows, one after the other; returns their number.
    cdef Py_ssize_t width = logprobs.shape[1]
    cdef Py_ssize_t row, present = 0
    for row in range(logprobs.shape[0]):
        if probabilities_of(&logprobs[row, 0], width, integers + present * width):
            present += 1
    return present


cdef void add_distances(
    const int32_t* integers, Py_ssize_t rows, Py_ssize_t width, int64_t[:, ::1] squared
) noexcept nogil:
    # In stretches of columns, so that the pieces of all rows fit the processor's cache.
    cdef Py_ssize_t start, count, i, j
    for start in range(0, width, 1024):
        count = min(width - start, 1024)
        for i in range(rows):
            for j in range(i):
                squared[i, j] += squared_distance(
                    integers + i * width + start, integers + j * width + start, count
                )


cdef void count_balls(
    const int64_t[:, ::1] squared, Py_ssize_t rows, int64_t allowed, int64_t* counts
) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(rows):
        counts[i] = 1  # itself
        for j in range(i):
            if squared[i, j] <= allowed:
                counts[i] += 1
                counts[j] += 1


cdef int64_t sum_of_largest(
    const int64_t* counts, Py_ssize_t rows, int64_t size, int64_t* tally
) noexcept nogil:
    # The sum of the `size` largest of min(count, size), by how often each value occurs.
    cdef Py_ssize_t i
    cdef int64_t total = 0, left = size, taken
    for i in range(rows + 1):
        tally[i] = 0
    for i in range(rows):
        tally[min(counts[i], size)] += 1
    for i in range(rows, 0, -1):
        taken = min(tally[i], left)
        total += taken * i
        left -= taken
    return total
