"""The workflows of the golden histories: every construct, in code that never changes.

What is written here has histories in the folders beside it, one for each release: to change a workflow is to break the
runs that a user's database holds. Add new ones instead, and record them with `python tools/record_histories.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from harvest import ActivityContext, ActivityError, ApplicationError, Harvest, Retry, WorkflowContext
from harvest.errors import ChildWorkflowError, ExternalWorkflowError, HarvestError, SessionBrokenError

app = Harvest()
QUICK: Final = Retry(max_attempts=3, initial_interval=timedelta(seconds=0.05))


class Order(Struct):
    """What a customer wants."""

    card: str
    cents: int
    items: list[str] = []


class Receipt(Struct):
    """How an order ended."""

    charge: str
    approved_by: str


@app.activity(retry=QUICK)
async def charge(ctx: ActivityContext, card: str, cents: int) -> str:
    """Fails once, as a gateway does."""
    if ctx.attempt == 1:
        raise ConnectionError("the gateway did not answer")
    if card == "stolen":
        raise ApplicationError("the bank says no", type="CardDeclined", non_retryable=True)
    return f"{card}/{cents}"


@app.activity
async def double(number: int) -> int:
    """An activity that always ends well."""
    return number * 2


@app.activity
def shout(text: str) -> str:
    """A plain function."""
    return text.upper()


@app.activity
async def slow(seconds: float) -> float:
    """One that is given up."""
    await asyncio.sleep(seconds)
    return seconds


@app.activity(start_to_close=timedelta(seconds=0.2), retry=Retry(max_attempts=1))
async def too_slow() -> None:
    """One that runs into its timeout."""
    await asyncio.sleep(30)


@app.workflow
async def golden_order(ctx: WorkflowContext, order: Order) -> Receipt:
    """Activities with retries, a typed failure with its cause, a signal with a timeout."""
    charged = await ctx.execute_activity(charge, order.card, order.cents)
    try:
        await ctx.execute_activity(charge, "stolen", 1)
    except ActivityError as error:
        charged += f" {error.fields['type']} {type(error.__cause__).__name__}"
    by = await ctx.wait_for_signal("approved", str, timeout=timedelta(days=2))
    return Receipt(charged, await ctx.execute_activity(shout, by))


@app.activity
async def patient(seconds: float) -> None:
    """One that outlives its session."""
    await asyncio.sleep(seconds)


@app.workflow
async def golden_sessions(ctx: WorkflowContext) -> list[Any]:
    """Activities on one worker; a session that breaks under one, and a session after it."""
    told: list[Any] = []
    async with ctx.create_session() as session:
        told += [await session.execute_activity(double, number) for number in (1, 2)]
        left = asyncio.ensure_future(session.execute_activity(patient, 60.0))
        await ctx.sleep(0.05)
    told.append(left.cancelled() or isinstance((await asyncio.gather(left, return_exceptions=True))[0], BaseException))
    try:
        async with ctx.create_session(execution_timeout=0.3) as session:
            await session.execute_activity(patient, 60.0)
    except SessionBrokenError as error:
        told += [error.fields["reason"], session.is_broken]
    async with ctx.create_session() as session:
        told.append(await session.execute_activity(double, 3))
    return told


@app.workflow
async def golden_joins(ctx: WorkflowContext, numbers: list[int]) -> list[Any]:
    """Many things at once, by everything that asyncio and the context have for it."""
    gathered = await asyncio.gather(*(ctx.execute_activity(double, number) for number in numbers))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.execute_activity(double, number)) for number in gathered]
    mixed: list[Awaitable[Any]] = [ctx.execute_activity(double, 5), asyncio.sleep(0)]
    completed = [await soonest for soonest in asyncio.as_completed(mixed)]
    fanned = await ctx.fan_out(double, [task.result() for task in tasks], at_once=2)
    raced: list[Awaitable[Any]] = [ctx.execute_activity(slow, 20.0), ctx.execute_activity(double, 7)]
    winner = await ctx.race(*raced)
    lock, order = asyncio.Lock(), list[int]()

    async def one_by_one(number: int) -> None:
        async with lock:
            order.append(await ctx.execute_activity(double, number))

    await asyncio.gather(*map(one_by_one, range(3)))
    return [gathered, completed, fanned, winner.index, winner.value, order]


@app.workflow
async def golden_timers(ctx: WorkflowContext) -> list[Any]:
    """Timers that fire, are cancelled, are awaited later, and end what takes too long."""
    told: list[Any] = []
    began = ctx.now()
    await ctx.sleep(0.05)
    await ctx.sleep_until(ctx.info.started_at + timedelta(seconds=0.2))
    kept, dropped, unseen = ctx.start_timer(0.1), ctx.start_timer(60), ctx.start_timer(60)
    told.append(unseen.cancel())
    await kept
    told.append(dropped.cancel())
    try:
        async with asyncio.timeout(0.05):
            await ctx.execute_activity(slow, 20.0)
    except TimeoutError:
        told.append("timeout")
    with suppress(TimeoutError):
        await asyncio.wait_for(ctx.wait_condition(lambda: False), 0.05)
    try:
        await ctx.execute_activity(too_slow)
    except TimeoutError as error:
        told.append(type(error).__name__)
    told.append(ctx.now() > began)
    return told


@app.workflow
async def golden_locals(ctx: WorkflowContext) -> list[Any]:
    """Local activities and side effects, with values that cannot be computed again."""
    number = ctx.side_effect(lambda: object().__hash__() % 1_000, as_type=int, name="address")
    doubled = await ctx.execute_local_activity(double, number)
    retried = await ctx.execute_local_activity(charge.with_options(retry=QUICK), "visa", number)
    try:
        await ctx.execute_local_activity(charge, "stolen", doubled)
    except ActivityError as error:
        return [doubled == number * 2, retried.partition("/")[0], error.fields["type"]]
    return []


@app.workflow
async def golden_child(ctx: WorkflowContext, number: int) -> int:
    """A child: it sleeps, and fails below zero."""
    await ctx.sleep(0.02)
    if number < 0:
        raise ValueError("below zero")
    return await ctx.execute_activity(double, number)


@app.workflow
async def golden_patient(ctx: WorkflowContext) -> str:
    """One that waits for `go`, and cleans up when it is cancelled."""
    try:
        return await ctx.wait_for_signal("go", str)
    except asyncio.CancelledError:
        await ctx.execute_activity(double, 1)
        raise


@app.workflow
async def golden_family(ctx: WorkflowContext) -> list[Any]:
    """Children that complete, fail, are cancelled, run late, are signalled and are left to themselves."""
    told: list[Any] = [await ctx.execute_child_workflow(golden_child, 4)]
    collected = await ctx.fan_out_collect(golden_child, [1, -1])
    told.append([each.fields["type"] if isinstance(each, HarvestError) else each for each in collected])
    patient = await ctx.start_child_workflow(golden_patient)
    await patient.signal("go", "on")
    told.append(await patient)
    given_up = await ctx.start_child_workflow(golden_patient)
    await ctx.sleep(0.05)
    given_up.cancel()
    try:
        await ctx.execute_child_workflow(golden_patient.with_options(deadline=timedelta(seconds=0.1)))
    except TimeoutError:
        told.append("late")
    await ctx.start_child_workflow(golden_child.with_options(detached=True), 9)
    try:
        await ctx.execute_child_workflow("golden_child", -2)
    except ChildWorkflowError as error:
        told.append(error.fields["state"])
    return told


@app.workflow
async def golden_messages(ctx: WorkflowContext) -> list[Any]:
    """Handlers of signals, updates and queries; `finish` ends it."""
    seen: list[Any] = []

    async def note(text: str) -> None:
        seen.append(await ctx.execute_activity(shout, text))

    def check(number: int) -> None:
        if number < 0:
            raise ValueError("below zero")

    async def add(number: int) -> int:
        if number == 13:
            raise RuntimeError("unlucky")
        seen.append(await ctx.execute_activity(double, number))
        return len(seen)

    ctx.register_signal_handler("note", note)
    ctx.register_signal_handler("plain", seen.append)
    ctx.register_update_handler("add", add, validator=check)
    ctx.register_update_handler("count", lambda: len(seen))
    ctx.register_query_handler("seen", lambda: list(seen))
    await ctx.wait_for_signal("finish")
    await ctx.wait_condition(ctx.all_handlers_finished)
    return sorted(map(str, seen))


@app.workflow
async def golden_rotation(ctx: WorkflowContext, left: int, seen: list[int]) -> list[int]:
    """Continues as new with signals that nobody has read."""
    if left:
        await ctx.sleep(0.05)
        ctx.continue_as_new(left - 1, [*seen, *ctx.drain_signals("early", int)])
    while len(seen) < 4:
        seen.append(await ctx.wait_for_signal("number", int))
    return seen


@app.workflow
async def golden_versions(ctx: WorkflowContext) -> list[Any]:
    """Markers of changes, twice each."""
    told: list[Any] = [ctx.patched("faster"), ctx.version("layout", 1, 3)]
    await ctx.execute_activity(double, 1)
    told += [ctx.patched("faster"), ctx.version("layout", 1, 4), ctx.version("second", 0, 1)]
    ctx.deprecate_patch("long gone")
    return told


@app.workflow
async def golden_strangers(ctx: WorkflowContext, one: str, other: str) -> list[Any]:
    """Runs that somebody else started: signalled, awaited, cancelled, ended, and not there."""
    told: list[Any] = []
    await ctx.signal_external_workflow_by_id("golden_patient", one, "go", "hello")
    told.append(await ctx.await_external_workflow_by_id("golden_patient", one))
    await ctx.cancel_external_workflow_by_id("golden_patient", other, "enough")
    for act in (
        ctx.await_external_workflow_by_id("golden_patient", other),
        ctx.signal_external_workflow_by_id("golden_patient", one, "go", "again"),
        ctx.cancel_external_workflow_by_id("golden_patient", "nobody"),
        ctx.await_external_workflow_by_id("golden_patient", "nobody"),
    ):
        try:
            await act
        except ExternalWorkflowError as error:
            told.append(error.fields["reason_code"])
    return told


@app.workflow
async def golden_chance(ctx: WorkflowContext) -> list[Any]:
    """What follows from the run's seed goes into what is asked for."""
    dice = ctx.random()
    numbers = [dice.randint(1, 6), dice.choice("abc"), round(dice.gauss(), 9), dice.sample(range(50), 3)]
    words = sorted({str(ctx.uuid4()) for _ in range(3)})
    tasks = {asyncio.create_task(ctx.execute_activity(double, dice.randrange(100))) for _ in range(6)}
    doubled = [await task for task in tasks]  # harvest: allow HVG008
    return [await ctx.execute_activity(shout, str((numbers, words))), doubled]


@app.workflow(retry=Retry(max_attempts=3, initial_interval=timedelta(seconds=0.05)))
async def golden_attempts(ctx: WorkflowContext) -> int:
    """Fails twice as a whole."""
    await ctx.execute_activity(double, ctx.info.attempt)
    if ctx.info.attempt < 3:
        raise ApplicationError("not yet", type="NotYet")
    return ctx.info.attempt


Act = Callable[[Any], Awaitable[None]]


class Scenario(Struct, frozen=True):
    """A run to record: what is started, and what is done to it then, by a handle of either kind.

    `beside` are workflow ids of golden_patient to be started first, `options` those of the start.
    """

    name: str
    workflow: Any
    args: tuple[Any, ...]
    act: Act
    beside: tuple[str, ...] = ()
    options: dict[str, Any] = {}


async def _only_wait(handle: Any) -> None:
    await handle.result()


async def _approve(handle: Any) -> None:
    await handle.signal("approved", "ann")
    await handle.result()


async def _talk(handle: Any) -> None:
    await handle.signal("note", "hello")
    await handle.update("add", 3)
    await handle.signal("plain", {"any": [1, None]})
    for refused in (13, -1):
        with suppress(HarvestError):
            await handle.update("add", refused)
    with suppress(HarvestError):
        await handle.update("missing")
    await handle.update("count")
    await handle.query("seen")


async def _talk_to_the_end(handle: Any) -> None:
    await _talk(handle)
    await handle.signal("finish")
    await handle.result()


async def _hold(handle: Any) -> None:
    await handle.update("count")
    await handle.pause("look at it")
    await handle.signal("note", "meanwhile")
    await handle.resume()
    await handle.update("add", 1)


async def _feed(handle: Any) -> None:
    for number in range(4):
        await handle.signal("number", number)
    await handle.result()


async def _cancel(handle: Any) -> None:
    await handle.cancel("no longer wanted")
    await _fail(handle)


async def _fail(handle: Any) -> None:
    with suppress(HarvestError):
        await handle.result()


async def _terminate(handle: Any) -> None:
    await handle.update("count")
    await handle.terminate("enough")


SCENARIOS: Final = (
    Scenario("order", golden_order, (Order("visa", 250, ["pen"]),), _approve),
    Scenario("joins", golden_joins, ([1, 2, 3],), _only_wait),
    Scenario("timers", golden_timers, (), _only_wait),
    Scenario("locals", golden_locals, (), _only_wait),
    Scenario("family", golden_family, (), _only_wait),
    Scenario("messages", golden_messages, (), _talk_to_the_end),
    Scenario("messages-open", golden_messages, (), _talk),
    Scenario("messages-held", golden_messages, (), _hold),
    Scenario("messages-terminated", golden_messages, (), _terminate),
    Scenario("rotation", golden_rotation, (2, []), _feed),
    Scenario("versions", golden_versions, (), _only_wait),
    Scenario("strangers", golden_strangers, ("one", "other"), _only_wait, beside=("one", "other")),
    Scenario("sessions", golden_sessions, (), _only_wait),
    Scenario("chance", golden_chance, (), _only_wait),
    Scenario("attempts", golden_attempts, (), _only_wait),
    Scenario("cancelled", golden_patient, (), _cancel),
    Scenario("late", golden_patient, (), _fail, options={"execution_timeout": timedelta(seconds=0.3)}),
)
