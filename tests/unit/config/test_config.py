import pytest

from carme.config import Config, load, parse
from carme.errors import ConfigError


def test_no_file_means_all_defaults(monkeypatch, tmp_path):
    monkeypatch.delenv("CARME_CONFIG", raising=False)
    monkeypatch.setattr("carme.config.DEFAULT_PATH", tmp_path / "none.toml")
    monkeypatch.setattr("carme.config.config_path", lambda: tmp_path / "none.toml")
    assert load() == Config()


def test_values_override_defaults(tmp_path):
    file = tmp_path / "carme.toml"
    file.write_text('[cluster]\nname = "hpc"\n[view]\npoll_seconds = 60\n')
    config = load(file)
    assert (config.cluster.name, config.view.poll_seconds) == ("hpc", 60)
    assert config.hub == Config().hub


def test_named_file_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("CARME_CONFIG", str(tmp_path / "away.toml"))
    with pytest.raises(ConfigError, match=r"away\.toml: no such file"):
        load()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"clutser": {}}, r"site\.toml: clutser: no such key; allowed here: alerts, cluster, "),
        ({"view": {"sokcet": "/x"}}, r"view\.sokcet: no such key; allowed here: .*socket"),
        ({"slurm": {"backend": "magic"}}, r"slurm\.backend: .*'cli'.*not 'magic'"),
        ({"hub": {"api_port": 0}}, r"hub\.api_port: .*greater than or equal to 1, not 0"),
        ({"hub": {"api_port": "many"}}, r"hub\.api_port: .*integer.*not 'many'"),
        ({"view": {"poll_seconds": -1}}, r"view\.poll_seconds: .*not -1"),
        (
            {"local": {"nodes": [{"name": "a", "gpuz": 1}]}},
            r"local\.nodes\.0\.gpuz: no such key; allowed here: cpus, gpus",
        ),
        (
            {"local": {"nodes": [{"name": "a", "gpus": {"kind": "x"}}]}},
            r"gpus\.kind: no such key; allowed here: count, type",
        ),
        ({"hub": {"user": "../root"}}, r"hub\.user: .*not '\.\./root'"),
        ({"session": {"binds": ["/a,/b"]}}, r"session\.binds\.0"),
    ],
)
def test_a_wrong_value_names_file_key_problem_and_what_is_allowed(data, says):
    with pytest.raises(ConfigError, match=says):
        parse(data, "site.toml")


@pytest.mark.parametrize("section", ["hub", "service"])
@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://u:hush@db/carme", "postgresql://u@db/carme?password=hush&x=1"]
)
def test_a_password_in_a_file_that_all_can_read_is_refused(section, url):
    with pytest.raises(ConfigError, match=rf"{section}\.database: .*passfile=") as caught:
        parse({section: {"database": url}}, "site.toml")
    assert "hush" not in str(caught.value)
    file = "postgresql://u@db/carme?passfile=/etc/carme/x.pgpass"
    assert parse({section: {"database": file}}, "site.toml")


def test_every_problem_is_listed():
    with pytest.raises(ConfigError) as caught:
        parse({"cluster": {"nam": 1}, "hub": {"api_port": 0}}, "site.toml")
    assert len(caught.value.message.splitlines()) == 2


def test_broken_toml_says_where(tmp_path):
    file = tmp_path / "carme.toml"
    file.write_text("[cluster\n")
    with pytest.raises(ConfigError, match=r"carme.toml: not valid TOML: .*line 1"):
        load(file)


def test_the_tree_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Config().cluster.name = "x"


def test_prometheus_reads_often_enough_for_new_users() -> None:
    with pytest.raises(ConfigError, match=r"at most twice exporter\.interval_seconds"):
        parse({"prometheus": {"scrape_seconds": 40}}, "f")
    parse({"prometheus": {"scrape_seconds": 60}, "exporter": {"interval_seconds": 30}}, "f")


@pytest.mark.parametrize("seconds", [7, 40, 45, 7.5])
def test_prometheus_reads_at_whole_parts_of_a_minute(seconds: float) -> None:
    """Grafana's steps are multiples of a minute, and plots need multiples of this."""
    content = {"prometheus": {"scrape_seconds": seconds}, "exporter": {"interval_seconds": 60}}
    with pytest.raises(ConfigError, match=r"scrape_seconds must divide a minute: 1, 2, 3"):
        parse(content, "f")


def test_mail_needs_a_server() -> None:
    with pytest.raises(ConfigError, match="email_to needs email_from and smtp_host"):
        parse({"alerts": {"email_to": "ops@example.org"}}, "f")
