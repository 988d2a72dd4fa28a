# round(N(0, s^2)) for an integer s, sampled exactly: docs/proofs/exact-normal.md.
#
# |N| is (cell + x) / 8: the cell is drawn with weight exp(-cell^2 / 128), x is uniform on [0, 1), and the
# pair is kept with probability exp(-x (2 cell + x) / 128). Each decision compares the first 64 digits of a
# uniform number with an integer enclosure of a real one, without floating point. Where 64 digits do not
# suffice, `dpfewshot/exact/normal.py` decides: it states the algorithm for any number of digits.

from libc.stdint cimport int64_t, uint64_t

from entropy cimport Entropy, next_word
from exponential cimport Exponentials, exponential_of_minus, high_half
from uniform cimport uint128

cdef enum:
    CELLS_PER_UNIT = 8
    CELLS = 80
    GUARD = 64  # in units of 2^-64; the proof needs 10

cdef struct Normal:
    Entropy* entropy
    uint64_t steps_per_cell  # s / 8
    uint64_t signs
    int signs_left

cdef struct NormalTables:
    uint64_t cells[CELLS]  # floor(2^64 P(cell <= k)); the last ones are 2^64 - 1
    Exponentials exponentials
    unsigned char first_cell[256]  # by a word's leading byte: the lowest cell that it can fall in


cdef inline int64_t signed_magnitude(Normal* normal, uint64_t magnitude) except? -1 nogil:
    if normal.signs_left == 0:
        normal.signs = next_word(normal.entropy)
        normal.signs_left = 64
    cdef uint64_t sign = normal.signs & 1
    normal.signs >>= 1
    normal.signs_left -= 1
    return -<int64_t>magnitude if sign else <int64_t>magnitude


cdef inline int propose(
    Normal* normal, const NormalTables* tables, uint64_t u, uint64_t x, uint64_t v, uint64_t* magnitude
) noexcept nogil:
    # 1: kept, with its magnitude; 0: rejected; -1: 64 digits do not decide.
    cdef uint64_t cell = tables.first_cell[u >> 56]
    while u > tables.cells[cell]:
        cell += 1
    if u == tables.cells[cell]:
        return -1
    cdef uint64_t exponent = <uint64_t>((high_half(x, x) + <uint128>(2 * cell) * x) >> 8)
    cdef uint64_t bound = exponential_of_minus(&tables.exponentials, exponent)
    if v >= bound:
        return 0 if v - bound >= GUARD else -1
    if bound - v <= GUARD:
        return -1
    cdef uint128 scaled = <uint128>normal.steps_per_cell * x + (<uint64_t>1 << 63)
    if <uint64_t>scaled + normal.steps_per_cell < normal.steps_per_cell:
        return -1  # rounding to the grid depends on further digits of x
    magnitude[0] = normal.steps_per_cell * cell + <uint64_t>(scaled >> 64)
    return 1
