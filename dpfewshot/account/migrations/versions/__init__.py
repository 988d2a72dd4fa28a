"""One file a form of the tables. Alembic orders them by the revisions that they name."""
