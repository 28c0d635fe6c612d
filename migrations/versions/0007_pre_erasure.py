"""Receipts of what was erased, and legal holds, which keep a run from it. Additive only."""

from alembic import op

revision = "0007"
down_revision = "0006"

# One receipt a run, on its shard. `parent_receipt` is that of the run that was asked for, where this one was below it.
# The digests are over every event and the details, as they were before and are since.
ERASURES = (
    """
    create table harvest_erasures (
        receipt uuid primary key,
        execution_id uuid not null,
        parent_receipt uuid,
        actor text not null,
        reason text not null,
        erased_at timestamptz not null default clock_timestamp(),
        events_scrubbed integer not null,
        fields_tombstoned integer not null,
        bytes_removed bigint not null,
        digest_before text not null,
        digest_after text not null
    )
    """,
    "create unique index harvest_erasures_execution on harvest_erasures (execution_id)",
    "create index harvest_erasures_at on harvest_erasures (erased_at desc, receipt desc)",
)
# A hold whose `hold_until` has passed is none any more.
HOLDS = """
    create table harvest_legal_holds (
        execution_id uuid primary key,
        reason text not null,
        actor text not null,
        set_at timestamptz not null default clock_timestamp(),
        hold_until timestamptz
    )
    """


def upgrade() -> None:
    op.execute("set local lock_timeout = '5s'")
    for statement in (*ERASURES, HOLDS):
        op.execute(statement)
    op.execute("update harvest_meta set schema_level = 7")
