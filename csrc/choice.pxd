# Exact choices among integer scores: docs/proofs/exact-choice.md.
#
# Both need exp(-gap * rate), where gap is the distance to the best score and rate a rational number. The fast
# path computes it to within CHOICE_GUARD units of 2^-64. Where that does not suffice,
# `dpfewshot/exact/choice.py` decides.

from libc.stdint cimport int64_t, uint64_t

from exponential cimport WHOLES, Exponentials, exponential_of_minus, high_half
from uniform cimport uint128

cdef enum:
    CHOICE_GUARD = 256  # in units of 2^-64; the proof needs 140
    WEIGHT_DIGITS = 44  # of the weights' enclosures: the sum of 2^18 of them stays below 2^63

cdef struct Rate:
    uint64_t mantissa  # mantissa <= 2^shift * rate < mantissa + 1
    int shift  # 57..127
    void* fraction  # the Python tuple (numerator, denominator), borrowed

cdef struct Weight:
    uint64_t low  # low <= 2^WEIGHT_DIGITS * exp(-gap * rate) <= high
    uint64_t high


cdef inline uint64_t exponential_of_gap(
    const Exponentials* tables, const Rate* rate, uint64_t gap
) noexcept nogil:
    # exp(-gap * rate) in units of 2^-64, with an error below CHOICE_GUARD.
    cdef uint128 product = <uint128>gap * rate.mantissa
    cdef uint128 whole = product >> rate.shift
    if whole >= WHOLES:
        return 0
    cdef uint64_t fraction = <uint64_t>((product << (128 - rate.shift)) >> 65)  # in units of 2^-63
    return high_half(tables.wholes[<uint64_t>whole], exponential_of_minus(tables, fraction))


cdef inline int keep(const Exponentials* tables, const Rate* rate, uint64_t gap, uint64_t v) noexcept nogil:
    # 1 if the uniform number with first 64 digits v lies below exp(-gap * rate), 0 if not, -1 if undecided.
    cdef uint64_t bound = exponential_of_gap(tables, rate, gap)
    if v >= bound:
        return 0 if v - bound >= CHOICE_GUARD else -1
    return 1 if bound - v > CHOICE_GUARD else -1


cdef inline Weight weight_of(const Exponentials* tables, const Rate* rate, uint64_t gap) noexcept nogil:
    # CHOICE_GUARD is less than one unit of the weights, so one unit on each side of the floor encloses it.
    cdef Weight weight
    cdef uint64_t one = <uint64_t>1 << WEIGHT_DIGITS
    cdef uint64_t whole = exponential_of_gap(tables, rate, gap) >> (64 - WEIGHT_DIGITS)
    weight.low = one if gap == 0 else (whole - 1 if whole > 0 else 0)
    weight.high = one if whole + 2 > one else whole + 2
    return weight


cdef inline Py_ssize_t cell_of(const uint64_t* cumulative, Py_ssize_t width, uint64_t position) noexcept nogil:
    # The first cell whose cumulative weight is above the position.
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = width - 1
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) >> 1
        if cumulative[middle] > position:
            high = middle
        else:
            low = middle + 1
    return low
