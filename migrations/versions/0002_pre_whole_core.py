"""Children, deliveries between runs, requests to running code, progress: what the whole core needs. Additive only."""

from alembic import op

revision = "0002"
down_revision = "0001"

# A run's open children that are told of its end or whose end it is told of; on the shard of the parent.
# close_policy: 0 abandon, 1 request_cancel, 2 terminate.
CHILDREN = (
    "alter table harvest_executions add column awaited boolean, add column close_policy smallint",
    # The children of a run in the order of their start, in place of the index that had no order.
    """create index harvest_executions_children
       on harvest_executions (parent_id, started_at, execution_id) where parent_id is not null""",
    "drop index harvest_executions_parent",
    """create index harvest_executions_chain
       on harvest_executions (first_execution_id, started_at desc) where previous_execution_id is not null""",
    """
    create table harvest_children (
        child_execution_id uuid primary key,
        parent_execution_id uuid not null,
        seq integer not null,
        close_policy smallint not null check (close_policy between 0 and 2),
        awaited boolean not null
    ) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 1)
    """,
    "create index harvest_children_parent on harvest_children (parent_execution_id)",
    """create index harvest_deliveries_order
       on harvest_deliveries (source_execution_id, target_execution_id, delivery_id)""",
    "drop index harvest_deliveries_source",
    """alter table harvest_deliveries set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
       autovacuum_vacuum_cost_delay = 1)""",
)
# A workflow task in state 4 is that of a paused run: nobody claims it, and no wake changes it.
PAUSED = (
    """alter table harvest_workflow_tasks drop constraint harvest_workflow_tasks_state_check,
       add constraint harvest_workflow_tasks_state_check check (state between 0 and 4) not valid""",
)
# A key says which event it was used for: where an update is to be answered.
DEDUPE = (
    "alter table harvest_dedupe add column written_to uuid, add column event_id integer",
    # Keys of deliveries from other shards, by their age: they are forgotten when they can no longer come twice.
    "create index harvest_dedupe_deliveries on harvest_dedupe (created_at) where kind = 5",
)
REQUESTS = (
    "alter table harvest_requests add column worker uuid, add column taken_by uuid, add column taken_at timestamptz",
    "create index harvest_requests_waiting on harvest_requests (created_at) where answered_at is null",
    """
    create unlogged table harvest_progress (
        execution_id uuid not null,
        seq bigint generated always as identity,
        at timestamptz not null default clock_timestamp(),
        chunk bytea not null,
        primary key (execution_id, seq)
    )
    """,
    "create index harvest_progress_at on harvest_progress (at)",
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '5s'")
    for statement in (*CHILDREN, *PAUSED, *DEDUPE, *REQUESTS):
        op.execute(statement)
    op.execute("update harvest_meta set schema_level = 2")
