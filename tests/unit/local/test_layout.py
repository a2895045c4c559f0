import pytest

from carme.config import Config, parse
from carme.errors import ConfigError
from carme.local.layout import layout_for


def test_everything_lies_below_one_folder():
    layout = layout_for(Config())
    derived = layout.config
    for path in (
        derived.slurm.conf,
        derived.slurm.rest_socket,
        derived.view.socket,
        derived.images.folder,
    ):
        assert path.is_relative_to(layout.dir)
    assert str(layout.dir) in derived.hub.database


def test_a_postgresql_database_is_kept():
    config = parse({"hub": {"database": "postgresql://hub@db/hub"}}, "x")
    assert layout_for(config).config.hub.database == "postgresql://hub@db/hub"


def test_service_users_and_the_readers_of_the_view():
    local = {"view_user": "v", "exporter_user": "e", "service_user": "s"}
    layout = layout_for(parse({"local": local, "hub": {"user": "h"}}, "x"))
    assert sorted(layout.service_users()) == ["e", "h", "s", "v"]
    assert layout.config.view.readers == ("h", "e", "s")


def test_ports_are_distinct_and_one_a_node():
    layout = layout_for(Config())
    ports = layout.ports()
    assert len(set(ports.values())) == len(ports)
    assert {"slurmd-gpu01", "slurmd-gpu02", "slurmd-cpu01"} <= set(ports)


def test_device_numbers_of_nodes_do_not_overlap():
    layout = layout_for(Config())
    assert [layout.minors(node) for node in layout.config.local.nodes] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [],
    ]


@pytest.mark.parametrize(
    ("local", "says"),
    [
        (
            {
                "nodes": [{"name": "a"}, {"name": "a"}],
                "partitions": [{"name": "p", "nodes": ["a"]}],
            },
            "same name",
        ),
        (
            {"partitions": [{"name": "p", "nodes": ["gpu99"]}]},
            r"p names unknown nodes: gpu99.*gpu01",
        ),
        ({"dir": "here"}, "absolute"),
    ],
)
def test_impossible_clusters_are_refused(local, says):
    with pytest.raises(ConfigError, match=says):
        layout_for(parse({"local": local}, "x"))
