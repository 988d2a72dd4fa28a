# The vectorised passes over one row, in plain C. rows.h documents each.

from libc.stdint cimport int32_t, int64_t, uint32_t

from uniform cimport uint128

cdef extern from "rows.h" nogil:
    bint largest_of "dpf_largest"(const float* row, Py_ssize_t width, float* largest)
    int64_t exponentials_of "dpf_exponentials"(
        const float* row, Py_ssize_t width, float largest, int32_t* integers
    )
    double exponential_sum "dpf_exponential_sum"(const float* row, Py_ssize_t width, float largest)
    void scale_by "dpf_scale"(int32_t* integers, Py_ssize_t width, uint32_t multiplier, int shift)
    void add_scaled "dpf_add_scaled"(
        const int32_t* integers, Py_ssize_t width, uint32_t multiplier, int shift, int64_t* total
    )
    void subtract "dpf_subtract"(int32_t* integers, const int32_t* centre, Py_ssize_t width)
    uint128 squared_norm "dpf_squared_norm"(const int32_t* integers, Py_ssize_t width)
    int64_t squared_distance "dpf_squared_distance"(const int32_t* one, const int32_t* other, Py_ssize_t width)
    void shrink "dpf_shrink"(const int32_t* integers, Py_ssize_t width, double factor, int32_t* shrunk)
    void clip_logits "dpf_clipped_logits"(
        const float* row, Py_ssize_t width, float largest, double grid, int32_t bound, int32_t* integers
    )
    void clip_differences "dpf_clipped_differences"(
        const float* row, const float* public_row, Py_ssize_t width, double grid, int32_t bound, int32_t* integers
    )
    void add_to "dpf_add"(const int32_t* integers, Py_ssize_t width, int64_t* total)
