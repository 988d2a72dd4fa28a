"""Exact samplers and rounding in Python integers of any length: the specification of the compiled core.

    normal    round(N(0, s²))
    choice    report noisy max and the softmax draw
    laplace   the discrete Laplace distribution
    rounding  from rational numbers to floats, towards more privacy

The compiled core decides with the first 64 digits of its uniform numbers, and asks this package for more in
the rare cases in which those do not suffice. Tests run both on the same bytes.
"""
