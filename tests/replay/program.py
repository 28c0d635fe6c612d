"""Random workflow programs as data: what they are made of, and how they are drawn and made smaller."""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

SIGNALS = ("alpha", "beta")
UPDATES = ("add", "set", "put")
ACTIVITIES = ("one", "two", "three")


class Call(Struct, frozen=True, tag=True):
    name: str
    salt: int


class CallByName(Struct, frozen=True, tag=True):
    """The arguments hold a set, whose order hangs on the process."""

    words: list[str]


class Sleep(Struct, frozen=True, tag=True):
    seconds: float
    until: bool = False


class Yield(Struct, frozen=True, tag=True):
    pass


class Look(Struct, frozen=True, tag=True):
    at: str


class Receive(Struct, frozen=True, tag=True):
    signal: str
    timeout: float | None = None


class TryReceive(Struct, frozen=True, tag=True):
    signal: str
    drain: bool = False


class Condition(Struct, frozen=True, tag=True):
    notes: int
    timeout: float | None = None


class Together(Struct, frozen=True, tag=True):
    how: str
    branches: list[list[Statement]]


class Limit(Struct, frozen=True, tag=True):
    how: str
    seconds: float
    body: list[Statement]


class Locked(Struct, frozen=True, tag=True):
    semaphore: bool
    body: list[Statement]


class Exchange(Struct, frozen=True, tag=True):
    """An operation on the queue, the event or the condition that all tasks of a program share."""

    what: str


class Spawn(Struct, frozen=True, tag=True):
    body: list[Statement]


class Reach(Struct, frozen=True, tag=True):
    """Cancel or join the oldest spawned task."""

    cancel: bool


class Guarded(Struct, frozen=True, tag=True):
    body: list[Statement]
    catch: str
    handler: list[Statement]
    cleanup: list[Statement]


class Raise(Struct, frozen=True, tag=True):
    pass


class Repeat(Struct, frozen=True, tag=True):
    times: int
    body: list[Statement]


class Choose(Struct, frozen=True, tag=True):
    then: list[Statement]
    otherwise: list[Statement]


class Each(Struct, frozen=True, tag=True):
    """Walk an asynchronous generator that awaits, leaving it early."""

    leave_after: int
    body: list[Statement]


class Local(Struct, frozen=True, tag=True):
    name: str
    salt: int


class Child(Struct, frozen=True, tag=True):
    """Start a child: await it at once, by name, with a deadline; keep its handle, here or elsewhere; or detach it."""

    how: str
    salt: int


class Kin(Struct, frozen=True, tag=True):
    """Await, signal, cancel or look at the oldest child whose handle was kept."""

    what: str


class Fan(Struct, frozen=True, tag=True):
    """Many activities or children of one kind."""

    children: bool
    collect: bool
    items: int
    at_once: int | None = None


class Timer(Struct, frozen=True, tag=True):
    seconds: float


class Ring(Struct, frozen=True, tag=True):
    """Await, race or cancel the oldest timer whose handle was kept."""

    what: str


class Effect(Struct, frozen=True, tag=True):
    name: str
    fails: bool = False


class Patched(Struct, frozen=True, tag=True):
    """A change that the second build of the code brings: the first goes the other way and knows nothing of it."""

    change: str
    how: str
    then: list[Statement]
    otherwise: list[Statement]


class Reachable(Struct, frozen=True, tag=True):
    """Signal, cancel or await a run that somebody else started."""

    what: str
    by_id: bool


class Hosted(Struct, frozen=True, tag=True):
    """Activities in a session, of which one may be left under way; `lasts` is the session's own limit."""

    name: str
    salt: int
    calls: int
    leaves: bool
    forgives: bool
    lasts: float | None = None


class Show(Struct, frozen=True, tag=True):
    what: str


class Listen(Struct, frozen=True, tag=True):
    """Register a handler for a signal, an update or a query."""

    kind: str
    name: str
    how: str
    body: list[Statement]


class Finish(Struct, frozen=True, tag=True):
    """Wait until no handler is under way."""

    timeout: float


class Onward(Struct, frozen=True, tag=True):
    """Continue as new with this program, of the same or another type."""

    other: bool
    body: list[Statement]


Statement = (
    Call
    | CallByName
    | Sleep
    | Yield
    | Look
    | Receive
    | TryReceive
    | Condition
    | Together
    | Limit
    | Locked
    | Exchange
    | Spawn
    | Reach
    | Guarded
    | Raise
    | Repeat
    | Choose
    | Each
    | Local
    | Child
    | Kin
    | Fan
    | Timer
    | Ring
    | Effect
    | Patched
    | Reachable
    | Hosted
    | Show
    | Listen
    | Finish
    | Onward
)
STATEMENTS: tuple[type[Statement], ...] = typing.get_args(Statement)
Block = list[Statement]

JOINS = (
    *("gather", "gather", "gather_all", "group", "set", "race", "race"),
    *("wait_first", "wait_error", "wait_some", "as_completed", "async_for"),
)
LIMITS = ("timeout", "timeout", "wait_for", "shield", "cancel")
CHILDREN = ("await", "await", "name", "deadline", "keep", "keep", "spread", "detach")
CHANGES = ("blue", "green")
SIZE = 60
DEPTH = 4


class Drawing:
    """Draws one program, of a bounded number of statements."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._left = chance.randint(4, SIZE)

    def program(self) -> Block:
        body: Block = []
        if self._chance.random() < 0.6:
            body += [_listen(self, DEPTH) for _ in range(self._chance.randint(1, 3))]
        while self._left > 0:
            body.append(self.statement(0))
        if self._chance.random() < 0.25:
            self._left = self._chance.randint(4, SIZE // 3)
            body.append(Onward(self._chance.random() < 0.3, self.block(0, 8)))
        return body

    def block(self, depth: int, most: int = 3) -> Block:
        return [self.statement(depth) for _ in range(self._chance.randint(1, most)) if self._left > 0]

    def branches(self, depth: int) -> list[Block]:
        return [self.block(depth, 2) for _ in range(self._chance.randint(2, 4))]

    def statement(self, depth: int) -> Statement:
        self._left -= 1
        leaf = depth >= DEPTH or self._left <= 0 or self._chance.random() < 0.45
        names, weights = (_LEAF_NAMES, _LEAF_WEIGHTS) if leaf else (_NODE_NAMES, _NODE_WEIGHTS)
        made: Statement = self._chance.choices(names, weights)[0](self, depth + 1)
        return made

    def pick(self, *of: Any) -> Any:
        return self._chance.choice(of)

    def seconds(self) -> float:
        return round(self._chance.uniform(0.5, 60.0), 1)

    def number(self, low: int, high: int) -> int:
        return self._chance.randint(low, high)


def _listen(d: Drawing, depth: int) -> Listen:
    kind = d.pick("signal", "update", "update", "query")
    names = {"signal": SIGNALS, "update": UPDATES, "query": ("extra",)}[kind]
    how = {
        "signal": ("plain", "async", "async", "async", "async", "strict"),
        "update": ("plain", "async", "async", "refuse", "refuse", "act"),
        "query": ("plain",),
    }[kind]
    chosen = d.pick(*how)
    return Listen(kind, d.pick(*names), chosen, [] if chosen == "plain" else d.block(depth, 2))


Maker = Callable[[Drawing, int], Statement]
_LEAVES: tuple[tuple[Maker, int], ...] = (
    (lambda d, _: Call(d.pick(*ACTIVITIES), d.number(0, 99)), 14),
    (lambda d, _: CallByName([f"w{d.number(0, 50)}" for _ in range(6)]), 2),
    (lambda d, _: Sleep(d.seconds(), d.pick(True, False, False)), 3),
    (lambda d, _: Yield(), 1),
    (lambda d, _: Look(d.pick("random", "uuid", "now", "info", "all_tasks", "cancelled")), 3),
    (lambda d, _: Receive(d.pick(*SIGNALS), d.pick(None, d.seconds())), 4),
    (lambda d, _: TryReceive(d.pick(*SIGNALS), d.pick(True, False)), 2),
    (lambda d, _: Condition(d.number(1, 12), d.pick(None, d.seconds(), d.seconds())), 2),
    (lambda d, _: Exchange(d.pick("put", "put", "get", "set", "wait", "clear", "notify", "notified")), 4),
    (lambda d, _: Reach(d.pick(True, False)), 2),
    (lambda d, _: Raise(), 1),
    (lambda d, _: Local(d.pick(*ACTIVITIES), d.number(0, 99)), 6),
    (lambda d, _: Child(d.pick(*CHILDREN), d.number(0, 99)), 5),
    (lambda d, _: Kin(d.pick("await", "await", "signal", "cancel", "look")), 4),
    (lambda d, _: Fan(d.pick(True, False), d.pick(True, False), d.number(0, 4), d.pick(None, 1, 2)), 2),
    (lambda d, _: Timer(d.seconds()), 2),
    (lambda d, _: Ring(d.pick("await", "race", "cancel")), 2),
    (lambda d, _: Effect(d.pick("", "dice"), d.pick(True, *[False] * 9)), 3),
    (lambda d, _: Reachable(d.pick("signal", "cancel", "await"), d.pick(True, False)), 2),
    (
        lambda d, _: Hosted(
            d.pick(*ACTIVITIES),
            d.number(0, 99),
            d.number(0, 3),
            d.pick(True, False),
            d.pick(True, False),
            d.pick(None, d.seconds()),
        ),
        3,
    ),
    (lambda d, _: Show(d.pick("details", "attributes", "progress", "metrics")), 2),
    (lambda d, _: Finish(d.seconds()), 1),
)
_NODES: tuple[tuple[Maker, int], ...] = (
    (lambda d, n: Together(d.pick(*JOINS), d.branches(n)), 8),
    (lambda d, n: Limit(d.pick(*LIMITS), d.seconds(), d.block(n)), 4),
    (lambda d, n: Locked(d.pick(True, False), d.block(n)), 2),
    (lambda d, n: Spawn(d.block(n)), 3),
    (
        lambda d, n: Guarded(
            d.block(n), d.pick("error", "cancel", "all", "nothing"), d.block(n, 1), d.pick([], d.block(n, 1))
        ),
        5,
    ),
    (lambda d, n: Repeat(d.number(2, 3), d.block(n, 2)), 2),
    (lambda d, n: Choose(d.block(n, 2), d.block(n, 2)), 2),
    (lambda d, n: Each(d.number(1, 3), d.block(n, 1)), 1),
    (
        lambda d, n: Patched(
            d.pick(*CHANGES), d.pick("patched", "version", "deprecated"), d.block(n, 2), d.pick([], d.block(n, 2))
        ),
        4,
    ),
    (lambda d, n: _listen(d, n), 2),
    (lambda d, n: Onward(d.pick(True, False, False), d.block(n, 4)), 1),
)
_LEAF_NAMES, _LEAF_WEIGHTS = zip(*_LEAVES, strict=True)
_NODE_NAMES, _NODE_WEIGHTS = zip(*_NODES, strict=True)


def draw(chance: random.Random) -> Block:
    """A random program."""
    return Drawing(chance).program()


def smaller(block: Block) -> Iterator[Block]:
    """Programs with one statement less, or with one statement replaced by a part of it; the boldest first."""
    for index in range(len(block)):
        yield block[:index] + block[index + 1 :]
    for index, statement in enumerate(block):
        for field in statement.__struct_fields__:
            value = getattr(statement, field)
            for part in value if field == "branches" else [value] if isinstance(value, list) else []:
                if part and isinstance(part[0], Struct):
                    yield block[:index] + part + block[index + 1 :]
        for changed in _smaller_inside(statement):
            yield [*block[:index], changed, *block[index + 1 :]]


def _smaller_inside(statement: Statement) -> Iterator[Statement]:
    for field in statement.__struct_fields__:
        value = getattr(statement, field)
        if field == "branches":
            for index, branch in enumerate(value):
                yield msgspec.structs.replace(statement, branches=value[:index] + value[index + 1 :])
                for less in smaller(branch):
                    yield msgspec.structs.replace(statement, branches=[*value[:index], less, *value[index + 1 :]])
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for less in smaller(value):
                yield msgspec.structs.replace(statement, **{field: less})
