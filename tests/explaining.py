"""What a statement reads, under the plan that a connection keeps for it."""

from __future__ import annotations

from typing import Any

import msgspec


async def explained(connection: Any, name: str, sql: str, values: list[Any]) -> dict[str, Any]:
    """Execute a statement under its name on this connection, roll it back, and return its plan with what was read."""
    known = await connection.fetchval("select exists (select from pg_prepared_statements where name = $1)", name)
    if not known:
        await connection.execute(f"prepare {name} as {sql}")
    transaction = connection.transaction()
    await transaction.start()
    arguments = f"({', '.join(map(literal, values))})" if values else ""
    text = await connection.fetchval(f"explain (analyze, buffers, format json) execute {name}{arguments}")
    await transaction.rollback()
    plan: dict[str, Any] = msgspec.json.decode(text)[0]["Plan"]
    return plan


def literal(value: Any) -> str:
    """A value as SQL text."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, list | tuple):
        return f"'{{{', '.join(map(element, value))}}}'"
    return f"'{value}'"


def element(value: Any) -> str:
    """A value inside the text of an array."""
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    return "null" if value is None else f'"{value}"'


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
