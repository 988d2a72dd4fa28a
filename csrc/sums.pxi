# Noiseless sums over rows, in one loop for all kinds of vectors, and log-softmax on a support.


cdef int add_rows(const Quantiser* quantiser, const float[:, ::1] rows, int64_t* total) except -1 nogil:
    cdef Py_ssize_t width = rows.shape[1]
    cdef Py_ssize_t row
    if rows.shape[0] == 0 or width == 0:
        return 0
    cdef int32_t* integers = <int32_t*>malloc(width * sizeof(int32_t))
    cdef int32_t* scratch = <int32_t*>malloc(width * sizeof(int32_t))
    if integers != NULL and scratch != NULL:
        for row in range(rows.shape[0]):
            add_row(quantiser, &rows[row, 0], width, integers, scratch, total)
    free(scratch)
    free(integers)
    if integers == NULL or scratch == NULL:
        with gil:
            raise MemoryError
    return 0


cdef sum_of(const Quantiser* quantiser, const float[:, ::1] rows):
    total = np.zeros(rows.shape[1], dtype=np.int64)
    cdef int64_t[::1] view = total
    if total.size:
        with nogil:
            add_rows(quantiser, rows, &view[0])
    return total


def _steps(clip, largest, steps_of_one):
    # floor(clip * grid), exactly.
    if not 0 < clip <= largest:
        raise ValueError(f"the clipping norm must lie above 0 and be at most {largest}, not {clip}")
    return math.floor(Fraction(clip) * steps_of_one)


def _check_width(rows, public):
    if rows.shape[1] != public.shape[0]:
        raise ValueError(f"the rows have {rows.shape[1]} columns, the public row {public.shape[0]}")


def _narrow_centre(rows, centre):
    _check_width(rows, centre)
    checked = np.asarray(centre)
    if checked.size and not (0 <= checked.min() and checked.max() <= GRID):
        raise ValueError("the centre's coordinates must lie in 0..grid")
    return checked.astype(np.int32)


def sum_of_probabilities(const float[:, ::1] logprobs):
    """Σ grid · softmax(row) over the rows, int64 of shape (support,): the noiseless query.

    A row's integers are rounded down: non-negative, with a sum of at most `grid`. A row with a NaN or +inf, or
    without a finite entry, is the zero vector. Private: for tests and for the σ = 0 baseline.

    Args:
        logprobs: float32, (prompts, support).
    """
    cdef Quantiser quantiser = Quantiser(PROBABILITIES, 0, NULL, NULL)
    return sum_of(&quantiser, logprobs)


def sum_of_max_normalised(const float[:, ::1] logprobs):
    """Σ floor(grid · exp(row - max row)): a row's integers lie in 0..grid, the largest is `grid`.

    Bad rows are zero vectors, and the sum is private, as in `sum_of_probabilities`.
    """
    cdef Quantiser quantiser = Quantiser(MAX_NORMALISED, 0, NULL, NULL)
    return sum_of(&quantiser, logprobs)


def sum_around(const float[:, ::1] logprobs, const int64_t[::1] centre, double clip):
    """Σ clip_C(p - centre): each row's probabilities as integers, less the centre, cut to L2 norm C.

    Args:
        logprobs: float32, (prompts, support); bad rows are zero vectors, after centring.
        centre: public, int64, (support,), in grid steps, each in 0..grid.
        clip: C in (0, √2]; the integers' norm is at most floor(C · grid).

    Raises:
        ValueError: C or a coordinate of the centre is outside its range, or the widths differ.
    """
    cdef const int32_t[::1] narrow = _narrow_centre(logprobs, centre)
    cdef Quantiser quantiser = Quantiser(CENTRED, _steps(clip, LARGEST_CENTRED_CLIP, GRID), NULL, NULL)
    if narrow.shape[0]:
        quantiser.centre = &narrow[0]
    return sum_of(&quantiser, logprobs)


def sum_of_clipped_logits(const float[:, ::1] logits, double clip):
    """Σ max(-c, row - max row + c) in steps of 1/logit_grid: coordinates in ±floor(c · logit_grid).

    Args:
        logits: or log-probabilities, float32, (prompts, support); -inf counts as the lower end.
        clip: c in (0, 1000], in nats.

    Raises:
        ValueError: c is outside its range.
    """
    cdef Quantiser quantiser = Quantiser(
        CLIPPED_LOGITS, _steps(clip, LARGEST_LOGIT_CLIP, LOGIT_GRID), NULL, NULL
    )
    return sum_of(&quantiser, logits)


def sum_of_clipped_differences(const float[:, ::1] logprobs, const float[::1] public_logprobs, double clip):
    """Σ clip_[-C,C](row - public row), coordinate by coordinate, in steps of 1/logit_grid.

    Args:
        logprobs: float32, (prompts, support); -inf counts as the lower end.
        public_logprobs: float32, (support,), finite.
        clip: C in (0, 1000], in nats.

    Raises:
        ValueError: C is outside its range, the widths differ, or the public row is not finite.
    """
    _check_width(logprobs, public_logprobs)
    if not np.isfinite(public_logprobs).all():
        raise ValueError("the public row must be finite on the support")
    cdef Quantiser quantiser = Quantiser(
        CLIPPED_DIFFERENCES, _steps(clip, LARGEST_LOGIT_CLIP, LOGIT_GRID), NULL, NULL
    )
    if public_logprobs.shape[0]:
        quantiser.public_row = &public_logprobs[0]
    return sum_of(&quantiser, logprobs)


cdef void cut_log_softmax(
    const float* row, Py_ssize_t width, const int64_t* support, Py_ssize_t kept, float* cut
) noexcept nogil:
    cdef float largest = 0
    cdef double normaliser = NAN
    cdef Py_ssize_t i
    if largest_of(row, width, &largest):
        normaliser = log(exponential_sum(row, width, largest))
    for i in range(kept):
        # Subtract the largest first: next to a logit of 10^10 the logarithm would lose its digits.
        cut[i] = <float>(<double>row[support[i]] - <double>largest - normaliser)


def log_softmax(logits, support=None):
    """Log-probabilities in nats, normalised over the whole vocabulary before they are cut to the support.

    Args:
        logits: float32, (prompts, vocabulary), or one row of them.
        support: token ids; None is the whole vocabulary, in order.

    Returns:
        float32, (prompts, support), or one row. A row with a NaN or +inf, or without a finite entry, is all NaN,
        which the sums above treat as the zero vector.

    Raises:
        ValueError: a token id outside of the vocabulary.
    """
    cdef const float[:, ::1] rows = np.ascontiguousarray(np.atleast_2d(logits), dtype=np.float32)
    cdef Py_ssize_t width = rows.shape[1]
    cdef Py_ssize_t row
    ids = np.arange(width, dtype=np.int64) if support is None else np.array(support, dtype=np.int64)
    if ids.size and not (0 <= ids.min() and ids.max() < width):
        raise ValueError(f"the support's token ids must lie in 0..{width - 1}")
    cdef const int64_t[::1] kept = ids
    cut = np.empty((rows.shape[0], ids.size), dtype=np.float32)
    cdef float[:, ::1] view = cut
    if cut.size:
        with nogil:
            for row in range(rows.shape[0]):
                cut_log_softmax(&rows[row, 0], width, &kept[0], kept.shape[0], &view[row, 0])
    return cut.reshape(np.shape(logits)[:-1] + (ids.size,))
