# Exact discrete draws: uniform integers below a bound, which also give rational Bernoulli trials.

cimport cython
from libc.stdint cimport uint64_t

from entropy cimport Entropy, next_word

cdef extern from "rows.h":
    # Declared as the widest integer that Cython knows; the C compiler sees 128 bits.
    ctypedef unsigned long long uint128 "dpf_uint128"


@cython.cdivision(True)
cdef inline uint64_t uniform_below(Entropy* entropy, uint64_t bound) except? 0 nogil:
    # Lemire (2019), algorithm 5: multiply and reject, exactly uniform on 0..bound-1 for bound >= 1.
    cdef uint128 product = <uint128>next_word(entropy) * bound
    cdef uint64_t unfair
    if <uint64_t>product < bound:
        unfair = (<uint64_t>(0 - bound)) % bound
        while <uint64_t>product < unfair:
            product = <uint128>next_word(entropy) * bound
    return <uint64_t>(product >> 64)
