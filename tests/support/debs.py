"""Packages for the deployment tests that Debian lacks (Apptainer, a substitute for Grafana), and
the base image in the cache that is bound into the head."""

import shutil
import subprocess
from pathlib import Path

GRAFANA_UNIT = """\
[Unit]
Description=Stands in for Grafana, whose server is not to be had here

[Service]
User=grafana
ExecStart=/usr/bin/python3 /usr/share/grafana/stand-in.py

[Install]
WantedBy=multi-user.target
"""
# Healthy only if it can read, as Grafana's user, all files that Grafana reads.
GRAFANA_PROGRAM = """\
import http.server, os, pathlib, re

def well():
    places = pathlib.Path("/etc/grafana/provisioning")
    source = (places / "datasources/carme.yml").read_text()
    folder = re.search("path: (.+)", (places / "dashboards/carme.yml").read_text())[1]
    for text in (source, os.environ["GF_SECURITY_ADMIN_PASSWORD"]):
        assert pathlib.Path(re.search(r"__file{(.+?)}", text)[1]).read_text().isalnum()
    assert len(list(pathlib.Path(folder).glob("carme-*.json"))) == 9

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            well()
            self.send_response(200 if self.path == "/api/health" else 404)
        except Exception as error:
            self.send_response(500, type(error).__name__)
        self.end_headers()

where = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
http.server.HTTPServer(where, Answer).serve_forever()
"""


def _pack(tree: Path, name: str, version: str) -> Path:
    """The package file made from the folder `tree`, which is removed."""
    fields = {
        "Package": name,
        "Version": version,
        "Architecture": "amd64",
        "Maintainer": "tests",
        "Description": "packed for a test",
    }
    (tree / "DEBIAN").mkdir(exist_ok=True)
    (tree / "DEBIAN/control").write_text("".join(f"{k}: {v}\n" for k, v in fields.items()))
    package = tree.parent / f"{name}_{version}_amd64.deb"
    argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(package)]
    subprocess.run(argv, check=True, capture_output=True)
    shutil.rmtree(tree)
    return package


def pack_apptainer(folder: Path) -> Path:
    """The private build as a package file, in place of one from the project's releases."""
    from carme.local import packages
    from carme.system import apptainer
    from carme.system.files import cache_dir

    packages.install(dict(apptainer.APT_PACKAGES), print, Path("/dev/null"))
    program = apptainer.find_or_install(cache_dir(), print)
    home = program.resolve().parents[1]
    tree = folder / "apptainer"
    (tree / "usr/bin").mkdir(parents=True)
    target = tree / str(home)[1:]
    target.parent.mkdir(parents=True)
    shutil.copytree(home, target, symlinks=True)
    (tree / "usr/bin/apptainer").symlink_to(program)
    return _pack(tree, "apptainer", "1.4")


def pack_grafana(folder: Path) -> Path:
    """A package with Grafana's user, folders and unit, and a program that reads its settings."""
    tree = folder / "grafana"
    for name in ("DEBIAN", "lib/systemd/system", "usr/share/grafana", "etc/grafana"):
        (tree / name).mkdir(parents=True)
    (tree / "var/lib/grafana").mkdir(parents=True)
    (tree / "lib/systemd/system/grafana-server.service").write_text(GRAFANA_UNIT)
    (tree / "usr/share/grafana/stand-in.py").write_text(GRAFANA_PROGRAM)
    script = tree / "DEBIAN/postinst"
    script.write_text("#!/bin/sh\nadduser --quiet --system --group --no-create-home grafana\n")
    script.chmod(0o755)
    return _pack(tree, "grafana", "0.1")


def build_base_image() -> None:
    """Build the base image in the cache that is bound into the head."""
    from carme.config import Config
    from carme.system.files import cache_dir
    from carme_containers.apptainer_engine import ApptainerEngine
    from carme_containers.builder import Builder
    from carme_containers.publisher import apptainer_for
    from carme_containers.recipe import OWN_RECIPES, load_recipe

    program = apptainer_for(Config(), cache_dir(), print)
    Builder(ApptainerEngine(program, None), program, cache_dir(), print).build(
        load_recipe("base", (OWN_RECIPES,))
    )
