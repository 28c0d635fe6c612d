"""Record the golden histories of a release: `python tools/record_histories.py [--memory] [FOLDER] [NAME…]`.

A worker runs the workflows of tests/histories/workflows.py on a PostgreSQL of its own; with --memory they run in a
WorkflowEnvironment. What was recorded by a release is never recorded again: FOLDER, by default tests/histories with the
version of this release, must not have the file yet.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from harvest import clock  # noqa: E402
from harvest.history.data import WorkflowContinuedAsNew, WorkflowFailed  # noqa: E402
from harvest.history.document import HistoryDocument, decode_document, encode_document  # noqa: E402
from harvest.history.kinds import EventKind  # noqa: E402
from harvest.operations.exporting import export_history  # noqa: E402
from harvest.shards import Shards  # noqa: E402
from harvest.store import migrate  # noqa: E402
from harvest.testing import WorkflowEnvironment  # noqa: E402
from harvest.worker.options import WorkerOptions  # noqa: E402
from harvest.worker.worker import Worker  # noqa: E402
from harvest_console.embedded import EmbeddedPostgres  # noqa: E402
from tests.histories.workflows import SCENARIOS, Scenario, app, golden_patient  # noqa: E402

RELEASE = "0.1.0"
IN_MEMORY = "recorded in memory"
TRACEBACK = re.compile(r'"traceback":"(?:[^"\\]|\\.)*"')


async def record_in_memory(scenario: Scenario) -> list[HistoryDocument]:
    """The histories of a scenario's chain of runs, out of an environment."""
    async with WorkflowEnvironment(app) as env:
        for workflow_id in scenario.beside:
            await env.start(golden_patient, workflow_id=workflow_id)
        handle = await env.start(scenario.workflow, *scenario.args, workflow_id=scenario.name, **scenario.options)
        await scenario.act(handle)
        found, documents = handle, []
        while True:
            document = env.history(found)
            documents.append(msgspec.structs.replace(document, build=IN_MEMORY))
            following = _following(document)
            if following is None:
                return documents
            found = env.handle(following)


async def record_on(shards: Shards, scenario: Scenario) -> list[HistoryDocument]:
    """The same, out of a database where a worker is at work."""
    for workflow_id in scenario.beside:
        await app.start(golden_patient, workflow_id=workflow_id)
    handle = await app.start(scenario.workflow, *scenario.args, workflow_id=scenario.name, **scenario.options)
    async with asyncio.timeout(60):
        await scenario.act(handle)
    execution_id: UUID | None = handle.execution_id
    documents = []
    while execution_id is not None:
        document = decode_document(await export_history(shards, execution_id))
        documents.append(document)
        execution_id = _following(document)
    return documents


def _following(document: HistoryDocument) -> UUID | None:
    """The run that a recorded one went on as."""
    last = document.events[-1]
    data = (last.data or "").encode()
    if last.kind == EventKind.WORKFLOW_CONTINUED_AS_NEW:
        return UUID(msgspec.json.decode(data, type=WorkflowContinuedAsNew).new_execution_id)
    if last.kind == EventKind.WORKFLOW_FAILED:
        retried = msgspec.json.decode(data, type=WorkflowFailed).retry_execution_id
        return UUID(retried) if retried else None
    return None


def anonymous(document: HistoryDocument) -> HistoryDocument:
    """Without tracebacks, which name the folders of this machine and have no part in a replay."""
    events = [
        msgspec.structs.replace(event, data=TRACEBACK.sub('"traceback":""', event.data or ""))
        for event in document.events
    ]
    return msgspec.structs.replace(document, events=events)


def write(folder: Path, scenario: Scenario, documents: list[HistoryDocument]) -> Iterator[Path]:
    """A file for each run of the chain."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, document in enumerate(documents, 1):
        path = folder / (f"{scenario.name}.json" if len(documents) == 1 else f"{scenario.name}-{number}.json")
        path.write_bytes(encode_document(anonymous(document)))
        yield path


def wanted(folder: Path, names: list[str]) -> list[Scenario]:
    """The scenarios that have no file yet."""
    known = {path.stem for path in folder.glob("*.json")}
    chosen = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    return [each for each in chosen if not known & {each.name, f"{each.name}-1"}]


async def in_memory(folder: Path, scenarios: list[Scenario]) -> None:
    """Record scenarios without a database."""
    for scenario in scenarios:
        for path in write(folder, scenario, await record_in_memory(scenario)):
            print(path)


def on_database(folder: Path, scenarios: list[Scenario]) -> None:
    """Record scenarios on a PostgreSQL of this process."""
    with tempfile.TemporaryDirectory(prefix="hvt-", ignore_cleanup_errors=True) as kept:
        Path(kept).chmod(0o711)  # the server's account must be able to pass
        server = EmbeddedPostgres(Path(kept) / "pg", persistent=False)
        server.start()
        try:
            asyncio.run(_record_on(server.ensure_database("histories"), folder, scenarios))
        finally:
            server.remove()


async def _record_on(url: str, folder: Path, scenarios: list[Scenario]) -> None:
    await migrate.upgrade(url)
    await app.connect(url)
    shards = await Shards.open({0: url})
    worker = Worker(app.registry, shards, WorkerOptions(name="golden", build=RELEASE, poll_interval=0.2))
    await worker.start()
    try:
        for scenario in scenarios:
            began = clock.monotonic()
            for path in write(folder, scenario, await record_on(shards, scenario)):
                print(f"{path} ({clock.monotonic() - began:.1f} s)")
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


def arguments() -> Any:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true", help="without a database")
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "histories" / RELEASE)
    parser.add_argument("names", nargs="*", help="scenarios; all by default")
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()
    missing = wanted(asked.folder, asked.names)
    if asked.memory:
        asyncio.run(in_memory(asked.folder, missing))
    else:
        on_database(asked.folder, missing)
