"""The ledger of what activities have spent on language models: a row for each call that was reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.store import Store

# By the database's clock, less the time since the report. A row that is there already was written by a statement whose
# answer was lost.
_RECORD: Final = """
insert into harvest_cost_ledger
  (execution_id, seq, attempt, number, recorded_at, model, input_tokens, output_tokens, cost_usd_micros, latency_ms)
select c.execution_id, c.seq, c.attempt, c.number, clock_timestamp() - c.age * interval '1 second', c.model,
       c.input_tokens, c.output_tokens, c.cost_usd_micros, c.latency_ms
  from unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::float8[], $6::text[], $7::bigint[], $8::bigint[],
              $9::bigint[], $10::bigint[])
    as c(execution_id, seq, attempt, number, age, model, input_tokens, output_tokens, cost_usd_micros, latency_ms)
 order by c.execution_id, c.seq, c.attempt, c.number
    on conflict (execution_id, seq, attempt, number) do nothing"""


class CostRow(Struct, frozen=True):
    """One call of a language model: the report `number` of an attempt, made `age` seconds ago."""

    execution_id: UUID
    seq: int
    attempt: int
    number: int
    age: float
    model: str
    input_tokens: int
    output_tokens: int
    cost_usd_micros: int | None
    latency_ms: int


async def record(store: Store, rows: Sequence[CostRow]) -> None:
    """Write rows in one statement; those that are there already stay as they are."""
    await store.scan.write(_RECORD, *([getattr(row, name) for row in rows] for name in CostRow.__struct_fields__))
