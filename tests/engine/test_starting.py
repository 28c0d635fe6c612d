"""Starting: the policies of reuse and conflict, idempotency keys, priority and queue, input by its schema."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from harvest import Harvest, WorkflowContext, WorkflowFailedError, WorkflowHandle
from harvest.errors import (
    ExecutionExistsError,
    IdempotencyConflictError,
    InputInvalidError,
    InvalidRequestError,
    LimitError,
    PayloadError,
    WorkflowNotRegisteredError,
)
from harvest.history.kinds import EventKind
from harvest.operations import reading, starting
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("starting")) as working:
        yield working
        await check_invariants(working[1])


@app.workflow
async def prior(ctx: WorkflowContext) -> str:
    how = await ctx.wait_for_signal("end", str)
    if how == "fail":
        raise ValueError("as asked")
    return "completed"


async def bring_to(state: str, workflow_id: str) -> WorkflowHandle[str] | None:
    """A run of this id in this state, or none."""
    if state == "none":
        return None
    timeout = timedelta(seconds=0.3) if state == "TIMED_OUT" else None
    handle = await app.start(prior, workflow_id=workflow_id, execution_timeout=timeout)
    match state:
        case "COMPLETED" | "FAILED":
            await handle.signal("end", "fail" if state == "FAILED" else "")
        case "CANCELLED":
            await handle.cancel()
        case "TERMINATED":
            await handle.terminate()
        case _:
            pass
    if state not in ("RUNNING", "COMPLETED"):
        with pytest.raises(WorkflowFailedError, match=state):
            await handle.result(SOON)
    elif state == "COMPLETED":
        await handle.result(SOON)
    return handle


def expected(state: str, reuse: str, conflict: str) -> str:
    """Reference 2.8: new, existing, error, or replaced."""
    if state == "none":
        return "new"
    if state == "RUNNING":
        if conflict != "unspecified":
            return {"fail": "error", "use_existing": "existing", "terminate_existing": "replaced"}[conflict]
        return {"reject_duplicate": "error", "terminate_if_running": "replaced"}.get(reuse, "existing")
    if reuse == "reject_duplicate" and state != "TERMINATED":
        return "error"
    if reuse == "allow_duplicate_failed_only" and state == "COMPLETED":
        return "error"
    return "new"


STATES = ("none", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT", "TERMINATED")


@pytest.mark.parametrize("state", STATES)
async def test_the_matrix_of_policies(work: Work, state: str) -> None:
    async def one(reuse: Any, conflict: Any) -> None:
        workflow_id = f"{state}/{reuse}/{conflict}"
        before = await bring_to(state, workflow_id)
        wanted = expected(state, reuse, conflict)
        what = f"{workflow_id}: {wanted}"
        start = app.start(prior, workflow_id=workflow_id, reuse_policy=reuse, conflict_policy=conflict)
        if wanted == "error":
            with pytest.raises(ExecutionExistsError) as caught:
                await start
            assert before is not None
            assert caught.value.fields["existing_execution_id"] == str(before.execution_id)
            assert caught.value.fields["existing_state"] == state
            return
        after = await start
        same = before is not None and after.execution_id == before.execution_id
        assert same == (wanted == "existing"), what
        if wanted == "replaced":
            assert before is not None
            assert (await reading.get(work[1], before.execution_id)).state == "TERMINATED", what
        assert (await reading.get(work[1], after.execution_id)).state == "RUNNING", what
        await after.terminate()

    await asyncio.gather(
        *(one(reuse, conflict) for reuse in starting.REUSE_POLICIES for conflict in starting.CONFLICT_POLICIES)
    )


async def test_twenty_concurrent_starts_of_one_id_are_one_run(work: Work) -> None:
    handles = await asyncio.gather(*(app.start(prior, workflow_id="crowd") for _ in range(20)))
    assert len({handle.execution_id for handle in handles}) == 1
    created = (
        await work[1].stores[0].read.fetch("select count(*) as n from harvest_executions where workflow_id = 'crowd'")
    )
    assert created[0]["n"] == 1
    await handles[0].terminate()


async def test_concurrent_starts_that_replace_leave_one_open_run(work: Work) -> None:
    starts = (app.start(prior, workflow_id="duel", conflict_policy="terminate_existing") for _ in range(8))
    answers = await asyncio.gather(*starts, return_exceptions=True)
    assert any(isinstance(answer, WorkflowHandle) for answer in answers)
    assert all(isinstance(answer, WorkflowHandle | ExecutionExistsError) for answer in answers), answers
    rows = (
        await work[1]
        .stores[0]
        .read.fetch("select state, count(*) as n from harvest_executions where workflow_id = 'duel' group by state")
    )
    assert {row["state"]: row["n"] for row in rows}[0] == 1
    assert {row["state"] for row in rows} <= {0, 13}


async def test_ids_are_kept_apart_by_workflow_type(work: Work) -> None:
    one = await app.start(prior, workflow_id="shared")
    other = await app.start(typed, Form(name="a", when=datetime.now(UTC)), workflow_id="shared")
    assert one.execution_id != other.execution_id
    await one.terminate()


async def test_a_key_stands_for_one_run(work: Work) -> None:
    handles = await asyncio.gather(*(app.start(prior, idempotency_key="once") for _ in range(12)))
    assert len({handle.execution_id for handle in handles}) == 1
    await handles[0].terminate()
    again = await app.start(prior, idempotency_key="once")
    assert again.execution_id == handles[0].execution_id
    other = await app.start(prior, idempotency_key="twice")
    assert other.execution_id != again.execution_id
    await other.terminate()


async def test_a_key_belongs_to_its_workflow_id(work: Work) -> None:
    first = await app.start(prior, workflow_id="key-a", idempotency_key="mine")
    assert (await app.start(prior, workflow_id="key-a", idempotency_key="mine")).execution_id == first.execution_id
    with pytest.raises(IdempotencyConflictError, match="was used for workflow id 'key-a'"):
        await app.start(prior, workflow_id="key-b", idempotency_key="mine")
    assert (await app.start(prior, idempotency_key="mine")).execution_id == first.execution_id
    await first.terminate()


async def test_a_key_that_found_an_existing_run_finds_it_again(work: Work) -> None:
    first = await app.start(prior, workflow_id="attached")
    for _ in range(2):
        found = await app.start(prior, workflow_id="attached", idempotency_key="attaches")
        assert found.execution_id == first.execution_id
    await first.terminate()


async def test_a_key_of_a_refused_start_is_free(work: Work) -> None:
    first = await app.start(prior, workflow_id="refusing")
    with pytest.raises(ExecutionExistsError):
        await app.start(prior, workflow_id="refusing", conflict_policy="fail", idempotency_key="free")
    await first.terminate()
    second = await app.start(prior, workflow_id="refusing", conflict_policy="fail", idempotency_key="free")
    assert second.execution_id != first.execution_id
    await second.terminate()


async def test_a_key_is_forgotten_after_a_day(work: Work) -> None:
    first = await app.start(prior, idempotency_key="daily")
    await first.terminate()
    store = work[1].stores[0]
    age = "update harvest_dedupe set created_at = created_at - $1::interval where kind = 1 and key = 'prior/daily'"
    await store.write.write(age, timedelta(hours=23, minutes=59))
    assert (await app.start(prior, idempotency_key="daily")).execution_id == first.execution_id
    await store.write.write(age, timedelta(minutes=2))
    second = await app.start(prior, idempotency_key="daily")
    assert second.execution_id != first.execution_id
    assert (await app.start(prior, idempotency_key="daily")).execution_id == second.execution_id
    await second.terminate()


order: list[int] = []


@app.workflow(queue="ordered")
async def ordered(ctx: WorkflowContext, n: int) -> None:
    order.append(n)


async def test_higher_priority_goes_first_and_the_queue_is_the_declared_one(
    work: Work, new_database: Callable[[str], str]
) -> None:
    """Runs wait in a queue of their own until a worker for it comes, with a batch of one."""
    handles = [await app.start(ordered, n, priority=n) for n in (1, 3, 2, -5)]
    shards = await Shards.open({shard_id: store.url for shard_id, store in work[1].stores.items()})
    other = Worker(
        app.registry, shards, WorkerOptions(queues=("ordered",), poll_interval=0.05, claim_batch=1, drain_timeout=0.1)
    )
    await other.start()
    try:
        await asyncio.gather(*(handle.result(SOON) for handle in handles))
    finally:
        await other.stop()
        await shards.close()
    assert order == [3, 2, 1, -5]
    assert (await reading.get(work[1], handles[0].execution_id)).queue == "ordered"


async def test_a_start_may_name_another_queue(work: Work) -> None:
    handle = await app.start(prior, queue="elsewhere")
    assert (await reading.get(work[1], handle.execution_id)).queue == "elsewhere"
    await handle.terminate()


class Line(Struct):
    article: str
    count: Annotated[int, Meta(ge=1)]


class Form(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=5)]
    when: Annotated[datetime, Meta(tz=True)]
    lines: list[Line] = []
    day: date | None = None
    token: uuid.UUID | None = None
    wait: timedelta | None = None
    more: dict[str, Line] = {}


@app.workflow
async def typed(ctx: WorkflowContext, form: Form) -> str:
    return form.name


GOOD: dict[str, Any] = {"name": "a", "when": "2026-01-01T10:00:00Z"}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "123456"}, "/name"),
        ({"name": 5}, "/name"),
        ({"lines": [{"article": "x", "count": 1}, {"article": "y", "count": 0}]}, "/lines/1/count"),
        ({"lines": [{"article": "x"}]}, "/lines/0"),
        ({"when": "yesterday"}, "/when"),
        ({"day": "2026-02-30"}, "/day"),
        ({"token": "not-a-uuid"}, "/token"),
        ({"wait": "an hour"}, "/wait"),
        ({"more": {"a/b~c": {"article": 1, "count": 1}}}, "/more/a~1b~0c/article"),
    ],
)
async def test_input_that_does_not_fit_is_refused_with_pointers(
    work: Work, change: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InputInvalidError) as caught:
        await starting.start(
            work[1], in_process("test"), workflow_name="typed", input=msgspec.json.encode({**GOOD, **change})
        )
    assert [problem["pointer"] for problem in caught.value.fields["problems"]] == [pointer]


async def test_what_the_schema_accepts_the_run_can_read(work: Work) -> None:
    line = {"article": "x", "count": 2}
    more = {"day": "2026-02-28", "token": str(uuid.uuid4()), "wait": "PT1H", "more": {"k": line}}
    full = {**GOOD, **more, "lines": [line]}
    for given in (GOOD, full):
        started = await starting.start(
            work[1], in_process("test"), workflow_name="typed", input=msgspec.json.encode(given)
        )
        assert await (await app.handle(started.execution_id, typed)).result(SOON) == "a"


@app.workflow
async def one_default(ctx: WorkflowContext, count: int = 20) -> int:
    return count


@app.workflow
async def two_defaults(ctx: WorkflowContext, count: int = 20, word: str = "x") -> str:
    return word * count


async def test_an_input_left_out_is_the_defaults(work: Work) -> None:
    results = []
    for name in ("one_default", "two_defaults"):
        started = await starting.start(work[1], in_process("test"), workflow_name=name)
        results.append(await (await app.handle(started.execution_id)).result(SOON))
    assert results == [20, "x" * 20]
    assert one_default.signature.input_schema()["default"] == 20
    with pytest.raises(InputInvalidError):
        await starting.start(work[1], in_process("test"), workflow_name="typed")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"{", PayloadError),
        (b"\xff", PayloadError),
        (b'"\\ud800"', PayloadError),
        (b"[" * 201 + b"]" * 201, PayloadError),
        (b"1e999", PayloadError),
        (b"nan", PayloadError),
    ],
)
async def test_input_that_is_no_strict_json_is_refused(work: Work, text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await starting.start(work[1], in_process("test"), workflow_name="typed", input=text)


class Nested(Struct):
    inner: Nested | None = None


@app.workflow
async def nested(ctx: WorkflowContext, value: Nested) -> int:
    depth = 0
    while value.inner is not None:
        value, depth = value.inner, depth + 1
    return depth


@pytest.mark.parametrize(("depth", "fits"), [(50, True), (199, False)])
async def test_input_nested_too_deeply_for_its_schema_is_refused(work: Work, depth: int, fits: bool) -> None:
    text = b'{"inner":' * depth + b"{}" + b"}" * depth
    start = starting.start(work[1], in_process("test"), workflow_name="nested", input=text)
    if not fits:
        with pytest.raises(InputInvalidError, match="nested too deeply"):
            await start
        return
    handle = await app.handle((await start).execution_id, nested)
    assert await handle.result(SOON) == depth


async def test_a_type_that_nobody_registered_is_named_with_what_was_meant(work: Work) -> None:
    with pytest.raises(WorkflowNotRegisteredError, match="did you mean 'prior'"):
        await starting.start(work[1], in_process("test"), workflow_name="priour")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"workflow_id": "x" * 2_049}, LimitError),
        ({"workflow_id": "é" * 1_025}, LimitError),
        ({"workflow_id": "a\x00"}, LimitError),
        ({"workflow_id": "\ud800"}, LimitError),
        ({"idempotency_key": ""}, LimitError),
        ({"idempotency_key": "x" * 256}, LimitError),
        ({"queue": "x" * 256}, LimitError),
        ({"priority": 32_768}, InvalidRequestError),
        ({"execution_timeout_secs": 0}, InvalidRequestError),
        ({"execution_timeout_secs": float("nan")}, InvalidRequestError),
        ({"reuse_policy": "sometimes"}, InvalidRequestError),
        ({"conflict_policy": "sometimes"}, InvalidRequestError),
        ({"memo": b"{"}, PayloadError),
        ({"search_attrs": {"a": float("nan")}}, PayloadError),
        ({"search_attrs": {"a": "\x00"}}, InvalidRequestError),
        ({"search_attrs": {"a": "\ud800"}}, PayloadError),
    ],
)
async def test_what_a_start_refuses(work: Work, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await starting.start(work[1], in_process("test"), workflow_name="prior", **wrong)


async def test_the_longest_id_works(work: Work) -> None:
    handle = await app.start(prior, workflow_id="é" * 1_024)
    await handle.signal("end", "")
    assert await handle.result(SOON) == "completed"


async def test_the_first_event_holds_the_exact_input(work: Work) -> None:
    text = b'{ "name" : "a", "when":"2026-01-01T10:00:00Z", "more": {} }'
    started = await starting.start(work[1], in_process("test"), workflow_name="typed", input=text, memo=b'{"b":1.10}')
    first = (await history_of(work[1], started.execution_id))[0]
    assert first.kind == EventKind.WORKFLOW_STARTED
    assert bytes(first.data().input) == text
    assert await reading.detail_payload(work[1], started.execution_id, "input") == text
    assert await reading.detail_payload(work[1], started.execution_id, "memo") == b'{"b":1.10}'


async def test_many_are_started_in_one_go(work: Work) -> None:
    ids = [f"many-{n}" for n in range(300)]
    assert await starting.start_many(work[1], "prior", ids, b"null") == 300
    assert await starting.start_many(work[1], "prior", ids, b"null") == 0

    async def all_wait() -> bool:
        rows = (
            await work[1]
            .stores[0]
            .read.fetch(
                "select count(*) as n from harvest_executions where workflow_id like 'many-%' and waiting is not null"
            )
        )
        return bool(rows[0]["n"] == 300)

    await eventually(all_wait)
