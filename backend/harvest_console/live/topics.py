"""What a tab may listen to: `run:<shard>.<partition>` for one execution, `list` for anything at all."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from harvest.errors import InvalidRequestError
from harvest.history.ids import PARTITIONS

MOST_TOPICS: Final = 16


class Topics(Struct, frozen=True):
    """A tab's subscription: the runs it shows, by shard and partition, and whether it shows a list."""

    runs: frozenset[tuple[int, int]] = frozenset()
    everything: bool = False

    def events(self, shard_id: int, partitions: int) -> list[str]:
        """The names of the events that a hint of `partitions` (bit p is partition p) on a shard means to this tab."""
        if not partitions:
            return []
        names = []
        if any(shard == shard_id and partitions >> partition & 1 for shard, partition in self.runs):
            names.append("run")
        if self.everything:
            names.append("list")
        return names


def parse_topics(text: str) -> Topics:
    """Read the `t` parameter of the stream; raises InvalidRequestError."""
    words = [word for word in text.split(",") if word]
    if len(words) > MOST_TOPICS:
        raise InvalidRequestError(f"{len(words)} topics are asked for; at most {MOST_TOPICS} are allowed", field="t")
    runs = set()
    for word in words:
        if word == "list":
            continue
        kind, _, place = word.partition(":")
        shard, _, partition = place.partition(".")
        if kind != "run" or not _is_number(shard) or not _is_number(partition) or int(partition) >= PARTITIONS:
            raise InvalidRequestError(
                f"{word[:40]!r} is not a topic; it must be list or run:<shard>.<partition>", field="t"
            )
        runs.add((int(shard), int(partition)))
    return Topics(runs=frozenset(runs), everything="list" in words)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5
