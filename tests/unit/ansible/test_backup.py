"""The program that the head's timer runs, with programs in place of those that need a head."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from jinja2 import Environment

TEMPLATE = (
    Path(__file__).resolve().parents[3] / "ansible/roles/backup/templates/carme-backup.j2"
).read_text()
# A file of Slurm's state vanishes in as many copies as the file `bad` says.
COPY = """\
#!/bin/bash
if [[ $2 != */ctld ]]; then exit 0; fi
left=$(cat "$HOME/bad")
echo $((left - 1)) >"$HOME/bad"
mkdir "$3" && touch "$3/job_state"
[ "$left" -le 0 ]
"""


@pytest.mark.parametrize(("vanished", "is_made"), [(0, True), (2, True), (9, False)])
def test_files_that_vanish_meanwhile(tmp_path: Path, vanished: int, is_made: bool) -> None:
    programs, kept = tmp_path / "bin", tmp_path / "kept"
    programs.mkdir()
    kept.mkdir()
    (tmp_path / "bad").write_text(str(vanished))
    for name, text in {"cp": COPY, "mariadb-dump": "#!/bin/sh\n", "sleep": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = Environment(keep_trailing_newline=True, autoescape=False)
    environment.filters["quote"] = shlex.quote
    script = environment.from_string(TEMPLATE).render(
        backup_folder=str(kept),
        backup_days=14,
        carme_venv=str(tmp_path),
        mariadb_database="slurm",
        slurm_state_folder="/var/lib/slurm",
    )
    # The databases are not this test's matter, should this machine have some.
    script = script.replace("/var/lib/carme", str(tmp_path))
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    archives = [str(path) for path in kept.iterdir()]
    assert (done.returncode == 0) == is_made, done.stderr
    assert archives == (done.stdout.split() if is_made else [])
    if is_made:
        listed = subprocess.check_output(["tar", "-tzf", archives[0]], text=True)
        assert "./slurm-state/job_state" in listed
