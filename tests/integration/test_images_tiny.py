"""Builder and catalogue with real Apptainer on recipes that build in a second: what goes wrong."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme.config import Config, ImageSettings
from carme.errors import ConfigError, MissingError, UnavailableError
from carme.images.catalogue import load_catalogue
from carme_containers.apptainer_engine import ApptainerEngine, fingerprint, signer
from carme_containers.builder import Builder, BuildResult
from carme_containers.node_images import open_files
from carme_containers.publisher import Publisher, publish_result
from carme_containers.recipe import load_recipe
from support.cluster import wait_for
from support.containers import real_apptainer
from support.recipes import tiny_recipe, tiny_root


@pytest.fixture(scope="module")
def apptainer() -> Path:
    return real_apptainer()


class Site:
    """A site of its own: recipes, cache and published images below one folder."""

    def __init__(self, folder: Path, apptainer: Path) -> None:
        self.folder, self.apptainer = folder, apptainer
        self.root = tiny_root(folder)
        self.recipes = folder / "recipes"
        self.cache = folder / "cache"
        self.images = folder / "images"
        self.said: list[str] = []

    def recipe(self, **values: object) -> None:
        tiny_recipe(self.recipes, self.root, **values)  # type: ignore[arg-type]

    def build(self, name: str = "tiny", force: bool = False, **values: object) -> BuildResult:
        recipe = load_recipe(name, (self.recipes,), **values)  # type: ignore[arg-type]
        return self.builder().build(recipe, force)

    def builder(self) -> Builder:
        engine = ApptainerEngine(self.apptainer, "http://mirror.invalid/debian")
        return Builder(engine, self.apptainer, self.cache, self.said.append)

    def config(self, **values: object) -> Config:
        return Config(images=ImageSettings(folder=self.images, apptainer=self.apptainer, **values))  # type: ignore[arg-type]

    def publish(self, result: BuildResult, **values: object) -> str:
        return publish_result(self.config(**values), self.apptainer, result).id

    def offered(self) -> list[str]:
        return [image.id for image in load_catalogue(self.images).offered()]


@pytest.fixture
def site(apptainer: Path) -> Iterator[Site]:
    # Not in pytest's folder, which other users cannot read: builds run as another user.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="carme-images-") as folder:
        Path(folder).chmod(0o755)
        yield Site(Path(folder), apptainer)


def test_build_publish_run(site: Site) -> None:
    site.recipe(post="echo hello >/opt/hello", more='tags = ["a"]\n[hints]\ncpus = 3\n')
    result = site.build()
    assert result.is_new
    assert site.publish(result) == "tiny:1"
    image = load_catalogue(site.images).find("tiny")
    assert (image.hints.cpus, image.tags, image.verified.output) == (3, ("a",), "fine")
    assert image.built.engine.startswith(site.apptainer.name)
    output = as_nobody(site, "exec", str(site.images / image.file), "cat", "/opt/hello")
    assert output.stdout == "hello\n"
    assert any("building" in line for line in site.said)
    assert "echo hello" in site.builder().log_path(load_recipe("tiny", (site.recipes,))).read_text()
    assert not list((site.cache / "build").glob("*.sif.*[0-9]"))


def as_nobody(site: Site, *arguments: str) -> "subprocess.CompletedProcess[str]":
    home = site.folder / "nobody"
    home.mkdir(exist_ok=True)
    nobody = pwd.getpwnam("nobody")
    shutil.chown(home, nobody.pw_uid)
    return subprocess.run(
        [str(site.apptainer), "-s", *arguments],
        capture_output=True,
        text=True,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        env={"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd=home,
        timeout=60,
    )


def test_build_has_a_tmp_of_its_own(site: Site, tmp_path: Path) -> None:
    site.recipe(post=f"test ! -e {tmp_path} && echo x >/tmp/carme-build-was-here")
    site.build()
    assert not Path("/tmp/carme-build-was-here").exists()


def test_unchanged_is_not_built_again(site: Site) -> None:
    site.recipe()
    first = site.build()
    started = time.monotonic()
    second = site.build()
    assert time.monotonic() - started < 10
    assert not second.is_new
    assert second.image == first.image
    assert site.build(force=True).is_new


def test_new_words_need_no_new_build(site: Site) -> None:
    site.recipe()
    site.publish(site.build())
    manifest = site.recipes / "tiny/image.toml"
    manifest.write_text(manifest.read_text().replace('"A recipe for tests"', '"New words"'))
    result = site.build()
    assert not result.is_new
    site.publish(result)
    assert load_catalogue(site.images).find("tiny").description == "New words"


def test_parent_and_child(site: Site) -> None:
    site.recipe(name="one", post="echo from-one >/opt/one")
    child = site.recipes / "two"
    tiny_recipe(site.recipes, Path("{{ PARENT }}"), name="two", more='parent = "one"')
    result = site.build("two")
    assert result.image.built.parent == site.build("one").image.digest
    (site.recipes / "one/image.def").write_text((site.recipes / "one/image.def").read_text() + "\n")
    assert site.build("two").is_new, "a changed parent makes a new child"
    assert child.is_dir()


def test_broken_recipe_leaves_the_old_image_in_use(site: Site) -> None:
    site.recipe()
    site.publish(site.build())
    site.recipe(post="echo 'error: this cannot work' >&2; exit 3")
    with pytest.raises(
        UnavailableError, match="tiny:1 could not be built: error: this cannot work"
    ):
        site.build()
    site.recipe()
    (site.recipes / "tiny/image.def").write_text("this is no definition\n")
    with pytest.raises(UnavailableError, match="tiny:1 could not be built"):
        site.build()
    (site.recipes / "tiny/image.def").unlink()
    with pytest.raises(MissingError, match=r"image\.def is missing"):
        site.build()
    assert site.offered() == ["tiny:1"]
    assert not list((site.cache / "build").glob("*.sif.*[0-9]"))


def test_failing_verify_leaves_the_old_image_in_use(site: Site) -> None:
    site.recipe()
    site.publish(site.build())
    site.recipe(verify="echo the purpose is not met; exit 1")
    with pytest.raises(UnavailableError, match="its verify fails: the purpose is not met"):
        site.build()
    assert site.offered() == ["tiny:1"]


def carme_images(site: Site, *arguments: str) -> "subprocess.Popen[bytes]":
    """`carme images …` of the site, started."""
    toml = site.folder / "carme.toml"
    lines = ["[images]", f'folder = "{site.images}"', f'apptainer = "{site.apptainer}"']
    lines += [f'recipes = ["{site.recipes}"]', 'debian_mirror = "http://mirror.invalid/debian"']
    toml.write_text("\n".join(lines))
    return subprocess.Popen(
        [sys.executable, "-m", "carme.cli", "images", "--config", toml, *arguments],
        env={**os.environ, "CARME_CACHE": str(site.cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Processes of a background shell inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_retired_while_it_is_verified(site: Site) -> None:
    site.recipe(verify="sleep 4; echo fine")
    site.publish(site.build())
    process = carme_images(site, "verify", "tiny")
    wait_for(lambda: open_files(site.images), 60, "the container to hold its image")
    Publisher(site.images).retire("tiny")
    assert process.wait(60) == 0
    assert site.offered() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_leaves_nothing_behind(site: Site, how: signal.Signals) -> None:
    site.recipe()
    site.publish(site.build())
    site.recipe(post="echo waiting; sleep 300")
    process = carme_images(site, "build", "tiny")
    log = site.builder().log_path(load_recipe("tiny", (site.recipes,)))
    wait_for(lambda: log.exists() and "waiting" in log.read_text(), 60, "the build to wait")
    process.send_signal(how)
    assert process.wait(60) != 0
    assert not list((site.cache / "build").glob("*.sif.*[0-9]"))
    assert site.offered() == ["tiny:1"]
    running = subprocess.run(["pgrep", "-f", str(site.cache)], capture_output=True, text=True)
    assert running.stdout == ""


def test_killed_build_leaves_the_old_image_in_use(site: Site) -> None:
    site.recipe()
    result = site.build()
    # A kill -9 during the last step leaves a file without its description.
    result.path.with_suffix(".json").unlink()
    os.truncate(result.path, 1000)
    leftover = site.cache / "build" / f"{result.path.name}.99999999"
    leftover.mkdir()
    second = site.build()
    assert second.is_new
    assert not leftover.exists()
    assert site.publish(second) == "tiny:1"


def test_truncated_build_is_built_again(site: Site) -> None:
    site.recipe()
    result = site.build()
    os.truncate(result.path, 10_000)
    assert site.build().is_new


def test_damaged_build_is_not_published(site: Site) -> None:
    site.recipe()
    first = site.build()
    site.publish(first)
    site.recipe(post="echo new >/opt/new")
    result = site.build()
    with result.path.open("r+b") as file:
        file.seek(50_000)
        file.write(b"damage")
    with pytest.raises(UnavailableError, match="checksum differs"):
        site.publish(result)
    assert load_catalogue(site.images).find("tiny").digest == first.image.digest


def test_disk_full(site: Site) -> None:
    small = site.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m,mode=755", "tmpfs", small], check=True)
    try:
        site.cache = small / "cache"
        site.recipe(disk_mb=4000)
        with pytest.raises(UnavailableError, match=r"tiny:1 needs 3\.91 GiB in .* are free"):
            site.build()
        # A recipe with a too small disk_mb: the build fails with the reason.
        site.recipe(disk_mb=100, post="dd if=/dev/zero of=/opt/big bs=1048576 count=500")
        with pytest.raises(UnavailableError, match="No space left on device"):
            site.build()
        assert not list((site.cache / "build").glob("*.sif.*[0-9]"))
    finally:
        subprocess.run(["umount", small], check=True)


def test_retired_image_stays_while_it_runs(site: Site) -> None:
    site.recipe()
    site.publish(site.build())
    publisher = Publisher(site.images)
    image = publisher.catalogue().find("tiny")
    running = subprocess.Popen(
        [str(site.apptainer), "-q", "exec", str(site.images / image.file), "sleep", "60"],
        user=pwd.getpwnam("nobody").pw_uid,
        group=pwd.getpwnam("nobody").pw_gid,
        extra_groups=[],
        env={"HOME": "/", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd="/",
    )
    try:
        wait_for(lambda: open_files(site.images), 20, "the container to hold its image")
        publisher.retire("tiny")
        assert publisher.prune(frozenset(open_files(site.images))) == []
        assert (site.images / image.file).exists()
    finally:
        running.terminate()
        running.wait(20)
    wait_for(lambda: not open_files(site.images), 20, "the container to let go of its image")
    assert [gone.id for gone in publisher.prune(frozenset(open_files(site.images)))] == ["tiny:1"]
    assert not (site.images / image.file).exists()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("site", "other"):
        secret, public = folder / f"{name}.pem", folder / f"{name}.pub"
        subprocess.run(
            ["openssl", "genrsa", "-out", secret, "2048"], check=True, capture_output=True
        )
        command = ["openssl", "rsa", "-in", secret, "-pubout", "-out", public]
        subprocess.run(command, check=True, capture_output=True)
    return folder / "site.pem", folder / "site.pub"


def test_signed_images(site: Site, keys: tuple[Path, Path]) -> None:
    secret, public = keys
    site.recipe()
    result = site.build()
    with pytest.raises(ConfigError, match="set both or none"):
        site.publish(result, signing_key=secret)
    with pytest.raises(ConfigError, match="not the public key of"):
        site.publish(result, signing_key=secret, verify_key=public.with_name("other.pub"))
    assert site.offered() == []
    site.publish(result, signing_key=secret, verify_key=public)
    [image] = load_catalogue(site.images, require_signed=True).offered()
    assert image.signed_by == fingerprint(public)
    assert image.digest != result.image.digest
    path = site.images / image.file
    assert signer(site.apptainer, path, public) == image.signed_by
    assert signer(site.apptainer, path, public.with_name("other.pub")) is None
    assert signer(site.apptainer, result.path, public) is None
    index = (site.images / "index.json").read_text()
    site.publish(site.build(), signing_key=secret, verify_key=public)
    assert (site.images / "index.json").read_text() == index, "again changes nothing"
    with path.open("r+b") as file:
        file.seek(50_000)
        file.write(b"damage")
    assert signer(site.apptainer, path, public) is None
    site.publish(site.build(), signing_key=secret, verify_key=public)
    assert signer(site.apptainer, path, public), "publishing repairs a damaged file"


def test_a_forced_build_is_signed_and_published(site: Site, keys: tuple[Path, Path]) -> None:
    pair = {"signing_key": keys[0], "verify_key": keys[1]}
    site.recipe(post="cat /proc/sys/kernel/random/uuid >/opt/build")
    site.publish(site.build(), **pair)
    before = load_catalogue(site.images).find("tiny")
    rebuilt = site.build(force=True)
    assert rebuilt.image.built != before.built, "also if both builds took less than a second"
    site.publish(rebuilt, **pair)
    [image] = load_catalogue(site.images, require_signed=True).offered()
    assert (image.file, image.built) == (before.file, rebuilt.image.built)
    build, offered = (
        as_nobody(site, "exec", str(path), "cat", "/opt/build").stdout
        for path in (rebuilt.path, site.images / image.file)
    )
    assert offered == build != ""


def test_own_image_without_a_server(site: Site, keys: tuple[Path, Path]) -> None:
    site.recipe()
    path = site.build().path
    output = check_as_nobody(site, path)
    assert f"{path} has no jupyterhub-singleuser on its PATH" in output
    assert "install in it: pip install 'jupyterhub==6.*' 'jupyterlab==4.*'" in output
    public = site.folder / "site.pub"
    shutil.copy(keys[1], public)
    assert "not signed with this site's key" in check_as_nobody(site, path, verify_key=public)
    path.chmod(0o600)
    assert "you may not read this file" in check_as_nobody(site, path)


def check_as_nobody(site: Site, path: Path, **values: Path) -> str:
    """The message of `carme images check` to an unprivileged user about an unsuitable image."""
    lines = [f'{key} = "{value}"' for key, value in values.items()]
    toml = site.folder / "carme.toml"
    toml.write_text("\n".join(["[images]", f'apptainer = "{site.apptainer}"', *lines]))
    nobody = pwd.getpwnam("nobody")
    run = subprocess.run(
        [sys.executable, "-m", "carme.cli", "images", "--config", toml, "check", path],
        capture_output=True,
        text=True,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
        timeout=60,
    )
    assert run.returncode == 1, run.stdout
    return run.stderr
