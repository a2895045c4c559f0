"""Random keys and passwords of the cluster: made once, kept where only root reads."""

import json
import secrets as random
from dataclasses import asdict, dataclass
from pathlib import Path

from carme.system.files import write


@dataclass(frozen=True)
class Secrets:
    """Passwords and tokens that services share; nobody else may read them."""

    mariadb_password: str
    proxy_token: str
    hub_metrics_token: str
    prometheus_password: str
    exporter_password: str
    alertmanager_password: str
    service_token: str

    @property
    def prometheus_login(self) -> tuple[str, str]:
        return ("carme", self.prometheus_password)

    @property
    def alertmanager_login(self) -> tuple[str, str]:
        return ("carme", self.alertmanager_password)

    @property
    def exporter_login(self) -> tuple[str, str]:
        return ("prometheus", self.exporter_password)


def ensure(folder: Path) -> Secrets:
    """The secrets in `folder`; what is missing is made."""
    file = folder / "secrets.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    names = Secrets.__dataclass_fields__
    secrets = Secrets(**{name: known.get(name) or random.token_hex(24) for name in names})
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write(file, json.dumps(asdict(secrets)), mode=0o600)
    return secrets
