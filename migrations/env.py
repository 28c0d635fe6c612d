"""Alembic's entry: runs on the connection that the caller hands over in the configuration's attributes."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transaction_per_migration=True, version_table="harvest_alembic_version")
with context.begin_transaction():
    context.run_migrations()
