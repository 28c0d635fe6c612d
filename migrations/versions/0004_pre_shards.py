"""Shards: who is configured how, search, saved views, triage, costs, canaries. Additive only."""

from alembic import op

revision = "0004"
down_revision = "0003"

# Every process, workers and consoles alike, tells each shard how it routes: `topology` is JSON, `digest` a hash of it.
PROCESSES = (
    """
    create table harvest_processes (
        process uuid primary key,
        kind text not null check (kind in ('worker', 'console')),
        name text not null,
        host text not null,
        pid integer not null,
        build text not null default '',
        started_at timestamptz not null default clock_timestamp(),
        seen_at timestamptz not null default clock_timestamp(),
        digest text not null,
        topology bytea not null
    ) with (fillfactor = 50)
    """,
    "create index harvest_processes_seen on harvest_processes (seen_at)",
)
# What people add to a run of any state; a run that nobody has looked after has no row.
TRIAGE = (
    """
    create table harvest_triage (
        execution_id uuid primary key,
        owner text,
        severity text,
        note text,
        actor text not null,
        updated_at timestamptz not null default clock_timestamp()
    )
    """,
    "create index harvest_triage_owner on harvest_triage (owner, execution_id) where owner is not null",
    "create index harvest_triage_severity on harvest_triage (severity, execution_id) where severity is not null",
)
# On the default shard: they belong to no execution.
VIEWS = """
    create table harvest_saved_views (
        view_id uuid primary key,
        name text not null unique,
        query text not null,
        actor text not null,
        created_at timestamptz not null default clock_timestamp()
    )
    """
# What activities report of their calls to language models; `number` counts the reports of an attempt.
COSTS = (
    """
    create table harvest_cost_ledger (
        execution_id uuid not null,
        seq integer not null,
        attempt integer not null,
        number integer not null,
        recorded_at timestamptz not null default clock_timestamp(),
        model text not null,
        input_tokens bigint not null,
        output_tokens bigint not null,
        cost_usd_micros bigint,
        latency_ms bigint not null,
        primary key (execution_id, seq, attempt, number)
    )
    """,
    "create index harvest_cost_ledger_recorded on harvest_cost_ledger (recorded_at)",
)
# One probe at a time of each queue: a run that is started by the real path and must complete.
CANARY = """
    create table harvest_canary (
        queue text primary key,
        execution_id uuid,
        prober uuid,
        asked_at timestamptz,
        last_success_at timestamptz,
        last_roundtrip_ms double precision,
        success_count bigint not null default 0,
        failure_count bigint not null default 0,
        last_error text
    ) with (fillfactor = 50)
    """
# The first 16 bits of an id are its shard, the 44 after them the milliseconds of when it was made.
_SHARD = "('x' || left({id}::text, 4))::bit(16)::int"
_MADE_AT = (
    "to_timestamp((('x' || substr({id}::text, 1, 8) || substr({id}::text, 10, 4) || substr({id}::text, 16, 3))"
    "::bit(60) & ('x' || '0000fffffffffff')::bit(60))::bigint / 1000.0)"
)
# As the index on these rows says it, so that the view can use that.
_BEYOND = "substring(uuid_send({0}) for 2) <> substring(uuid_send({1}) for 2)"
# Of a run that went on as new the start is in the history before.
_SPEC = """case when k.kind = 1 then convert_from(k.payload, 'UTF8')::json else (
               select convert_from(e.payload, 'UTF8')::json from harvest_events e
                where e.execution_id = k.parent_exec_id and e.seq = k.seq and e.kind in (15, 36) and e.codec = 1
                  and convert_from(e.payload, 'UTF8')::json ->> 'child_id' = k.child_exec_id::text) end"""
# A row for each child on another shard that is still to be started, whose end is still to come, or that its parent's
# end is still to reach. Delivery kinds: 1 child_start, 3 child_cancel, 4 close_policy; event kinds: 15
# ChildWorkflowStarted, 36 ChildWorkflowSpawnedDetached, 62 ChildCancelRequested. Columns that nobody asks for cost
# nothing: what needs a history is read row by row.
RELAY = (
    "alter table harvest_deliveries add column last_attempt_at timestamptz",
    # Those whose target is known by name: how long the oldest waits for shards that cannot be looked at.
    "create index harvest_deliveries_unlocated on harvest_deliveries (kind, created_at) where target_shard = -1",
    f"""
    create view harvest_cross_shard_children as
    with waiting as (
        select distinct on (d.target_execution_id)
               d.target_execution_id, d.source_execution_id, d.source_seq, d.kind, d.created_at, d.attempts, d.due,
               d.last_error, d.last_attempt_at, d.codec, d.payload
          from harvest_deliveries d
         where d.kind in (1, 3, 4) and {_BEYOND.format("d.target_execution_id", "d.source_execution_id")}
         order by d.target_execution_id, d.delivery_id
    ),
    started as (
        select c.child_execution_id, c.parent_execution_id, c.seq, c.close_policy from harvest_children c
         where {_BEYOND.format("c.child_execution_id", "c.parent_execution_id")}
    ),
    kin as (
        select coalesce(s.child_execution_id, w.target_execution_id) as child_exec_id,
               coalesce(s.parent_execution_id, w.source_execution_id) as parent_exec_id,
               coalesce(s.seq, w.source_seq) as seq,
               case when w.kind = 1 then 'PENDING_START' when s.seq is null then 'CLOSING' else 'STARTED' end as status,
               w.kind, w.created_at, coalesce(w.attempts, 0) as attempts, w.due, w.last_error, w.last_attempt_at,
               s.close_policy, case when w.codec = 1 then w.payload end as payload
          from started s
          full join waiting w on w.target_execution_id = s.child_execution_id
    )
    select k.child_exec_id, k.parent_exec_id, {_SHARD.format(id="k.child_exec_id")} as target_shard, k.status,
           k.kind is not distinct from 3 or exists (
               select from harvest_events e
                where e.execution_id = k.parent_exec_id and e.seq = k.seq and e.kind = 62
           ) as cancel_requested,
           coalesce(
               (array['abandon', 'request_cancel', 'terminate'])[k.close_policy + 1],
               case k.kind
                   when 1 then coalesce(convert_from(k.payload, 'UTF8')::json ->> 'close_policy', 'request_cancel')
                   when 4 then convert_from(k.payload, 'UTF8')::json ->> 'action'
                   else 'abandon'
               end
           ) as parent_close_policy,
           {_SPEC} ->> 'workflow_name' as workflow_name, {_SPEC} as child_spec,
           case when k.kind = 1 then k.created_at else {_MADE_AT.format(id="k.child_exec_id")} end as created_at,
           k.attempts, k.last_error, k.last_attempt_at, case when k.attempts > 0 then k.due end as next_attempt_at
      from kin k
    """,
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '5s'")
    for statement in (*PROCESSES, *TRIAGE, VIEWS, *COSTS, CANARY, *RELAY):
        op.execute(statement)
    op.execute("update harvest_meta set schema_level = 4")
