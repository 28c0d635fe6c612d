"""What a declaration refuses at import, and what it says of its input and result."""

from __future__ import annotations

import dataclasses
import datetime as datetime_module
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from harvest import ActivityContext, Harvest, Retry, WorkflowContext
from harvest.errors import DefinitionError, LimitError, PayloadDecodeError


class Item(Struct):
    name: str
    count: Annotated[int, Meta(ge=1)] = 1


@dataclasses.dataclass
class Plain:
    x: int


async def nothing(ctx: WorkflowContext) -> None:
    return None


async def starred(ctx: WorkflowContext, *numbers: int) -> None:
    return None


async def keywords(ctx: WorkflowContext, **numbers: int) -> None:
    return None


async def keyword_only(ctx: WorkflowContext, *, number: int) -> None:
    return None


async def unsupported(ctx: WorkflowContext, call: Callable[[], int]) -> None:
    return None


async def unsupported_result(ctx: WorkflowContext) -> Callable[[], int]:
    raise NotImplementedError


async def unknown_name(ctx: WorkflowContext, item: Missing) -> None:  # type: ignore[name-defined] # noqa: F821
    return None


async def no_context() -> None:
    return None


def not_async(ctx: WorkflowContext) -> None:
    return None


async def reads_clock(ctx: WorkflowContext) -> None:
    datetime.now()  # noqa: DTZ005


async def reads_clock_of_module(ctx: WorkflowContext) -> None:
    datetime_module.datetime.utcnow()  # noqa: DTZ003


async def reads_date(ctx: WorkflowContext) -> None:
    date.today()  # noqa: DTZ011


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (starred, r"takes \*numbers; declare each parameter by name"),
        (keywords, r"takes \*numbers; declare each parameter by name"),
        (keyword_only, "'number'.* keyword-only; make it positional"),
        (unsupported, "'call'.* cannot be stored as JSON"),
        (unsupported_result, "the result of .* cannot be stored as JSON"),
        (unknown_name, "annotations .* cannot be read: name 'Missing'"),
        (no_context, "must take its context as first parameter"),
        (not_async, "must be declared with `async def`"),
        (reads_clock, r"datetime.now\(\) on line \d+.* use ctx.now\(\)"),
        (reads_clock_of_module, r"datetime.utcnow\(\) on line \d+.* use ctx.now\(\)"),
        (reads_date, r"date.today\(\) on line \d+.* use ctx.now\(\).date\(\)"),
    ],
)
def test_a_workflow_that_cannot_work_is_refused_at_import(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Harvest().workflow(function)


@pytest.mark.parametrize("function", [starred, keyword_only, unsupported, unsupported_result])
def test_an_activity_that_cannot_work_is_refused_at_import(function: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError):
        Harvest().activity(function)


def test_names_are_unique_and_versions_are_part_of_a_workflows_name() -> None:
    app = Harvest()
    app.workflow(nothing)
    with pytest.raises(DefinitionError, match="workflow 'nothing' version 1 is declared twice"):
        app.workflow(name="nothing")(starless)
    app.workflow(name="nothing", version=2)(nothing)
    latest = app.registry.latest("nothing")
    assert latest is not None
    assert latest.version == 2
    app.activity(plain)
    with pytest.raises(DefinitionError, match="activity 'plain' is declared twice"):
        app.activity(name="plain")(starless_activity)


async def starless(ctx: WorkflowContext) -> None:
    return None


async def plain(n: int) -> int:
    return n


async def starless_activity() -> None:
    return None


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", "\ud800"])
def test_a_name_has_its_limits(name: str) -> None:
    with pytest.raises(LimitError):
        Harvest().workflow(name=name)(nothing)
    with pytest.raises(LimitError):
        Harvest().activity(name=name)(plain)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_to_close": timedelta(0)},
        {"schedule_to_close": timedelta(seconds=-1)},
        {"start_to_close": timedelta(seconds=10), "schedule_to_close": timedelta(seconds=5)},
        {"start_to_close": timedelta(seconds=1), "heartbeat_timeout": timedelta(seconds=2)},
        {"priority": 40_000},
    ],
)
def test_options_that_contradict_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Harvest().activity(**wrong)


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"coefficient": 0.5}, {"initial_interval": timedelta(-1)}])
def test_a_retry_policy_that_contradicts_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Retry(**wrong)


def test_without_any_limit_an_attempt_has_ten_minutes() -> None:
    app = Harvest()
    assert app.activity(plain).options.start_to_close == 600
    beating = app.activity(name="beating", heartbeat_timeout=timedelta(seconds=5))(plain)
    assert beating.options.start_to_close is None


def test_one_parameter_is_that_value_several_are_an_array_none_is_null() -> None:
    app = Harvest()

    async def one(ctx: WorkflowContext, item: Item) -> str:
        return item.name

    async def two(ctx: WorkflowContext, item: Item, times: int = 2) -> list[Item]:
        return [item] * times

    first, second, none = app.workflow(name="one")(one), app.workflow(name="two")(two), app.workflow(nothing)
    assert first.signature.encode((Item("a"),), {}) == b'{"name":"a","count":1}'
    assert second.signature.encode((Item("a"),), {}) == b'[{"name":"a","count":1},2]'
    assert none.signature.encode((), {}) == b"null"
    assert first.signature.decode(b'{"name":"a"}') == [Item("a", 1)]
    assert second.signature.decode(b'[{"name":"a"}]') == [Item("a", 1), 2]
    assert none.signature.decode(b"null") == []
    with pytest.raises(PayloadDecodeError, match="'item'"):
        second.signature.decode(b"[1,2]")
    with pytest.raises(PayloadDecodeError, match="array"):
        second.signature.decode(b"1")


def test_the_schemas_make_forms() -> None:
    app = Harvest()

    async def two(ctx: WorkflowContext, item: Item, times: int = 2) -> list[Plain]:
        return []

    declared = app.workflow(signals={"more": Item})(two)
    schema = declared.signature.input_schema()
    assert schema["x-parameters"] == ["item", "times"]
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 2)
    assert schema["prefixItems"][1] == {"type": "integer", "default": 2}
    item = schema["$defs"]["Item"]
    assert item["properties"]["count"]["minimum"] == 1
    assert item["required"] == ["name"]
    assert declared.signature.output_schema()["type"] == "array"
    assert declared.signals["more"]["$defs"]["Item"]["title"] == "Item"


def test_an_activity_takes_its_context_only_where_it_is_annotated() -> None:
    app = Harvest()

    async def with_context(ctx: ActivityContext, n: int) -> int:
        return n

    assert app.activity(with_context).signature.input_schema()["x-parameters"] == ["n"]
    assert app.activity(plain).signature.input_schema()["x-parameters"] == ["n"]


def test_a_declared_function_can_still_be_called() -> None:
    app = Harvest()

    def double(n: int) -> int:
        return 2 * n

    assert app.activity(double)(4) == 8


def test_with_options_changes_one_call_and_keeps_the_rest() -> None:
    declared = Harvest().activity(
        start_to_close=timedelta(seconds=7), retry=Retry(max_attempts=9), queue="slow", priority=3
    )(plain)
    changed = declared.with_options(start_to_close=timedelta(seconds=2))
    assert changed.options.start_to_close == 2
    assert changed.options.retry == declared.options.retry
    assert (changed.options.queue, changed.options.priority) == ("slow", 3)
    assert declared.options.start_to_close == 7
