"""Privacy loss distributions on a grid: discretise, compose, and bound what the grid misses."""
