"""The bench: how fast the engine is beside its floor, a sketch without an engine's duties, DBOS and temporalio.

`python -m tests.bench [a … l|all] [--quick]` prints tables and bounds, keeps them in results/latest.json and
exits 1 when a bound fails. Everything that is compared runs in processes of its own against one PostgreSQL.
"""
