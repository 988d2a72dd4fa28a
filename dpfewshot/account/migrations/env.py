"""What Alembic runs: the migrations, in the transaction that `dpfewshot.account.tables` opened."""

from alembic import context

from dpfewshot.account.tables import migration

context.configure(connection=context.config.attributes["connection"], version_table=migration.name)
context.run_migrations()
