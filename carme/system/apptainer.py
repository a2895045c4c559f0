"""Apptainer on this machine: the system's, or a private copy in its own folder.

Debian stable has no Apptainer. Debian unstable has one, built for a newer C library, so the copy
brings that library along. Nothing below /usr or /etc is written, and the machine's apt sources do
not change. The program finds its files relative to its own path.
"""

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from carme.errors import CarmeError, MissingError, UnavailableError
from carme.system.files import locked
from carme.system.mirrors import AptSource, apt_sources, ca_bundle, debian_mirror
from carme.system.programs import STANDARD_PATH, CommandResult, ProgressCallback, execute

APT_PACKAGES: Mapping[str, str] = {
    "squashfs-tools": "packs images",
    "squashfuse": "mounts images without root",
    "fuse-overlayfs": "writable layers without root",
    "uidmap": "builds images without root",
    "fakeroot": "builds images without root for users without subordinate ids",
    "debootstrap": "creates the Debian system inside the base image",
    "patchelf": "binds a private Apptainer to the C library it was built for",
}
"""Debian packages that are needed to run and build containers, and what each is for."""

FROM_UNSTABLE = ("apptainer", "libc6", "libseccomp2", "libsqlite3-0")
ARCHITECTURES = {"amd64", "arm64"}
STAMP = "complete"
INSTALL_HINT = "install apptainer yourself, so that it is on PATH"


def find_or_install(cache: Path, progress: ProgressCallback, mirror: str | None = None) -> Path:
    """The absolute path of an Apptainer (or Singularity) that normal users of this machine can run.

    Tries the one on PATH, then an earlier copy below `cache`, then makes a new copy there.
    """
    allow_containers()
    for name in ("apptainer", "singularity"):
        if (path := shutil.which(name)) and works(Path(path)):
            return Path(path)
    home = cache / "apptainer"
    program = home / "bin" / "apptainer"
    cache.mkdir(parents=True, exist_ok=True, mode=0o755)
    with locked(cache / ".apptainer.lock"):  # all checkouts on this machine share the copy
        if (home / STAMP).exists() and works(program):
            return program
        progress("Apptainer: not installed; fetching a private copy from Debian unstable")
        install(home, debian_mirror(apt_sources(), mirror), progress)
        progress("Apptainer: running a first container as a normal user")
        prove(program)
        (home / STAMP).touch()
    return program


def allow_containers() -> None:
    """Let normal users run containers; MissingError names the kernel feature that is missing."""
    limits = {
        "/proc/sys/user/max_user_namespaces": "sysctl user.max_user_namespaces=100000",
        "/proc/sys/kernel/unprivileged_userns_clone": "sysctl kernel.unprivileged_userns_clone=1",
    }
    for path, remedy in limits.items():
        setting = Path(path)
        if setting.exists() and setting.read_text().strip() == "0":
            raise MissingError(
                "the kernel does not let normal users create user namespaces", remedy
            )
    fuse = Path("/dev/fuse")
    if not fuse.exists():
        raise MissingError("/dev/fuse is missing, so images cannot be mounted", "modprobe fuse")
    if stat.S_IMODE(fuse.stat().st_mode) & 0o666 != 0o666:
        try:
            fuse.chmod(0o666)
        except PermissionError:
            message = "normal users may not open /dev/fuse"
            raise MissingError(message, "as root: chmod 666 /dev/fuse") from None


def works(program: Path) -> bool:
    """Whether a normal user can run `program`."""
    try:
        return _as_normal_user([str(program), "version"], Path("/")).returncode == 0
    except CarmeError:
        return False


def install(home: Path, mirror: AptSource, progress: ProgressCallback) -> None:
    """Install Apptainer with its libraries below `home`, completely or not at all."""
    architecture = _run(["dpkg", "--print-architecture"], "dpkg").strip()
    if architecture not in ARCHITECTURES:
        raise MissingError(f"Debian has no Apptainer package for {architecture}", INSTALL_HINT)
    home.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".apptainer-") as scratch:
        work = Path(scratch)
        packages = _download(work / "apt", mirror, progress)
        unpacked = work / "unpacked"
        for package in packages:
            _run(["dpkg-deb", "--extract", str(package), str(unpacked)], "dpkg-deb")
        ready = work / "ready"
        _arrange(unpacked, ready, home)
        (ready / "packages.txt").write_text("".join(f"{p.name}\n" for p in packages))
        shutil.rmtree(home, ignore_errors=True)
        ready.rename(home)


def _download(work: Path, mirror: AptSource, progress: ProgressCallback) -> list[Path]:
    """Download the packages of FROM_UNSTABLE with separate apt lists and sources."""
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (work / name).mkdir(parents=True)
    signed = f"[signed-by={mirror.signed_by}] " if mirror.signed_by else ""
    sources = work / "sources.list"
    sources.write_text(f"deb {signed}{mirror.uri} unstable main\n")
    options = {
        "Dir::State": work / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Sandbox::User": pwd.getpwuid(os.getuid()).pw_name,
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
    why = f"Debian unstable cannot be reached at {mirror.uri}"
    progress("Apptainer: reading the package list of Debian unstable (10 MB)")
    _run([*apt, "update", "--error-on=any"], why)
    progress(f"Apptainer: downloading {', '.join(FROM_UNSTABLE)} (20 MB)")
    _run([*apt, "download", *FROM_UNSTABLE], why, cwd=work / "packages")
    return sorted((work / "packages").glob("*.deb"))


def _arrange(unpacked: Path, ready: Path, home: Path) -> None:
    """Arrange the unpacked packages below `ready` so that they work once they are at `home`."""
    [helpers] = unpacked.glob("usr/lib/*/apptainer")
    triplet = helpers.parent
    (ready / "bin").mkdir(parents=True)
    (ready / "lib" / triplet.name).mkdir(parents=True)
    (ready / "var/lib/apptainer/mnt/session").mkdir(parents=True)
    (unpacked / "usr/bin/apptainer").rename(ready / "bin/apptainer")
    (ready / "bin/singularity").symlink_to("apptainer")
    (unpacked / "etc").rename(ready / "etc")
    helpers.rename(ready / "lib" / triplet.name / "apptainer")
    libraries = ready / "libraries"
    libraries.mkdir()
    for library in triplet.glob("*.so*"):
        library.rename(libraries / library.name)
    # Apptainer's starter uses the folder three levels above itself as the prefix. In Debian's
    # layout that is `lib`; these links make it look like the prefix.
    for name, target in {"etc": "../etc", "var": "../var", "bin": "../bin", "lib": "."}.items():
        (ready / "lib" / name).symlink_to(target)
    starter = ready / "lib" / triplet.name / "apptainer/bin/starter"
    for program in (ready / "bin/apptainer", starter):
        loader = Path(_run(["patchelf", "--print-interpreter", str(program)], "patchelf").strip())
        # RUNPATH, patchelf's default, does not apply to the libraries' own libraries: force RPATH.
        arguments = ["--force-rpath", "--set-rpath", str(home / "libraries")]
        arguments += ["--set-interpreter", str(home / "libraries" / loader.name), str(program)]
        _run(["patchelf", *arguments], "patchelf")
    for folder in (ready, *(path for path in ready.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def prove(program: Path) -> None:
    """Build and run a container of one program as a normal user; MissingError says why it fails."""
    with tempfile.TemporaryDirectory(prefix="carme-apptainer-") as scratch:
        work = Path(scratch)
        work.chmod(0o755)
        inside = work / "root"
        for name in ("proc", "sys", "dev", "tmp", "var/tmp", "etc", "root", "home"):
            (inside / name).mkdir(parents=True)
        libraries = [word for word in _run(["ldd", "/bin/true"], "ldd").split() if word[0] == "/"]
        for file in ("/bin/true", *libraries):
            (inside / file[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, inside / file[1:])
        home = work / "home"
        home.mkdir()
        if os.geteuid() == 0:
            shutil.chown(home, "nobody")
        image = home / "true.sif"
        for command in (
            [str(program), "build", str(image), str(inside)],
            [str(program), "exec", str(image), "/bin/true"],
        ):
            try:
                result = _as_normal_user(command, home)
            except UnavailableError as error:
                if not isinstance(error.__cause__, PermissionError):
                    raise
                hint = "set CARME_CACHE to a folder that all users can read"
                raise MissingError(f"normal users cannot reach {program}", hint) from None
            if result.returncode:
                raise MissingError(f"Apptainer cannot run a container: {result.last_line}")


def _as_normal_user(command: list[str], home: Path) -> CommandResult:
    """Run as `nobody` when this process is root: what works for root may fail for users."""
    nobody = pwd.getpwnam("nobody")
    environ = {"PATH": STANDARD_PATH, "HOME": str(home)}
    environ |= {"APPTAINER_TMPDIR": str(home), "APPTAINER_CACHEDIR": str(home)}
    user = (nobody.pw_uid, nobody.pw_gid) if os.geteuid() == 0 else None
    return execute(command, env=environ, timeout_seconds=120, cwd=home, user=user)


def _run(command: list[str], why: str, cwd: Path | None = None) -> str:
    """The output of `command`; UnavailableError is one line that starts with `why`."""
    environ = {**os.environ, "LC_ALL": "C"}
    if bundle := ca_bundle():
        environ.setdefault("SSL_CERT_FILE", str(bundle))
    try:
        result = execute(command, env=environ, timeout_seconds=900, cwd=cwd)
    except MissingError as error:
        raise MissingError(error.message, f"apt-get install {command[0]}") from None
    except UnavailableError as error:
        raise UnavailableError(f"{why}: {error.message}") from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
        raise UnavailableError(f"{why}: {lines[0].removeprefix('E: ')}", f"or {INSTALL_HINT}")
    return result.stdout
