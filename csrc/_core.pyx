# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core: everything between private log-probabilities and a released token.

The .pxi files included below are thin wrappers of the algorithms in the .pxd files. Tests compare both with pure
Python twins. Every function computes without the GIL and keeps no state between calls; a `Distances` object holds the
distances of one draw.
"""

from libc.math cimport NAN, log
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc

from choice cimport WEIGHT_DIGITS, Rate, Weight, cell_of, keep, weight_of
from entropy cimport Entropy, entropy_open, entropy_wipe, next_word
from exponential cimport FRACTIONS, WHOLES
from normal cimport CELLS, Normal, NormalTables, propose, signed_magnitude
from rows cimport exponential_sum, largest_of, squared_distance, squared_norm, subtract
from uniform cimport uint128, uniform_below
from vectors cimport (
    CENTRED, CLIPPED_DIFFERENCES, CLIPPED_LOGITS, GRID, LOGIT_GRID, MAX_NORMALISED, PROBABILITIES, Quantiser,
    add_row, probabilities_of,
)

import math
from fractions import Fraction

import numpy as np

from dpfewshot.exact import choice as exact_choice, normal as exact_normal

cdef NormalTables TABLES
cdef int64_t LARGEST_NOISE = (<int64_t>1) << 61
cdef int64_t LARGEST_SCALE = (<int64_t>1) << 48
cdef int64_t COUNT_GRID = (<int64_t>1) << 16

grid = GRID
"""The grid steps in 1: integers stand for multiples of 1/grid."""

logit_grid = LOGIT_GRID
"""The grid steps in 1 nat, for clipped logits and differences."""

count_grid = COUNT_GRID
"""The grid steps in 1, for counts of rows: coarser still."""

LARGEST_LOGIT_CLIP = 1000.0
LARGEST_CENTRED_CLIP = math.sqrt(2)
LARGEST_LOGIT = 2.0**20
LARGEST_COUNT = 2**20
WIDEST = 2**18


def _fill_tables():
    cdef int i, byte
    for i, (low, high) in enumerate(exact_normal.cell_thresholds(CELLS, 64)):
        assert high - low <= 1, "the enclosure of a cell's threshold must be one unit wide"
        TABLES.cells[i] = low
    for i in range(FRACTIONS):
        TABLES.exponentials.fractions[i] = min(exact_normal.exponential_of_minus(i, 64, 64)[0], 2**64 - 1)
    for i in range(WHOLES):
        TABLES.exponentials.wholes[i] = min(exact_normal.exponential_of_minus(i, 1, 64)[0], 2**64 - 1)
    i = 0
    for byte in range(256):
        while TABLES.cells[i] < <uint64_t>byte << 56:
            i += 1
        TABLES.first_cell[byte] = i


_fill_tables()


include "draws.pxi"
include "sums.pxi"
include "releases.pxi"
include "balls.pxi"
