"""Alembic's folder: `versions` says how each form of the ledger's tables came from the one before."""
