# Uniform 64-bit words from the operating system's CSPRNG, fetched in bulk.
#
# An `Entropy` lives on the stack of one call and is wiped when that call ends. Nothing outlives the call, so
# threads share no word of it and a fork copies no buffer.

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from "sys/random.h" nogil:
    ssize_t getrandom(void* buffer, size_t length, unsigned int flags)

cdef extern from "string.h" nogil:
    void explicit_bzero(void* buffer, size_t length)

cdef enum:
    ENTROPY_WORDS = 512

cdef struct Entropy:
    uint64_t words[ENTROPY_WORDS]
    size_t position
    void* source  # a Python callable n -> n bytes, for tests; NULL is the operating system


cdef inline void entropy_open(Entropy* entropy, source):
    entropy.position = ENTROPY_WORDS
    entropy.source = NULL if source is None else <void*>source


cdef inline void entropy_wipe(Entropy* entropy) noexcept nogil:
    explicit_bzero(entropy.words, sizeof(entropy.words))
    entropy.position = ENTROPY_WORDS


cdef inline int refill_from_source(Entropy* entropy, size_t wanted) except -1:
    data = (<object>entropy.source)(wanted)
    if not isinstance(data, bytes) or len(data) != wanted:
        raise ValueError("an injected entropy source must return exactly the bytes that it was asked for")
    memcpy(entropy.words, <const char*>data, wanted)
    return 0


cdef inline int after_failed_getrandom(int error) except -1:
    # A signal may interrupt a long request: let Python handle it, then ask again. Any other failure stops the
    # release, since there is no other source of noise.
    if error == EINTR:
        PyErr_CheckSignals()
    else:
        PyErr_SetFromErrno(OSError)
    return 0


cdef inline int entropy_refill(Entropy* entropy) except -1 nogil:
    cdef size_t wanted = sizeof(entropy.words)
    cdef size_t filled = 0
    cdef ssize_t got
    cdef int error
    if entropy.source != NULL:
        with gil:
            refill_from_source(entropy, wanted)
        filled = wanted
    while filled < wanted:
        got = getrandom(<uint8_t*>entropy.words + filled, wanted - filled, 0)
        if got > 0:
            filled += <size_t>got
        else:
            error = errno
            with gil:
                after_failed_getrandom(error)
    entropy.position = 0
    return 0


cdef inline uint64_t next_word(Entropy* entropy) except? 0 nogil:
    if entropy.position == ENTROPY_WORDS:
        entropy_refill(entropy)
    entropy.position += 1
    return entropy.words[entropy.position - 1]
