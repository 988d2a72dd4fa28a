# exp(-x) in 64 binary digits, by integer arithmetic: docs/proofs/exact-normal.md and exact-choice.md.

cimport cython
from libc.stdint cimport uint64_t

from uniform cimport uint128

cdef enum:
    FRACTIONS = 80
    WHOLES = 64

cdef struct Exponentials:
    uint64_t fractions[FRACTIONS]  # floor(2^64 exp(-i / 64)), at most 2^64 - 1
    uint64_t wholes[WHOLES]  # floor(2^64 exp(-i)), at most 2^64 - 1


cdef inline uint64_t high_half(uint64_t a, uint64_t b) noexcept nogil:
    return <uint64_t>((<uint128>a * b) >> 64)


@cython.cdivision(True)
cdef inline uint64_t exponential_of_minus(const Exponentials* tables, uint64_t exponent) noexcept nogil:
    # exp(-exponent / 2^63) in units of 2^-64, with an error below 4.2, for exponent / 2^63 below 80/64.
    cdef uint64_t rest = (exponent << 7) >> 6  # below 1/64, in units of 2^-64
    # 1 - exp(-r) = r (1 - r/2 (1 - r/3 (...))), to the eighth order: the next term is below 2^-72.
    cdef uint64_t series = rest / 8
    series = rest / 7 - high_half(rest / 7, series)
    series = rest / 6 - high_half(rest / 6, series)
    series = rest / 5 - high_half(rest / 5, series)
    series = rest / 4 - high_half(rest / 4, series)
    series = rest / 3 - high_half(rest / 3, series)
    series = rest / 2 - high_half(rest / 2, series)
    series = rest - high_half(rest, series)
    cdef uint64_t whole = tables.fractions[exponent >> 57]
    return whole - high_half(whole, series)
