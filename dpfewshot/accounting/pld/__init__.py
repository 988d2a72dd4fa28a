"""Privacy loss distributions on a grid: discretise, compose, and bound every error.

discretise, curve_on_grid   one step's loss on a grid, rounded upwards ("connect the dots")
tilting, saddle_point       the order of the tilt and the grid that suit a goal
window                      where the transform computes, and bounds on what lies outside
compose                     all steps by fast Fourier transform
shortfall                   what discretisation added, for the lower bound
reading, direction          ε at a δ, and δ at an ε, of one direction
"""
