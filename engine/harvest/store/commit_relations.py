"""The parts of a commit's statement that concern other runs: children, deliveries, details, successors.

Rows of `harvest_children` are only touched by whoever has locked the parent's execution, as a commit has for each run
that passed: nothing here waits. Every write is joined on what passed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CHILDREN, DELIVERIES, DETAILS, SUCCESSORS, SUCCESSOR_EVENTS, CASCADES = 5, 6, 3, 15, 4, 1
WIDTHS: Final = (CHILDREN, DELIVERIES, DETAILS, SUCCESSORS + SUCCESSOR_EVENTS, CASCADES)
# What becomes of an open child when its parent has ended; the first 16 bits of an id are its shard.
CLOSE_POLICY: Final = """convert_to(json_build_object(
                   'action', case {0}.close_policy when 2 then 'terminate' else 'request_cancel' end)::text, 'UTF8')"""
SHARD_OF: Final = "('x' || left({0}::text, 4))::bit(16)::int"


class Names(NamedTuple):
    """The names of each part's parameters; none where the part is not needed."""

    children: list[str]
    deliveries: list[str]
    details: list[str]
    successors: list[str]
    cascades: list[str]
    closes: list[str]


_CHILD_ROWS = (
    "unnest({0}::uuid[], {1}::int[], {2}::uuid[], {3}::smallint[], {4}::boolean[])\n"
    "        as n(execution_id, seq, child_execution_id, close_policy, awaited)"
)
# What a run starts while it ends becomes its heir's, or is dealt with by its close policy as if it had been started
# before: its row never exists.
_CHILDREN = """,
new_children as (
    insert into harvest_children (child_execution_id, parent_execution_id, seq, close_policy, awaited)
    select n.child_execution_id, {parent}, n.seq, n.close_policy, {awaited}
      from {rows}
      join written w on w.execution_id = n.execution_id{heirs}
     where {condition}
)"""
_TO_HEIRS = "\n      left join heirs h on h.execution_id = n.execution_id"
_DELIVERED = """,
new_deliveries as (
    insert into harvest_deliveries (kind, source_execution_id, source_seq, target_execution_id, target_shard, payload)
    select kind, source_execution_id, source_seq, target_execution_id, target_shard, payload from (
        {sources}
    ) n order by step, nth
)"""
# In the order of the decision; close policies come last: what a run started must begin before it is asked to end.
_GIVEN = """select 1 as step, n.nth, n.kind, n.execution_id as source_execution_id, n.seq as source_seq,
               n.target_execution_id, n.target_shard, n.payload
          from unnest({0}::uuid[], {1}::int[], {2}::smallint[], {3}::uuid[], {4}::int[], {5}::bytea[])
            with ordinality as n(execution_id, seq, kind, target_execution_id, target_shard, payload, nth)
          join written w on w.execution_id = n.execution_id"""
_NEWBORN = f"""select 2 as step, 0::bigint as nth, 4::smallint as kind, n.execution_id as source_execution_id,
               n.seq as source_seq, n.child_execution_id as target_execution_id,
               {SHARD_OF.format("n.child_execution_id")} as target_shard,
               {CLOSE_POLICY.format("n")} as payload
          from {{rows}}
          join written w on w.execution_id = n.execution_id and w.state >= 10{{heirs}}
         where n.close_policy > 0{{no_heir}}"""
_ORPHANED = f"""select 2 as step, 0::bigint as nth, 4::smallint as kind, o.parent_execution_id as source_execution_id,
               o.seq as source_seq, o.child_execution_id as target_execution_id,
               {SHARD_OF.format("o.child_execution_id")} as target_shard,
               {CLOSE_POLICY.format("o")} as payload
          from orphans o where o.close_policy > 0"""
_ORPHANS = """,
orphans as (
    delete from harvest_children c
     where c.parent_execution_id = any(array(
         select w.execution_id from written w where w.state >= 10 and w.execution_id = any({0}::uuid[]){unless_heirs}))
 returning c.child_execution_id, c.parent_execution_id, c.seq, c.close_policy
)"""
_UNLESS_HEIRS = "\n            and w.execution_id <> all(array(select execution_id from heirs))"
_INHERITED = """,
inherited as (
    update harvest_children c set parent_execution_id = h.successor_id, awaited = false
      from heirs h
     where c.parent_execution_id = h.execution_id
       and c.parent_execution_id = any(array(select execution_id from heirs where execution_id = any({0}::uuid[])))
)"""
_DETAILED = """,
detailed as (
    update harvest_execution_details x
       set search_attributes = {attributes}, details = coalesce(n.details, x.details){ends}
      from unnest({0}::uuid[], {1}::jsonb[], {2}::bytea[]) as n(execution_id, search_attributes, details){closes}
     where x.execution_id = n.execution_id and x.execution_id = any(array(select execution_id from written))
)"""
_ATTRIBUTES = """case when n.search_attributes is null then x.search_attributes
               else jsonb_strip_nulls(coalesce(x.search_attributes, '{}') || n.search_attributes) end"""
_ENDS = ", result = c.result, failure = c.failure"
_WITH_CLOSES = """
      left join unnest({0}::uuid[], {1}::bytea[], {2}::bytea[]) as c(execution_id, result, failure)
        on c.execution_id = n.execution_id"""
_SUCCESSORS = """,
successors as materialized (
    select s.*
      from unnest({0}::uuid[], {1}::uuid[], {2}::uuid[], {3}::text[], {4}::text[], {5}::int[], {6}::smallint[],
                  {7}::text[], {8}::smallint[], {9}::bytea[], {10}::int[], {11}::float8[], {12}::float8[],
                  {13}::timestamptz[], {14}::boolean[])
        as s(execution_id, successor_id, business_key, workflow_name, workflow_id, version, partition, queue, priority,
             input, next_event_id, delay, deadline_after, deadline_at, repoint)
      join written w on w.execution_id = s.execution_id and w.state >= 10
),
heirs as materialized (
    select execution_id, successor_id from successors where repoint
),
succeeded as (
    insert into harvest_executions
      (execution_id, business_key, parent_id, root_id, first_execution_id, previous_execution_id, next_event_id,
       version, partition, tenant, workflow_name, workflow_id, queue, deadline_at, awaited, close_policy)
    select s.successor_id, s.business_key, e.parent_id, coalesce(e.root_id, e.execution_id),
           coalesce(e.first_execution_id, e.execution_id), e.execution_id, s.next_event_id, s.version, s.partition,
           e.tenant, s.workflow_name, s.workflow_id, s.queue,
           least(s.deadline_at, clock_timestamp() + (s.delay + s.deadline_after) * interval '1 second'),
           e.awaited, e.close_policy
      from successors s
      join harvest_executions e
        on e.execution_id = s.execution_id and e.execution_id = any(array(select execution_id from written))
 returning execution_id
),
succeeding_details as (
    insert into harvest_execution_details (execution_id, input, memo, search_attributes)
    select s.successor_id, s.input, x.memo, {attributes}
      from successors s
      join succeeded r on r.execution_id = s.successor_id
      join harvest_execution_details x
        on x.execution_id = s.execution_id and x.execution_id = any(array(select execution_id from written)){details}
),
succeeding_events as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select n.execution_id, n.event_id, n.kind, n.payload
      from unnest({15}::uuid[], {16}::int[], {17}::smallint[], {18}::bytea[])
        as n(execution_id, event_id, kind, payload)
      join succeeded r on r.execution_id = n.execution_id
),
succeeding_task as (
    insert into harvest_workflow_tasks
      (execution_id, partition, priority, queue, workflow_name, version, due, sort_at)
    select s.successor_id, s.partition, s.priority, s.queue, s.workflow_name, s.version,
           clock_timestamp() + s.delay * interval '1 second', clock_timestamp() + s.delay * interval '1 second'
      from successors s
      join succeeded r on r.execution_id = s.successor_id
)"""
_WITH_DETAILS = """
      left join unnest({0}::uuid[], {1}::jsonb[]) as n(execution_id, search_attributes)
        on n.execution_id = s.execution_id"""


def parts(names: Names) -> list[str]:
    """The parts that are needed, each beginning with its comma."""
    found = []
    if names.details:
        found.append(_details(names))
    if names.successors:
        found.append(
            _SUCCESSORS.format(
                *names.successors,
                attributes=_ATTRIBUTES if names.details else "x.search_attributes",
                details=_WITH_DETAILS.format(*names.details) if names.details else "",
            )
        )
    if names.cascades:
        found.append(_ORPHANS.format(*names.cascades, unless_heirs=_UNLESS_HEIRS if names.successors else ""))
        if names.successors:
            found.append(_INHERITED.format(*names.cascades))
    if names.children:
        found.append(_children(names))
    sources = _sources(names)
    if sources:
        found.append(_DELIVERED.format(sources="\n         union all\n        ".join(sources)))
    return found


def _details(names: Names) -> str:
    """A row is updated once: what a closing run leaves for people goes in with its last details."""
    return _DETAILED.format(
        *names.details,
        attributes=_ATTRIBUTES,
        ends=_ENDS if names.closes else "",
        closes=_WITH_CLOSES.format(*names.closes) if names.closes else "",
    )


def _children(names: Names) -> str:
    rows = _CHILD_ROWS.format(*names.children)
    if names.successors:
        return _CHILDREN.format(
            rows=rows,
            parent="coalesce(h.successor_id, n.execution_id)",
            awaited="n.awaited and h.successor_id is null",
            heirs=_TO_HEIRS,
            condition="w.state < 10 or h.successor_id is not null",
        )
    return _CHILDREN.format(rows=rows, parent="n.execution_id", awaited="n.awaited", heirs="", condition="w.state < 10")


def _sources(names: Names) -> list[str]:
    """Where the rows of deliveries come from."""
    sources = []
    if names.deliveries:
        sources.append(_GIVEN.format(*names.deliveries))
    if names.children and names.closes:
        sources.append(
            _NEWBORN.format(
                rows=_CHILD_ROWS.format(*names.children),
                heirs=_TO_HEIRS if names.successors else "",
                no_heir=" and h.successor_id is null" if names.successors else "",
            )
        )
    if names.cascades:
        sources.append(_ORPHANED)
    return sources
