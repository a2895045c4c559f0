"""Whether the head's nightly backup is made."""

import re
import time
from pathlib import Path

from carme.doctor.finding import Finding, absent, ok, warning
from carme.units import format_duration

UNITS = Path("/etc/systemd/system")
MOST_SECONDS = 2 * 86400
_FOLDER = re.compile(r"^ReadWritePaths=(.+)$", re.MULTILINE)


def backup(folder: str, newest_seconds: float | None, timer_seconds: float) -> Finding:
    """`newest_seconds`: the newest archive's age, if there is one; `timer_seconds`: for how long
    archives have been due."""
    todo = "journalctl -u carme-backup -n 50; systemctl start carme-backup"
    if newest_seconds is None:
        if timer_seconds > MOST_SECONDS:
            words = f"none in {folder}, in {format_duration(timer_seconds)}"
            return warning("backup", words, todo)
        return ok("backup", f"the first one in {folder} is due within a day")
    words = f"the newest in {folder} is {format_duration(newest_seconds)} old"
    return warning("backup", words, todo) if newest_seconds > MOST_SECONDS else ok("backup", words)


def read_backup(units: Path = UNITS) -> Finding:
    """The folder is the one that the unit may write to."""
    timer = units / "timers.target.wants/carme-backup.timer"
    try:
        now, since = time.time(), timer.lstat().st_mtime
        text = (units / "carme-backup.service").read_text(encoding="utf-8")
    except FileNotFoundError:
        return absent("backup")
    found = _FOLDER.search(text)
    if not found:
        todo = "ansible-playbook site.yml --tags backup"
        return warning("backup", "carme-backup.service names no folder", todo)
    archives = Path(found[1]).glob("carme-*.tar.gz")
    made = max((path.stat().st_mtime for path in archives), default=None)
    return backup(found[1], None if made is None else now - made, now - since)
