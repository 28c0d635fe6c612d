"""A generation of each worker, raised by whoever takes a partition from it (decision 0009). Additive only."""

from alembic import op

revision = "0006"
down_revision = "0005"

# A task that was taken in its worker's present generation is in a partition that is still that worker's.
COLUMNS = (
    "alter table harvest_workers add column generation integer not null default 0",
    "alter table harvest_workflow_tasks add column owner_generation integer",
)
# A trigger, so that no statement, and no earlier release, takes a partition without it. The rows are locked in order:
# two who take from the same workers at once never wait for each other in a circle.
RAISES = (
    """
    create function harvest_raise_generation() returns trigger language plpgsql set search_path from current as $$
    begin
        update harvest_workers set generation = generation + 1
         where worker in (
             select w.worker from harvest_workers w
              where w.worker in (
                  select b.owner from was b join now n on n.partition = b.partition
                   where b.owner is not null and (n.owner, n.epoch) is distinct from (b.owner, b.epoch))
              order by w.worker
                for no key update);
        return null;
    end $$
    """,
    """
    create trigger harvest_partition_taken after update on harvest_partitions
       referencing old table as was new table as now
       for each statement execute function harvest_raise_generation()
    """,
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '5s'")
    for statement in (*COLUMNS, *RAISES):
        op.execute(statement)
    op.execute("update harvest_meta set schema_level = 6")
