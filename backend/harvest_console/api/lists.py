"""What is read over all shards: the list, the count, the registered types, the audit log."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from harvest import clock
from harvest.errors import CursorError, FilterError, ShardUnavailableError, WorkflowNotRegisteredError
from harvest.operations import auditing, counting, definitions, facets, listing
from harvest.operations.auditing import AuditFilter
from harvest.operations.counting import Grouped
from harvest.operations.facets import AttributeKeys, Facets
from harvest.operations.filter_language import search_attr, search_attr_filter
from harvest.operations.listing import Counted, ListFilter
from harvest.shards import Shards
from harvest_console.api.answers import answer, read_query, status_fields, unavailable
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import (
    AttributeKeysAnswer,
    AuditAnswer,
    AuditQuery,
    CountAnswer,
    CountQuery,
    FacetsAnswer,
    FacetsQuery,
    FilterQuery,
    ListAnswer,
    ListQuery,
    NoQuery,
    RegisteredAnswer,
    SchemaAnswer,
)
from harvest_console.paths import part

AnyRequest = Request[Any, Any, Any]


def _filter(query: FilterQuery, order: str = "desc") -> ListFilter:
    words = (word.strip().upper() for word in (query.state or "").split(","))
    return ListFilter(
        states=tuple(word for word in words if word),
        blocked=query.blocked,
        workflow_name=query.workflow_name or None,
        workflow_id=query.workflow_id or None,
        exec_id_prefix=query.exec_id_prefix or None,
        started_after=query.started_after,
        started_before=query.started_before,
        owner=query.owner or None,
        severity=query.severity,
        attrs=(*map(search_attr, query.search_attr), *map(search_attr_filter, query.search_attr_filter)),
        filter=query.filter,
        order=order,
    )


@get(
    "/workflows",
    opt={
        "doc": Doc(
            "Executions in the order of their start, merged over the shards.",
            query=ListQuery,
            answers={200: ListAnswer},
            refusals=(CursorError, FilterError),
        )
    },
)
async def list_workflows(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """One page; shards that do not answer are named in it."""
    query = read_query(request, ListQuery)
    page = await listing.list_executions(
        shards, _filter(query, query.order), page_size=query.page_size, cursor=query.cursor or None
    )
    return answer(
        ListAnswer(
            workflows=page.executions.rows,
            next_cursor=page.next_cursor,
            previous_cursor=page.previous_cursor,
            **status_fields(page.executions),
        )
    )


@get(
    "/workflows/count",
    opt={
        "doc": Doc(
            "How many executions there are, to a cap; in groups if asked.",
            query=CountQuery,
            answers={200: CountAnswer},
            refusals=(FilterError,),
        )
    },
)
async def count_workflows(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Counted to a cap on each shard, never further."""
    query = read_query(request, CountQuery)
    if query.group_by is None:
        counted = await listing.count(shards, _filter(query))
        return answer(
            CountAnswer(
                count=counted.count,
                total=counted.count,
                capped=counted.capped,
                groups=[],
                truncated=False,
                as_of=clock.now(),
                **_availability(counted),
            )
        )
    grouped = await counting.count_groups(
        shards, _filter(query), group_by=query.group_by, limit_groups=query.limit_groups
    )
    return answer(
        CountAnswer(
            count=grouped.total,
            total=grouped.total,
            capped=grouped.capped,
            groups=grouped.groups,
            truncated=grouped.truncated,
            as_of=grouped.as_of,
            **_availability(grouped),
        )
    )


def _availability(counted: Counted | Grouped | Facets | AttributeKeys) -> dict[str, Any]:
    return {"status": counted.status, "unavailable_shards": unavailable(counted.missing)}


@get(
    "/workflows/facets",
    opt={
        "doc": Doc(
            "The frequent values of a field, to filter by.",
            query=FacetsQuery,
            answers={200: FacetsAnswer},
            refusals=(FilterError,),
        )
    },
)
async def count_facets(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Counted among the newest executions of each shard, never further."""
    query = read_query(request, FacetsQuery)
    found = await facets.count_values(shards, _filter(query), query.field, limit=query.limit)
    return answer(
        FacetsAnswer(
            field=found.field,
            values=found.values,
            rows=found.rows,
            capped=found.capped,
            truncated=found.truncated,
            as_of=found.as_of,
            **_availability(found),
        )
    )


@get(
    "/workflows/search-attributes",
    opt={
        "doc": Doc("The search attributes that executions have.", query=NoQuery, answers={200: AttributeKeysAnswer}),
    },
)
async def list_search_attributes(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Sampled from the newest executions of each shard."""
    read_query(request, NoQuery)
    found = await facets.attribute_keys(shards)
    return answer(AttributeKeysAnswer(keys=found.keys, rows=found.rows, **_availability(found)))


@get(
    "/workflows/registered",
    opt={
        "doc": Doc(
            "The types that workers have registered.", tag="discovery", query=NoQuery, answers={200: RegisteredAnswer}
        )
    },
)
async def list_registered(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """The latest version of each; `live` says whether a worker has it now."""
    read_query(request, NoQuery)
    known = await definitions.registered(shards)
    return answer(
        RegisteredAnswer(
            workflows=[each for each in known.rows if each.kind == "workflow"],
            activities=[each for each in known.rows if each.kind == "activity"],
            **status_fields(known),
        )
    )


@get(
    "/workflows/registered/{workflow_name:str}/schema",
    opt={
        "doc": Doc(
            "The JSON Schemas of a workflow type.",
            tag="discovery",
            query=NoQuery,
            answers={200: SchemaAnswer},
            refusals=(WorkflowNotRegisteredError, ShardUnavailableError),
        )
    },
)
async def get_schema(request: AnyRequest, shards: Shards, workflow_name: str) -> Response[bytes]:
    """What its input and signals must look like."""
    read_query(request, NoQuery)
    found = await definitions.find(shards, part(workflow_name))
    return answer(
        SchemaAnswer(
            workflow_name=found.name,
            version=found.version,
            input_schema=found.input_schema,
            output_schema=found.output_schema,
            signals=found.signals,
        )
    )


@get(
    "/admin/audit",
    opt={
        "doc": Doc(
            "The audit log, newest first, merged over the shards.",
            tag="audit",
            query=AuditQuery,
            answers={200: AuditAnswer},
            refusals=(CursorError,),
        )
    },
)
async def list_audit(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """One page; shards that do not answer are named in it."""
    query = read_query(request, AuditQuery)
    wanted = AuditFilter(
        actor=query.actor or None,
        operation=query.operation or None,
        target_id=query.target_id or None,
        status=query.status,
        source=query.source,
        since=query.since,
        until=query.until,
    )
    page = await auditing.list_audit(shards, wanted, limit=query.limit, cursor=query.cursor or None)
    return answer(
        AuditAnswer(
            entries=page.rows.rows,
            next_cursor=page.next_cursor,
            previous_cursor=page.previous_cursor,
            **status_fields(page.rows),
        )
    )


handlers = [
    list_workflows,
    count_workflows,
    count_facets,
    list_search_attributes,
    list_registered,
    get_schema,
    list_audit,
]
