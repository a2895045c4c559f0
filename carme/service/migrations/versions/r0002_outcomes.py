"""Outcomes of predictions: the job's end, the measurements, whether the intervals contain them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("predictions") as table:
        table.add_column(sa.Column("kind", sa.String(16)))
        table.add_column(sa.Column("source", sa.String(16)))
        table.add_column(sa.Column("ended_as", sa.String(32)))
        table.add_column(sa.Column("measured_seconds", sa.Float))
        table.add_column(sa.Column("measured_joules", sa.Float))
        table.add_column(sa.Column("time_within", sa.Boolean))
        table.add_column(sa.Column("energy_within", sa.Boolean))
    _fill()
    with op.batch_alter_table("predictions") as table:
        table.alter_column("kind", existing_type=sa.String(16), nullable=False)
        table.alter_column("source", existing_type=sa.String(16), nullable=False)


def _fill() -> None:
    """Until now the hub made nearly all that belong to a job."""
    rows = sa.table(
        "predictions", sa.column("id"), sa.column("body", sa.JSON), sa.column("kind"),
        sa.column("source"),
    )  # fmt: skip
    bind = op.get_bind()
    for row_id, body in bind.execute(sa.select(rows.c.id, rows.c.body)).all():
        source = body.get("provenance", {}).get("source", "data sheet")
        change = sa.update(rows).where(rows.c.id == row_id).values(kind="session", source=source)
        bind.execute(change)


def downgrade() -> None:
    with op.batch_alter_table("predictions") as table:
        for name in ("kind", "source", "ended_as", "measured_seconds", "measured_joules",
                     "time_within", "energy_within"):  # fmt: skip
            table.drop_column(name)
