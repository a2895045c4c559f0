"""Reading Slurm through pyslurm; until its adapter stands, the commands are used."""

from carme.slurm.cli import CommandClient


class PyslurmClient(CommandClient):
    """Not usable yet."""

    @staticmethod
    def unusable(release: str) -> str:
        """Why pyslurm cannot be used for this release; empty if it can."""
        return f"no pyslurm for Slurm {release}"

    def __init__(self, commands: CommandClient) -> None:
        raise NotImplementedError
