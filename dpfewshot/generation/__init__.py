"""A plan at work: reserve, charge, draw, release, token by token."""
