import asyncio, time
from harvest.operations import batch_starting
from harvest.operations.actor import Actor
from harvest.operations.preparing import StartRequest
from tests.operations.population import register

async def test_time(shards):
    actor = Actor(name="token:admin", source="api", request_id="req-1", route="POST /somewhere")
    await register(shards, 0, "any_flow", input_schema=b"{}")
    ids = [i for i in (f"o-{n}" for n in range(5000)) if shards.router.place("any_flow", i) == 0][:1000]
    reqs = [StartRequest(workflow_name="any_flow", workflow_id=i, idempotency_key="k"+i) for i in ids]
    t=time.monotonic()
    await batch_starting.start_batch(shards, actor, reqs, atomic=True)
    print("atomic", time.monotonic()-t)
    t=time.monotonic()
    await batch_starting.start_batch(shards, actor, reqs, atomic=True)
    print("atomic again", time.monotonic()-t)
    reqs = [StartRequest(workflow_name="any_flow", workflow_id="x"+i) for i in ids]
    t=time.monotonic()
    await batch_starting.start_batch(shards, actor, reqs, atomic=False)
    print("each", time.monotonic()-t)
