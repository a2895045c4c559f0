"""Reading what the machine's own package tools are set to."""

from pathlib import Path

import pytest

from carme.errors import MissingError
from carme.system.mirrors import (
    AptSource,
    apt_sources,
    debian_mirror,
    parse_apt_sources,
    parse_pip_config,
    proxies,
)

ONE_LINE = """
# a comment
deb [arch=amd64 signed-by=/k/x.gpg] http://mirror.test/debian bookworm main contrib # x
deb-src http://mirror.test/debian bookworm main
deb http://mirror.test/security bookworm-security main
"""
DEB822 = """Types: deb deb-src
# http://snapshot.test/
URIs: http://mirror.test/debian
 http://second.test/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/x.gpg

Types: deb
URIs: http://off.test/debian
Suites: sid
Components: main
Enabled: no

Types: deb
URIs: http://inline.test/
Suites: stable
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
"""


def test_one_line_sources() -> None:
    first, second = parse_apt_sources(ONE_LINE)
    assert first == AptSource(
        "http://mirror.test/debian", "bookworm", ("main", "contrib"), "/k/x.gpg"
    )
    assert (second.suite, second.signed_by) == ("bookworm-security", "")


def test_deb822_sources() -> None:
    sources = parse_apt_sources(DEB822)
    assert [(s.uri, s.suite) for s in sources] == [
        ("http://mirror.test/debian", "bookworm"),
        ("http://mirror.test/debian", "bookworm-updates"),
        ("http://second.test/debian", "bookworm"),
        ("http://second.test/debian", "bookworm-updates"),
        ("http://inline.test/", "stable"),
    ]
    assert sources[0].signed_by == "/usr/share/keyrings/x.gpg"
    assert sources[-1].signed_by == ""


def test_sources_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d/a.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/a.sources.bak").write_text(DEB822)
    assert len(apt_sources(tmp_path)) == 7


def test_mirror_is_the_machines_own_or_the_configured_one() -> None:
    sources = parse_apt_sources(ONE_LINE)
    assert debian_mirror(sources).uri == "http://mirror.test/debian"
    chosen = debian_mirror(sources, "http://other.test/debian/")
    assert (chosen.uri, chosen.signed_by) == ("http://other.test/debian", "/k/x.gpg")
    assert debian_mirror([], "http://other.test/debian").uri == "http://other.test/debian"


def test_no_mirror_says_what_to_set() -> None:
    with pytest.raises(MissingError, match=r"images\.debian_mirror"):
        debian_mirror([AptSource("http://archive.test/ubuntu", "noble", ("main",))])


def test_pip_settings_environment_wins() -> None:
    listing = (
        ":env:.find-links='/opt/wheels'\n"
        ":env:.default-timeout='180'\n"
        "global.extra-index-url='file:///a/simple file:///b/simple'\n"
        "global.find-links='/other'\n"
        "install.index-url='http://one.test/simple'\n"
        "global.index-url='http://two.test/simple'\n"
        "user.nonsense='x'\n"
        "a line of something else\n"
    )
    assert parse_pip_config(listing) == {
        "find-links": "/opt/wheels",
        "timeout": "180",
        "extra-index-url": "file:///a/simple file:///b/simple",
        "index-url": "http://one.test/simple",
    }


def test_pip_settings_over_several_lines() -> None:
    assert parse_pip_config("global.find-links='\\n/a\\n/b'") == {"find-links": "/a /b"}


def test_proxies_in_both_spellings() -> None:
    variables = proxies({"HTTPS_PROXY": "http://proxy.test:3128"})
    assert variables == {
        "https_proxy": "http://proxy.test:3128",
        "HTTPS_PROXY": "http://proxy.test:3128",
    }
