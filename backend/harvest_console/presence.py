"""The console among the processes that tell the shards how they route."""

from __future__ import annotations

from importlib.metadata import version
from uuid import UUID

from harvest import clock
from harvest.shards import Shards
from harvest.shards.presence import Presence


def console_presence(shards: Shards) -> Presence:
    """The presence of one console process; its build is the release that it runs."""
    return Presence(
        shards,
        UUID(bytes=clock.random_bytes(16), version=4),
        "console",
        through=lambda store: store.write,
        build=version("harvest-workflows"),
    )
