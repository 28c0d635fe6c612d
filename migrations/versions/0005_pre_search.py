"""Indexes over tables that may be large already: built beside the work that goes on, one statement each."""

from alembic import op

revision = "0005"
down_revision = "0004"

INDEXES = {
    # Runs without attributes take no room in it.
    "harvest_execution_details_search": (
        "harvest_execution_details using gin (search_attributes) where search_attributes is not null"
    ),
    # Rows are appended in nearly the order of their time: a few kilobytes say which blocks a window of time needs.
    "harvest_events_at": "harvest_events using brin (at) with (autosummarize = on)",
    # What the view of children on other shards asks for, each a few rows.
    "harvest_events_child_cancels": "harvest_events (execution_id, seq) where kind = 62",
    "harvest_children_beyond": (
        "harvest_children (child_execution_id) where "
        "substring(uuid_send(child_execution_id) for 2) <> substring(uuid_send(parent_execution_id) for 2)"
    ),
}


_STATE = "select indisvalid from pg_index where indexrelid = to_regclass('{name}')"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # It waits for every transaction that is open now, however long that is, and holds up nobody meanwhile.
        op.execute("set lock_timeout = 0")
        for name, of in INDEXES.items():
            valid = op.get_bind().exec_driver_sql(_STATE.format(name=name)).scalar()
            if valid:
                continue
            if valid is not None:
                # A broken attempt has left it behind.
                op.execute(f"drop index concurrently {name}")
            op.execute(f"create index concurrently {name} on {of}")
        op.execute("set lock_timeout = '5s'")
    op.execute("update harvest_meta set schema_level = 5")
