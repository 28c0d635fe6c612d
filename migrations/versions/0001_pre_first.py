"""The first schema: every table that the engine and the console of the first release need (answers 1)."""

from alembic import op

revision = "0001"
down_revision = None

HOT = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 1"

EXECUTIONS = (
    f"""
    create table harvest_executions (
        execution_id uuid primary key,
        business_key uuid not null,
        parent_id uuid,
        root_id uuid,
        first_execution_id uuid,
        previous_execution_id uuid,
        started_at timestamptz not null default clock_timestamp(),
        closed_at timestamptz,
        deadline_at timestamptz,
        next_event_id integer not null,
        decided_through integer not null default 0,
        version integer not null,
        partition smallint not null check (partition between 0 and 511),
        state smallint not null default 0,
        tenant text not null default 'default',
        workflow_name text not null,
        workflow_id text not null,
        queue text not null default 'default',
        build text not null default '',
        waiting text,
        blocked text,
        check ((state >= 10) = (closed_at is not null))
    ) with (fillfactor = 60, {HOT})
    """,
    "create unique index harvest_executions_open_key on harvest_executions (business_key) where state < 10",
    "create index harvest_executions_key on harvest_executions (business_key, started_at desc, execution_id desc)",
    "create index harvest_executions_started on harvest_executions (started_at desc, execution_id desc)",
    "create index harvest_executions_state on harvest_executions (state, started_at desc, execution_id desc)",
    """create index harvest_executions_name
       on harvest_executions (workflow_name, started_at desc, execution_id desc)""",
    """create index harvest_executions_deadline
       on harvest_executions (deadline_at) where deadline_at is not null and state < 10""",
    "create index harvest_executions_parent on harvest_executions (parent_id) where parent_id is not null",
    # Null stays null when a run that is not blocked is written to, so its updates stay HOT.
    """create index harvest_executions_blocked
       on harvest_executions (started_at desc, execution_id desc) where blocked is not null""",
    "create index harvest_executions_failed on harvest_executions (closed_at desc) where state in (11, 14)",
    """
    create table harvest_execution_details (
        execution_id uuid primary key,
        input bytea not null,
        codec smallint not null default 1,
        memo bytea,
        search_attributes jsonb,
        details bytea,
        result bytea,
        failure bytea,
        blocked bytea
    ) with (fillfactor = 80)
    """,
)

EVENTS = (
    """
    create table harvest_events (
        execution_id uuid not null,
        event_id integer not null,
        kind smallint not null,
        format smallint not null default 1,
        codec smallint not null default 1,
        seq integer not null default 0,
        written_by integer not null default 0,
        at timestamptz not null default clock_timestamp(),
        payload bytea not null,
        primary key (execution_id, event_id)
    )
    """,
    """
    create table harvest_dedupe (
        execution_id uuid not null,
        kind smallint not null,
        key text not null,
        created_at timestamptz not null default clock_timestamp(),
        primary key (execution_id, kind, key)
    )
    """,
    "create unique index harvest_dedupe_start on harvest_dedupe (key) where kind = 1",
)

# Task states: 0 pending, 1 held by a worker, 2 parked, 3 held and there is news for the holder (answers 3).
TASKS = (
    f"""
    create table harvest_workflow_tasks (
        execution_id uuid primary key,
        worker uuid,
        sticky_worker uuid,
        sticky_until timestamptz,
        due timestamptz not null default clock_timestamp(),
        sort_at timestamptz not null default clock_timestamp(),
        attempt integer not null default 0,
        partition smallint not null,
        state smallint not null default 0 check (state between 0 and 3),
        priority smallint not null default 0,
        strikes smallint not null default 0,
        queue text not null,
        workflow_name text not null,
        version integer not null,
        check ((state in (1, 3)) = (worker is not null))
    ) with (fillfactor = 60, {HOT})
    """,
    """create index harvest_workflow_tasks_claim
       on harvest_workflow_tasks (queue, priority desc, sort_at) where state = 0""",
    """create index harvest_workflow_tasks_sticky
       on harvest_workflow_tasks (sticky_worker) where state = 0 and sticky_worker is not null""",
    "create index harvest_workflow_tasks_suspects on harvest_workflow_tasks (queue) where state = 0 and strikes = 2",
    "create index harvest_workflow_tasks_news on harvest_workflow_tasks (worker) where state = 3",
    f"""
    create table harvest_activity_tasks (
        execution_id uuid not null,
        seq integer not null,
        worker uuid,
        scheduled_event_id integer not null,
        attempt integer not null default 0,
        due timestamptz not null default clock_timestamp(),
        sort_at timestamptz not null default clock_timestamp(),
        scheduled_at timestamptz not null default clock_timestamp(),
        started_at timestamptz,
        timeout_at timestamptz,
        schedule_to_close_at timestamptz,
        state smallint not null default 0 check (state in (0, 1)),
        priority smallint not null default 0,
        strikes smallint not null default 0,
        cancel_requested boolean not null default false,
        start_to_close double precision,
        heartbeat double precision,
        queue text not null,
        name text not null,
        last_failure bytea,
        primary key (execution_id, seq),
        check ((state = 1) = (worker is not null))
    ) with (fillfactor = 70, {HOT})
    """,
    """create index harvest_activity_tasks_claim
       on harvest_activity_tasks (queue, priority desc, sort_at) where state = 0""",
    "create index harvest_activity_tasks_suspects on harvest_activity_tasks (queue) where state = 0 and strikes = 2",
    "create index harvest_activity_tasks_timeout on harvest_activity_tasks (timeout_at) where timeout_at is not null",
    f"""
    create table harvest_timers (
        execution_id uuid not null,
        seq integer not null,
        fires_at timestamptz not null,
        primary key (execution_id, seq)
    ) with ({HOT})
    """,
    "create index harvest_timers_due on harvest_timers (fires_at)",
    """
    create table harvest_heartbeats (
        execution_id uuid not null,
        seq integer not null,
        attempt integer not null,
        at timestamptz not null default clock_timestamp(),
        details bytea,
        primary key (execution_id, seq)
    ) with (fillfactor = 70)
    """,
    """
    create table harvest_deliveries (
        delivery_id bigint generated always as identity primary key,
        kind smallint not null,
        source_execution_id uuid not null,
        source_seq integer not null,
        target_execution_id uuid not null,
        target_shard integer not null,
        status smallint not null default 0,
        attempts integer not null default 0,
        due timestamptz not null default clock_timestamp(),
        created_at timestamptz not null default clock_timestamp(),
        last_error text,
        codec smallint not null default 1,
        payload bytea not null
    )
    """,
    "create index harvest_deliveries_due on harvest_deliveries (due)",
    "create index harvest_deliveries_source on harvest_deliveries (source_execution_id)",
)

FLEET = (
    """
    create table harvest_workers (
        worker uuid primary key,
        name text not null,
        host text not null,
        pid integer not null,
        build text not null default '',
        queues text[] not null,
        status text not null default 'active' check (status in ('active', 'draining', 'stopped')),
        started_at timestamptz not null default clock_timestamp(),
        seen_at timestamptz not null default clock_timestamp(),
        lease_until timestamptz not null,
        slots integer not null,
        counters bytea
    ) with (fillfactor = 50)
    """,
    "create index harvest_workers_lease on harvest_workers (lease_until)",
    """
    create table harvest_definitions (
        kind text not null check (kind in ('workflow', 'activity')),
        name text not null,
        version integer not null,
        build text not null default '',
        worker uuid not null,
        input_schema bytea not null,
        output_schema bytea not null,
        signals bytea not null,
        description text not null default '',
        seen_at timestamptz not null default clock_timestamp(),
        primary key (kind, name, version, build)
    )
    """,
    """
    create unlogged table harvest_requests (
        request_id uuid primary key,
        execution_id uuid not null,
        kind text not null,
        name text not null,
        payload bytea not null,
        created_at timestamptz not null default clock_timestamp(),
        deadline_at timestamptz not null,
        answered_at timestamptz,
        answer bytea
    )
    """,
    "create index harvest_requests_open on harvest_requests (execution_id) where answered_at is null",
)

CONSOLE = (
    """
    create table harvest_audit_log (
        id uuid primary key,
        occurred_at timestamptz not null default clock_timestamp(),
        actor text not null,
        on_behalf_of text,
        operation text not null,
        target_type text not null,
        target_id text not null,
        route_or_command text not null,
        request_id text not null,
        idempotency_key text,
        status text not null check (status in ('succeeded', 'failed')),
        error_summary text,
        reason text,
        source text not null check (source in ('api', 'cli', 'ui')),
        shard_id integer not null
    )
    """,
    "create index harvest_audit_log_at on harvest_audit_log (occurred_at desc, id desc)",
    "create index harvest_audit_log_target on harvest_audit_log (target_id, occurred_at desc, id desc)",
    """
    create table harvest_console_sessions (
        session_digest bytea primary key,
        actor text not null,
        created_at timestamptz not null default clock_timestamp(),
        seen_at timestamptz not null default clock_timestamp(),
        expires_at timestamptz not null,
        ended_at timestamptz
    )
    """,
    """
    create table harvest_signin_links (
        link_digest bytea primary key,
        created_at timestamptz not null default clock_timestamp(),
        expires_at timestamptz not null,
        spent_at timestamptz
    )
    """,
    """
    create table harvest_meta (
        one boolean primary key default true check (one),
        schema_level integer not null,
        format_min integer not null,
        format_max integer not null,
        shard_id integer,
        watched_until timestamptz not null default '-infinity'
    )
    """,
    "insert into harvest_meta (schema_level, format_min, format_max) values (1, 1, 1)",
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '5s'")
    for statement in (*EXECUTIONS, *EVENTS, *TASKS, *FLEET, *CONSOLE):
        op.execute(statement)
