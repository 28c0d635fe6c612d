"""Filters find what plain Python finds in the same rows, by every way of looking and on any number of shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from harvest.errors import CursorError, FilterError
from harvest.history.states import State
from harvest.operations.counting import count_groups
from harvest.operations.filter_language import MOST_BYTES, parse, render, search_attr, search_attr_filter
from harvest.operations.listing import ListFilter, count, list_executions
from harvest.shards import Shards
from harvest.store import searching
from harvest.store.filters import Expression, Value, is_anchored
from tests.operations.filtering import Row, expressions, holds
from tests.operations.population import EPOCH, Run, add
from tests.scale import scale

KEYS = ["tenant", "amount", "a key", "q\"'", "é", "a:b", "%", "\\", ""]
TEXTS = ["acme", "o'hara", '"', "%", "\\", "\\u0041", "5", "true", "", "日本🦆", "a" * 200, "null", "{}"]
NUMBERS = ["5", "5.0", "0", "-1", "0.1", "1e400", "12345678901234567890.125", "1e-30"]
STORED = [
    *(f'"{text}"' for text in ("acme", "o'hara", '\\"', "%", "\\\\", "5", "true", "日本🦆", "a" * 200, "null")),
    *NUMBERS,
    "true",
    "false",
    "null",
    '["acme", "5"]',
    '{"tenant": "acme", "amount": 5}',
]
VALUES: list[Value] = [*TEXTS, *map(Decimal, NUMBERS), True, False]
INSTANTS = [EPOCH - timedelta(seconds=second) for second in (0, 3, 11)]
# How many rows a walk looks at, where it is given up for an index, and how many matches that may read.
WAYS = {"walking": (500, 1_000_000, 0, 500), "by an index": (7, 0, 1_000_000, 7), "walking on": (7, 0, 0, 20)}


def population() -> list[Row]:
    """Rows of every kind of attribute, in a fixed pattern."""
    rows = []
    for n in range(72):
        held = {KEYS[n % len(KEYS)]: STORED[n % len(STORED)], KEYS[n % 3]: STORED[n * 7 % len(STORED)]}
        pairs = ",".join(f"{_text(key)}:{value}" for key, value in held.items())
        rows.append(
            Row(
                workflow_id=f"o-{n:02}",
                workflow_name=("order_flow", "order_flow", "refund", "o'hara")[n % 4],
                state=("RUNNING", "COMPLETED", "FAILED")[n % 3],
                started_at=EPOCH - timedelta(seconds=n // 4),
                attributes=None if n % 6 == 5 else "{" + pairs + "}",
                owner=("payments", "a'b", None)[n % 3] if n % 2 else None,
                severity=("sev1", "sev2", None)[n % 3] if n % 5 else None,
            )
        )
    return rows


def _text(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


ROWS = population()


@pytest.fixture(scope="module", params=[1, 2, 4])
async def placed(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """The population over one, two and four shards."""
    opened = await Shards.open({n: new_database(f"filters_{request.param}_{n}") for n in range(request.param)})
    for n, row in enumerate(ROWS):
        run = Run(
            workflow_name=row.workflow_name,
            workflow_id=row.workflow_id,
            state=State[row.state],
            age=(EPOCH - row.started_at).total_seconds(),
            search_attributes=row.attributes,
        )
        execution_id = await add(opened, n % request.param, run)
        if row.owner is not None or row.severity is not None:
            await opened.store_of(execution_id).write.write(
                "insert into harvest_triage (execution_id, owner, severity, actor) values ($1, $2, $3, 'a')",
                execution_id,
                row.owner,
                row.severity,
            )
    yield opened
    await opened.close()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way of looking, whatever the numbers of rows would choose."""
    names = ("FIRST_ROWS", "WORTH_WALKING", "MANY", "FURTHER_ROWS")
    for name, value in zip(names, WAYS[request.param], strict=True):
        monkeypatch.setattr(searching, name, value)
    monkeypatch.setattr(searching, "WORTH_WALKING_EACH", 0)
    monkeypatch.setattr(searching, "LEAST_ROWS", 7)
    return str(request.param)


async def found(shards: Shards, wanted: ListFilter) -> list[str]:
    """The workflow ids of all pages."""
    page = await list_executions(shards, wanted, page_size=20)
    assert page.executions.status == "complete"
    ids = [row.workflow_id for row in page.executions.rows]
    while page.next_cursor is not None:
        page = await list_executions(shards, wanted, page_size=20, cursor=page.next_cursor)
        ids += [row.workflow_id for row in page.executions.rows]
    return ids


def expected(expression: Expression) -> list[str]:
    return sorted(row.workflow_id for row in ROWS if holds(expression, row))


@settings(
    max_examples=scale(25, 200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(expressions(KEYS, VALUES, INSTANTS))
async def test_a_filter_finds_what_python_finds(placed: Shards, way: str, expression: Expression) -> None:
    text = render(expression)
    if len(text.encode()) > MOST_BYTES or (" OR " in text and not is_anchored(expression)):
        return
    ids = await found(placed, ListFilter(filter=text))
    assert sorted(ids) == expected(expression), text
    counted = await count(placed, ListFilter(filter=text))
    assert (counted.count, counted.capped) == (len(ids), False)


async def test_each_operator_finds_what_python_finds_for_each_value(placed: Shards) -> None:
    tried = 0
    for key, operator in product(KEYS[:3], ("eq", "ne", "gt", "gte", "lt", "lte", "in", "exists")):
        for value in [""] if operator == "exists" else ["acme", "5", '"5"', "true", "'true'", "1e400", "0.1", "null"]:
            text = f"{key}:{operator}" + (f":{value}" if operator != "exists" else "")
            try:
                expression = search_attr_filter(text)
            except FilterError:
                assert operator in ("gt", "gte", "lt", "lte")
                continue
            tried += 1
            assert sorted(await found(placed, ListFilter(attrs=(expression,)))) == expected(expression), text
    assert tried > 80


async def test_everything_that_a_filter_asks_must_hold(placed: Shards, way: str) -> None:
    wanted = ListFilter(
        states=("RUNNING", "COMPLETED"),
        workflow_name="order_flow",
        started_after=EPOCH - timedelta(seconds=12),
        attrs=(search_attr_filter("tenant:exists"),),
        filter="severity IN ('sev1', 'sev2') AND (attrs.amount EXISTS OR attrs.tenant != 'acme')",
    )
    rows = [
        row.workflow_id
        for row in ROWS
        if row.state in wanted.states
        and row.workflow_name == "order_flow"
        and row.started_at >= EPOCH - timedelta(seconds=12)
        and "tenant" in row.held
        and row.severity in ("sev1", "sev2")
        and ("amount" in row.held or row.held["tenant"] != "acme")
    ]
    assert rows
    assert sorted(await found(placed, wanted)) == sorted(rows)


async def test_a_page_is_in_the_order_of_the_list_whichever_way_it_was_found(placed: Shards, way: str) -> None:
    for order in ("desc", "asc"):
        page = await list_executions(placed, ListFilter(filter="attrs.tenant EXISTS", order=order), page_size=200)
        keys = [(row.started_at, row.execution_id) for row in page.executions.rows]
        assert keys == sorted(keys, reverse=order == "desc")
        assert len(keys) == len(expected(search_attr_filter("tenant:exists")))


async def test_a_shard_sends_no_more_than_a_page_and_one(placed: Shards, way: str) -> None:
    page = await list_executions(placed, ListFilter(filter="attrs.tenant EXISTS"), page_size=3)
    assert page.rows_read <= len(placed.stores) * 4


async def test_groups_are_counted_of_what_the_filter_finds(placed: Shards, way: str) -> None:
    expression = search_attr_filter("tenant:exists")
    grouped = await count_groups(placed, ListFilter(attrs=(expression,)), group_by="state,workflow_name")
    rows = [row for row in ROWS if holds(expression, row)]
    assert {(group.state, group.workflow_name): group.count for group in grouped.groups} == {
        (state, name): n
        for state, name in {(row.state, row.workflow_name) for row in rows}
        if (n := sum((row.state, row.workflow_name) == (state, name) for row in rows))
    }
    assert (grouped.total, grouped.capped) == (len(rows), False)


async def test_a_count_of_matches_stops_at_its_cap(placed: Shards, way: str) -> None:
    counted = await count(placed, ListFilter(filter="attrs.tenant EXISTS"), cap=5)
    assert (counted.count, counted.capped) == (5, True)


@pytest.mark.parametrize(
    "text", ["'; drop table harvest_executions; --", "$1", "%s", ":a", "?", "\\", "'", '"', "日本"]
)
async def test_a_hostile_key_or_value_is_only_looked_for(placed: Shards, text: str) -> None:
    key = text.replace('"', '""')
    value = text.replace("'", "''")
    for each in (
        f"attrs.\"{key}\" = '{value}'",
        f"attrs.\"{key}\" != '{value}' OR attrs.\"{key}\" IN ('{value}', 5)",
        f"owner = '{value}' AND workflow_name != '{value}'",
    ):
        assert sorted(await found(placed, ListFilter(filter=each))) == expected(parse(each))
    assert await found(placed, ListFilter(owner=text)) == []
    one = search_attr("tenant:" + text)
    assert sorted(await found(placed, ListFilter(attrs=(one,)))) == expected(one)
    assert len(await found(placed, ListFilter())) == len(ROWS)


async def test_a_request_has_32_conditions_at_most_wherever_they_stand(placed: Shards) -> None:
    attrs = tuple(search_attr(f"k{n}:1") for n in range(31))
    assert await found(placed, ListFilter(attrs=attrs, owner="payments")) == []
    with pytest.raises(FilterError, match="33 conditions"):
        await found(placed, ListFilter(attrs=attrs, owner="payments", filter="attrs.a = 1"))


async def test_a_cursor_is_of_its_filter_alone(placed: Shards) -> None:
    page = await list_executions(placed, ListFilter(filter="attrs.tenant EXISTS"), page_size=3)
    for other in (
        ListFilter(filter="attrs.amount EXISTS"),
        ListFilter(attrs=(search_attr("tenant:5"),), filter="attrs.tenant EXISTS"),
        ListFilter(owner="payments", filter="attrs.tenant EXISTS"),
    ):
        with pytest.raises(CursorError, match="another filter"):
            await list_executions(placed, other, page_size=3, cursor=page.next_cursor)


async def test_a_time_before_now_is_told_from_now(placed: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(moment: datetime) -> None:
        monkeypatch.setattr("harvest.clock.now", lambda: moment)

    at(EPOCH)
    recent = [row.workflow_id for row in ROWS if row.started_at > EPOCH - timedelta(seconds=5)]
    assert sorted(await found(placed, ListFilter(filter="started_at > -5s"))) == sorted(recent)
    at(EPOCH + timedelta(hours=1))
    assert await found(placed, ListFilter(filter="started_at > -5s")) == []


async def test_a_shard_that_would_walk_too_long_is_named_with_what_helps(
    placed: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FIRST_ROWS": 2, "LEAST_ROWS": 2, "_SECONDS": 0.0, "MANY": 0}.items():
        monkeypatch.setattr(searching, name, value)
    page = await list_executions(placed, ListFilter(filter="attrs.nothing EXISTS"))
    assert page.executions.status == "unavailable"
    assert {shard.reason for shard in page.executions.missing} == {
        "the filter takes too long here: narrow it by a time, a type or a state"
    }
