"""${message}

The id names this revision's number and the oldest one whose releases it serves: give it with
`alembic revision --rev-id 0002_serves_0001`, and write it into cas_session/schema.py as REVISION.
"""

import sqlalchemy as sa

from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
