"""What a parked run waits for, and what has come that nobody has taken: the code's own account, as data."""

from __future__ import annotations

from msgspec import Struct

from harvest.replay.run import Run


class Wait(Struct, frozen=True, omit_defaults=True):
    """One thing that code waits for. `seq` is the number of the command that asked for it, 0 where there is none.

    `kind` is activity, local_activity, timer, child_workflow, external, session, signal, update or condition; an
    update is under way in its handler, and its `seq` is the id of the event that admitted it.
    """

    kind: str
    name: str = ""
    seq: int = 0
    execution_id: str = ""


class Buffered(Struct, frozen=True):
    """Signals of one name that have come and that nobody has taken."""

    name: str
    count: int


def waits_of(run: Run) -> list[Wait]:
    """Everything that the code waits for now, kind by kind, each kind in the order in which it was asked for."""
    waits = [Wait("activity", command.name, seq) for seq, (_, command) in sorted(run.pending.items())]
    waits += [Wait("local_activity", command.name, seq) for seq, (_, command) in sorted(run.locals.items())]
    waits += [Wait("timer", seq=seq) for seq in sorted(run.timers)]
    waits += [
        Wait("child_workflow", command.workflow_name, seq, str(command.child_id))
        for seq, (_, command) in sorted(run.children.items())
    ]
    waits += [Wait("external", command.describe(), seq) for seq, (_, command) in sorted(run.externals.items())]
    waits += [
        Wait("session", command.queue, seq)
        for seq, (future, command) in sorted(run.sessions.items())
        if not future.done()
    ]
    waits += [Wait("signal", name) for name in sorted(run.messages.waiting_for())]
    waits += [Wait("update", update.data.name, seq) for seq, update in sorted(run.messages.admitted.items())]
    waits += [Wait("condition") for _, future in run._conditions if not future.done()]
    return waits


def buffered_in(run: Run) -> list[Buffered]:
    """Signals that wait for the code to ask for them."""
    return [Buffered(name, len(kept)) for name, kept in sorted(run.messages.buffers.items()) if kept]
