/* Passes over one row of float32 log-probabilities, in plain C that a compiler can vectorise.
 *
 * Every result is a function of the row alone, with the same bits on every instruction set: additions and products
 * are rounded one by one (the build forbids contraction), sums of floats use a fixed number of lanes, and all other
 * sums are of integers. No privacy bound depends on that, or on the accuracy of any float here: values are clamped
 * before they become integers, and the bounds are facts about integers.
 */
#ifndef DPFEWSHOT_ROWS_H
#define DPFEWSHOT_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One copy of each pass for each instruction set, chosen when the module is loaded. */
#if defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define DPF_CLONES __attribute__((noinline, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DPF_CLONES
#endif

#define DPF_LANES 16
#define DPF_STRETCH 1024

typedef unsigned __int128 dpf_uint128;

static inline int32_t dpf_bits(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float dpf_float(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The float's place in the order -NaN < -inf < ... < +inf < +NaN, as an integer. Its own inverse. */
static inline int32_t dpf_place(int32_t bits)
{
    return bits ^ ((bits >> 31) & INT32_MAX);
}

/* Finds the largest entry. Returns 0 for a row with a NaN or +inf, or without a finite entry. */
DPF_CLONES static int dpf_largest(const float *restrict row, ptrdiff_t width, float *restrict largest)
{
    const int32_t infinity = 0x7f800000, minus_infinity = ~0x7f800000;
    int32_t top = INT32_MIN, bottom = INT32_MAX;
    for (ptrdiff_t i = 0; i < width; i++) {
        int32_t place = dpf_place(dpf_bits(row[i]));
        top = place > top ? place : top;
        bottom = place < bottom ? place : bottom;
    }
    *largest = dpf_float(dpf_place(top));
    return top < infinity && top > minus_infinity && bottom >= minus_infinity;
}

/* exp(y - largest) for a stretch of a row, with a relative error of at most 3e-7 + 6e-8 |y - largest|. Exactly 1 at
 * the largest; values below exp(-87) become exp(-87). Cephes' expf: 2^n exp(r), |r| <= ln(2)/2. */
static inline void dpf_stretch(const float *restrict row, int width, float largest, float *restrict exponentials)
{
    const float shifter = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    for (int i = 0; i < width; i++) {
        float y = row[i] - largest;
        y = y > -87.0f ? y : -87.0f;
        float shifted = y * 1.44269504f + shifter;
        float n = shifted - shifter;
        float r = y - n * 0.693359375f;
        r = r - n * -2.12194440e-4f;
        float square = r * r;
        float high = 1.9875691500e-4f * r + 1.3981999507e-3f;
        float middle = 8.3334519073e-3f * r + 4.1665795894e-2f;
        float low = 1.6666665459e-1f * r + 5.0000001201e-1f;
        float series = ((high * square + middle) * square + low) * square + r + 1.0f;
        exponentials[i] = dpf_float(dpf_bits(series) + (int32_t)((uint32_t)dpf_bits(shifted) << 23));
    }
}

/* floor(2^30 exp(row - largest)), in 0..2^30 whatever the floats are. Returns the integers' sum. */
DPF_CLONES static int64_t dpf_exponentials(const float *restrict row, ptrdiff_t width, float largest,
                                           int32_t *restrict integers)
{
    float exponentials[DPF_STRETCH];
    int64_t sum = 0;
    for (ptrdiff_t start = 0; start < width; start += DPF_STRETCH) {
        int count = width - start < DPF_STRETCH ? (int)(width - start) : DPF_STRETCH;
        dpf_stretch(row + start, count, largest, exponentials);
        for (int i = 0; i < count; i++) {
            int32_t bits = dpf_bits(exponentials[i]); /* for floats in 0..1, ordered as they are */
            bits = bits < 0x3f800000 ? bits : 0x3f800000;
            bits = bits > 0 ? bits : 0;
            integers[start + i] = (int32_t)(dpf_float(bits) * 1073741824.0f);
        }
        for (int i = 0; i < count; i++)
            sum += integers[start + i];
    }
    return sum;
}

/* The sum of exp(row - largest) over fixed lanes: entry i goes to lane i mod 16. */
DPF_CLONES static double dpf_exponential_sum(const float *restrict row, ptrdiff_t width, float largest)
{
    float exponentials[DPF_STRETCH];
    double lanes[DPF_LANES] = {0};
    double sum = 0;
    for (ptrdiff_t start = 0; start < width; start += DPF_STRETCH) {
        int count = width - start < DPF_STRETCH ? (int)(width - start) : DPF_STRETCH;
        dpf_stretch(row + start, count, largest, exponentials);
        for (int i = count; i % DPF_LANES; i++)
            exponentials[i] = 0;
        for (int i = 0; i < count; i += DPF_LANES)
            for (int lane = 0; lane < DPF_LANES; lane++)
                lanes[lane] += (double)exponentials[i + lane];
    }
    for (int lane = 0; lane < DPF_LANES; lane++)
        sum += lanes[lane];
    return sum;
}

/* (multiplier * integer) >> shift, for integers in 0..2^30 and shifts to at most 2^30 each. */
DPF_CLONES static void dpf_scale(int32_t *restrict integers, ptrdiff_t width, uint32_t multiplier, int shift)
{
    for (ptrdiff_t i = 0; i < width; i++)
        integers[i] = (int32_t)(((uint64_t)(uint32_t)integers[i] * multiplier) >> shift);
}

/* As dpf_scale, but adds the results to the total. */
DPF_CLONES static void dpf_add_scaled(const int32_t *restrict integers, ptrdiff_t width, uint32_t multiplier,
                                      int shift, int64_t *restrict total)
{
    for (ptrdiff_t i = 0; i < width; i++)
        total[i] += (int64_t)(((uint64_t)(uint32_t)integers[i] * multiplier) >> shift);
}

/* integers -= centre. */
DPF_CLONES static void dpf_subtract(int32_t *restrict integers, const int32_t *restrict centre, ptrdiff_t width)
{
    for (ptrdiff_t i = 0; i < width; i++)
        integers[i] -= centre[i];
}

/* The exact squared norm: the two halves of each square are summed separately. */
DPF_CLONES static dpf_uint128 dpf_squared_norm(const int32_t *restrict integers, ptrdiff_t width)
{
    uint64_t low = 0, high = 0;
    for (ptrdiff_t i = 0; i < width; i++) {
        int64_t value = integers[i];
        uint64_t square = (uint64_t)(value * value);
        low += square & UINT32_MAX;
        high += square >> 32;
    }
    return ((dpf_uint128)high << 32) + low;
}

/* The squared distance of two rows of integers in 0..2^30 whose sum is at most 2^30 each: at most 2^61. */
DPF_CLONES static int64_t dpf_squared_distance(const int32_t *restrict one, const int32_t *restrict other,
                                               ptrdiff_t width)
{
    int64_t sum = 0;
    for (ptrdiff_t i = 0; i < width; i++) {
        int32_t difference = one[i] - other[i];
        sum += (int64_t)difference * difference;
    }
    return sum;
}

/* factor * integer, rounded towards zero, for a factor in 0..1. */
DPF_CLONES static void dpf_shrink(const int32_t *restrict integers, ptrdiff_t width, double factor,
                                  int32_t *restrict shrunk)
{
    for (ptrdiff_t i = 0; i < width; i++)
        shrunk[i] = (int32_t)(integers[i] * factor);
}

/* max(-bound, floor(grid * (row - largest)) + bound): in -bound..bound. */
DPF_CLONES static void dpf_clipped_logits(const float *restrict row, ptrdiff_t width, float largest, double grid,
                                          int32_t bound, int32_t *restrict integers)
{
    const double top = 2.0 * bound;
    for (ptrdiff_t i = 0; i < width; i++) {
        double value = ((double)row[i] - (double)largest) * grid + top;
        value = value < top ? value : top;
        value = value > 0.0 ? value : 0.0;
        integers[i] = (int32_t)value - bound;
    }
}

/* grid * (row - public_row), rounded towards zero, in -bound..bound. */
DPF_CLONES static void dpf_clipped_differences(const float *restrict row, const float *restrict public_row,
                                               ptrdiff_t width, double grid, int32_t bound,
                                               int32_t *restrict integers)
{
    const double top = bound;
    for (ptrdiff_t i = 0; i < width; i++) {
        double value = ((double)row[i] - (double)public_row[i]) * grid;
        value = value < top ? value : top;
        value = value > -top ? value : -top;
        integers[i] = (int32_t)value;
    }
}

DPF_CLONES static void dpf_add(const int32_t *restrict integers, ptrdiff_t width, int64_t *restrict total)
{
    for (ptrdiff_t i = 0; i < width; i++)
        total[i] += integers[i];
}

#endif
