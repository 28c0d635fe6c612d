"""${message}

A migration is additive, and works on a shard that already has data (design 3).
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "op.execute('')"}
