"""Adapters load what they adapt only when it is used."""

import sys


def test_pyslurm_is_not_loaded_by_its_adapter() -> None:
    import carme.slurm.pyslurm_client  # noqa: F401

    assert "pyslurm" not in sys.modules
