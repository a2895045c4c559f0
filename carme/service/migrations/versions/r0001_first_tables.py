"""Workloads, calibrations and predictions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    for name, columns in (
        ("workloads", [sa.Column("name", sa.String(64), nullable=False)]),
        (
            "calibrations",
            [
                sa.Column("workload", sa.String(64), nullable=False),
                sa.Column("gpu", sa.String(64), nullable=False),
            ],
        ),
        (
            "predictions",
            [
                sa.Column("job_id", sa.BigInteger, index=True),
                sa.Column("workload", sa.String(64), nullable=False),
            ],
        ),
    ):
        op.create_table(
            name,
            sa.Column("id", sa.String(32), primary_key=True),
            sa.Column("user", sa.String(255), nullable=False, index=True),
            *columns,
            sa.Column("body", sa.JSON, nullable=False),
            sa.Column("created_at", sa.Float, nullable=False),
        )
    op.create_index("one_name_a_user", "workloads", ["user", "name"], unique=True)


def downgrade() -> None:
    for name in ("predictions", "calibrations", "workloads"):
        op.drop_table(name)
