"""Owners of partitions, what workers tell of themselves, and how each decision went. Additive only."""

from alembic import op

revision = "0003"
down_revision = "0002"

# A partition belongs to `owner` while that worker's lease lives; a commit asks that the epoch of its task is still that
# of the row, and locks nothing here (decision 0009). `heir` is who was offered the partition, `residents` the runs that
# it is to warm, 16 bytes each.
PARTITIONS = (
    """
    create table harvest_partitions (
        partition smallint primary key check (partition between 0 and 511),
        owner uuid,
        epoch integer not null default 0,
        acquired_at timestamptz,
        heir uuid,
        offered_at timestamptz,
        accepted boolean not null default false,
        residents bytea
    ) with (fillfactor = 50)
    """,
    "insert into harvest_partitions (partition) select generate_series(0, 511)",
    """
    create table harvest_partition_journal (
        id bigint generated always as identity primary key,
        partition smallint not null,
        at timestamptz not null default clock_timestamp(),
        event text not null check (event in ('acquired', 'released', 'expired', 'fenced')),
        worker uuid,
        worker_name text not null default '',
        epoch integer not null,
        detail text not null default ''
    )
    """,
    "create index harvest_partition_journal_partition on harvest_partition_journal (partition, id desc)",
    "create index harvest_partition_journal_at on harvest_partition_journal (at)",
    """alter table harvest_meta add column owner_mode boolean not null default false,
       add column owner_mode_since timestamptz""",
    # The owner's epoch under which the task was taken; null in claim mode.
    "alter table harvest_workflow_tasks add column owner_epoch integer",
)
# `scanned_at` is null for a worker of a release that knows no owners. `report` is written when the worker ends.
WORKERS = (
    """alter table harvest_workers
       add column workflow_slots integer,
       add column workflow_types text[] not null default '{}',
       add column activity_types text[] not null default '{}',
       add column sticky_ttl double precision not null default 5,
       add column scanned_at timestamptz,
       add column config bytea,
       add column report bytea,
       add column drain_requested_at timestamptz,
       add column drain_deadline_at timestamptz,
       add column evict_requested_at timestamptz""",
    """
    create unlogged table harvest_rollups (
        worker uuid not null,
        at timestamptz not null default clock_timestamp(),
        seconds double precision not null,
        data bytea not null,
        primary key (worker, at)
    )
    """,
    "create index harvest_rollups_at on harvest_rollups (at)",
)
# The last 200 attempts to decide of each run: `slot` is `number` modulo 200.
DECISIONS = (
    """
    create unlogged table harvest_decisions (
        execution_id uuid not null,
        slot smallint not null,
        number integer not null,
        worker uuid not null,
        epoch integer,
        outcome text not null,
        reason text not null,
        source text not null,
        answer text not null,
        events_loaded integer not null,
        bytes_loaded integer not null,
        woken_at timestamptz,
        notified_at timestamptz,
        taken_at timestamptz not null,
        loaded_at timestamptz not null,
        driven_at timestamptz not null,
        fence_checked_at timestamptz not null,
        committed_at timestamptz not null,
        primary key (execution_id, slot)
    )
    """,
    "create index harvest_decisions_committed on harvest_decisions (committed_at)",
)
# A session binds activities to one worker: those of it are claimed by that worker alone.
SESSIONS = (
    """
    create table harvest_worker_sessions (
        session_id uuid primary key,
        execution_id uuid not null,
        seq integer not null,
        queue text not null,
        worker uuid,
        status text not null default 'pending' check (status in ('pending', 'open', 'closed', 'broken')),
        created_at timestamptz not null default clock_timestamp(),
        opened_at timestamptz,
        expires_at timestamptz not null,
        execution_timeout double precision,
        ended_at timestamptz
    )
    """,
    "create index harvest_worker_sessions_execution on harvest_worker_sessions (execution_id)",
    """create index harvest_worker_sessions_worker on harvest_worker_sessions (worker)
       where status in ('pending', 'open')""",
    "alter table harvest_activity_tasks add column session_id uuid, add column session_worker uuid",
    """create index harvest_activity_tasks_session on harvest_activity_tasks (session_worker)
       where state = 0 and session_worker is not null""",
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '5s'")
    for statement in (*PARTITIONS, *WORKERS, *DECISIONS, *SESSIONS):
        op.execute(statement)
    op.execute("update harvest_meta set schema_level = 3")
