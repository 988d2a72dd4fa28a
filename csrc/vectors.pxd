# Log-probabilities to integers: each row by a rule that sees that row and public numbers alone.
#
# Each rule has a bound, which holds for the integers whatever the floating-point unit does: floats are clamped
# before they become integers, and integer arithmetic does, or checks, the rest. A row with a NaN or +inf, without
# a finite entry, or that fails its check is the zero vector, as is an absent prompt.

cimport cython
from libc.math cimport sqrt
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from rows cimport (
    add_scaled, add_to, clip_differences, clip_logits, exponentials_of, largest_of, scale_by, shrink, squared_norm,
    subtract,
)
from uniform cimport uint128

cdef extern from *:
    """
    #define DPF_GRID ((int64_t)1 << 30)
    #define DPF_LOGIT_GRID ((int64_t)1 << 20)
    """
    int64_t GRID "DPF_GRID"  # the steps in 1, for probabilities
    int64_t LOGIT_GRID "DPF_LOGIT_GRID"  # the steps in 1 nat, for logits: coarser, since they are larger

cdef enum Vectors:
    PROBABILITIES
    CENTRED
    MAX_NORMALISED
    CLIPPED_LOGITS
    CLIPPED_DIFFERENCES

cdef struct Quantiser:
    Vectors kind
    int32_t bound  # the clipping norm in grid steps, for kinds that clip
    const int32_t* centre  # of CENTRED: coordinates in 0..GRID
    const float* public_row  # of CLIPPED_DIFFERENCES: finite


cdef struct Normaliser:
    uint32_t multiplier
    int shift


@cython.cdivision(True)
cdef inline bint normalise(
    const float* row, Py_ssize_t width, float largest, int32_t* integers, Normaliser* normaliser
) noexcept nogil:
    # Integers e, and (m, k) with (m e_i >> k) = floor(GRID e_i / sum(e)) up to the 31 digits of m. m is rounded
    # down, so by integer arithmetic alone the results are non-negative and their sum is at most GRID.
    cdef int64_t total = exponentials_of(row, width, largest, integers)
    cdef uint128 multiplier
    if total < GRID:  # the largest entry alone gives GRID
        return False
    normaliser.shift = 31
    multiplier = ((<uint128>GRID) << 31) / <uint128>total
    while multiplier < (<uint64_t>1 << 31):
        normaliser.shift += 1
        multiplier = ((<uint128>GRID) << normaliser.shift) / <uint128>total
    normaliser.multiplier = <uint32_t>multiplier
    return True


cdef inline bint probabilities_of(const float* row, Py_ssize_t width, int32_t* integers) noexcept nogil:
    # A row's probabilities as integers; False for a row that counts as absent.
    cdef float largest
    cdef Normaliser normaliser
    if not (largest_of(row, width, &largest) and normalise(row, width, largest, integers, &normaliser)):
        return False
    scale_by(integers, width, normaliser.multiplier, normaliser.shift)
    return True


@cython.cdivision(True)
cdef inline bint clip_norm(int32_t* integers, Py_ssize_t width, int64_t bound, int32_t* shrunk) noexcept nogil:
    # Scales the integers down to the L2 norm `bound`, unless it holds already. Rounding towards zero shortens a
    # vector, so the first factor suffices. The check does not rely on that: further factors fall to 0.
    cdef uint128 allowed = <uint128>bound * bound
    cdef uint128 squared = squared_norm(integers, width)
    cdef double factor
    cdef double excess = 2.0**-52
    cdef Py_ssize_t i
    if squared <= allowed:
        return True
    factor = bound / sqrt(<double>squared)
    if factor > 1 - excess:
        factor = 1 - excess
    while factor > 0:
        shrink(integers, width, factor, shrunk)
        if squared_norm(shrunk, width) <= allowed:
            for i in range(width):
                integers[i] = shrunk[i]
            return True
        factor *= 1 - excess
        excess *= 2
    return False


cdef inline void add_row(
    const Quantiser* quantiser, const float* row, Py_ssize_t width, int32_t* integers, int32_t* scratch,
    int64_t* total,
) noexcept nogil:
    cdef float largest
    cdef Normaliser normaliser
    if quantiser.kind == CENTRED:
        if not probabilities_of(row, width, integers):
            return
        subtract(integers, quantiser.centre, width)
        if clip_norm(integers, width, quantiser.bound, scratch):
            add_to(integers, width, total)
        return
    if not largest_of(row, width, &largest):
        return
    if quantiser.kind == PROBABILITIES:
        if normalise(row, width, largest, integers, &normaliser):
            add_scaled(integers, width, normaliser.multiplier, normaliser.shift, total)
        return
    if quantiser.kind == MAX_NORMALISED:
        exponentials_of(row, width, largest, integers)
    elif quantiser.kind == CLIPPED_LOGITS:
        clip_logits(row, width, largest, <double>LOGIT_GRID, quantiser.bound, integers)
    else:
        clip_differences(row, quantiser.public_row, width, <double>LOGIT_GRID, quantiser.bound, integers)
    add_to(integers, width, total)
