"""Commands run with what their extra installs: the other packages cannot be imported."""

import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

RUN = """
import sys
from importlib.metadata import entry_points

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = {argv!r}
[command] = entry_points(group="console_scripts", name=sys.argv[0])
sys.exit(command.load()())
"""


def installed_by(extra: str) -> set[str]:
    """The distributions that `pip install carme[extra]` brings, in lower case."""
    installed: set[str] = set()
    wanted = [Requirement(f"carme[{extra}]")]
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        package = distribution(requirement.name)
        installed.add(package.name.lower())
        for line in package.requires or ():
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                wanted.append(needed)
    return installed


@pytest.mark.parametrize(
    ("extra", "absent", "argv", "output"),
    [
        ("simulator", {"flask", "sqlalchemy", "jupyterhub", "prometheus_client"},
         ["carme", "reproduce", "limits"], "alexnet, batch 256: stalls at"),
        ("monitoring", {"numpy", "numba", "llvmlite", "flask", "jupyterhub"},
         ["carme-exporter", "--once"], "# TYPE carme_exporter_info gauge"),
    ],
)  # fmt: skip
def test_a_command_needs_no_more_than_its_extra(
    tmp_path: Path, extra: str, absent: set[str], argv: list[str], output: str
) -> None:
    installed = installed_by(extra)
    others = {
        module
        for module, owners in packages_distributions().items()
        if not installed.intersection(owner.lower() for owner in owners)
    }
    assert absent <= others
    config = tmp_path / "carme.toml"
    config.write_text(f'[exporter]\nrun = "{tmp_path}/run"\nstate = "{tmp_path}/state"\n')
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(absent=others, argv=argv)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CARME_CONFIG": str(config)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert output in done.stdout
