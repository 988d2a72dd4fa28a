"""A plan while it runs: reserves, charges, draws and releases, token by token."""
