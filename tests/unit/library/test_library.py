"""Bundled hardware and workloads, own files, and what is said about wrong ones."""

import pytest

from carme import library
from carme.errors import ConfigError, InputError, MissingError
from carme.simulator.commands.cluster import describe_nodes
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate

WANTED = {
    "gpus": "k20x k80 titan-x m40 p100 v100 t4 rtx-6000 a40 a100 h100 knl-7230 xeon-gold-6148",
    "links": "pcie-3 nvlink-1 nvlink-2 nvlink-3 nvlink-4 ethernet-1 ethernet-10 ethernet-400 "
    "infiniband-qdr infiniband-fdr infiniband-edr infiniband-hdr infiniband-ndr",
    "nodes": "dgx-1-v100 dgx-2 dgx-a100 dgx-h100 summit tsubame-2.5 tsubame-kfc-dl theta cpu-node",
    "workloads": "kaldi-lstm cnn-a nt3 p1b1 p1b2 p1b3 alexnet googlenet vgg-19 resnet-50 bert-base "
    "gpt-175b lstm-lm ncf u-net",
    "storage": "summit-gpfs nvme",
    "clusters": "summit tsubame-2.5 tsubame-kfc-dl merpsys",
}
FIND = {
    "gpus": library.gpu,
    "links": library.link,
    "nodes": library.node,
    "workloads": library.workload,
    "storage": library.storage,
    "clusters": library.cluster,
}


@pytest.mark.parametrize("kind", WANTED)
def test_everything_bundled_is_valid_and_names_its_sources(kind):
    names = library.names(kind)
    assert set(WANTED[kind].split()) <= set(names)
    for name in names:
        thing = FIND[kind](name)
        assert thing.title, name
        assert thing.sources, name
        assert all(thing.sources.values()), name


@pytest.mark.parametrize("name", library.names("gpus"))
def test_every_gpu_has_a_node_that_holds_it(name):
    gpu = library.gpu(name)
    assert gpu.default_node in library.names("nodes")
    assert library.cluster_of(name).node.gpu == gpu


def test_a_gpu_may_share_the_default_node_of_another():
    """Then one file is enough to add it."""
    node, t4 = library.cluster_of("6xL4").node, library.node("g4dn.12xlarge")
    assert (node.gpu.name, node.title) == ("l4", "Amazon EC2 g4dn.12xlarge with NVIDIA L4")
    assert node.model_copy(update={"gpu": t4.gpu, "name": t4.name, "title": t4.title}) == t4
    with pytest.raises(InputError, match=r"g4dn\.12xlarge has t4, not l4"):
        library.cluster_of("L4", node_name="g4dn.12xlarge")


@pytest.mark.parametrize("name", library.names("workloads"))
def test_every_workload_runs_somewhere(name):
    workload = library.workload(name)
    where = workload.measured[0].gpu if workload.measured else "a100-80gb"
    result = simulate(workload, library.cluster_of(where), Synchronous(batch=1, epochs=1))
    assert result.seconds > 0


@pytest.mark.parametrize(
    ("text", "meant"),
    [("8xV100", (8, "v100")), ("V100", (1, "v100")), ("4 x TITAN X", (4, "titan-x"))],
)
def test_gpus_are_named_as_people_write_them(text, meant):
    assert library.parse_gpus(text) == meant


@pytest.mark.parametrize("text", ["0xV100", "", "8x", "-1xV100", "x"])
def test_what_names_no_gpus_is_refused(text):
    with pytest.raises((InputError, MissingError)):
        library.cluster_of(text)


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(MissingError) as caught:
        library.gpu("v10")
    assert "v100" in caught.value.hint


def test_a_cluster_file_changes_what_differs(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        """
        nodes = 16
        pue = 1.3
        storage = "nvme"
        [node]
        like = "dgx-a100"
        gpus = 4
        network = "ethernet-100"
        adapters = 2
        """
    )
    cluster = library.cluster(str(path))
    assert (cluster.gpus, cluster.pue, cluster.node.gpu.name) == (64, 1.3, "a100-80gb")
    assert cluster.node.network.name == "ethernet-100"
    assert cluster.storage == library.storage("nvme")
    result = simulate(library.workload("gpt-1.3b"), cluster, Synchronous(gpus=64, batch=512))
    assert result.facility_joules == pytest.approx(1.3 * result.node_joules)


def test_a_gpu_of_ones_own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        """
        nodes = 1
        [node]
        like = "dgx-h100"
        [node.gpu]
        title = "Imagined"
        units = 200
        memory_bytes = 200e9
        memory_bandwidth = 8e12
        peak_flops = { fp16 = 2e15 }
        power = { idle_watts = 100, busy_watts = 900, limit_watts = 1000 }
        """
    )
    cluster = library.cluster(str(path))
    assert cluster.node.gpu.peak_flops == {"fp16": 2e15}
    plan = Synchronous(gpus=8, batch=64)
    assert simulate(library.workload("gpt-1.3b"), cluster, plan).seconds > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = 0\nnode = 'dgx-2'", "nodes: input should be greater than or equal to 1, not 0"),
        ("nodes = 2\nnode = 'dgx-3'", "dgx-2"),
        ("nodes = 2", "node: field required"),
        ("nodes = nan\nnode = 'dgx-2'", "nodes"),
        ("nodes = 2\nnode = 'dgx-2'\nfoo = 1", "foo"),
        ("nodes = ", "not valid TOML"),
    ],
)
def test_wrong_cluster_files_say_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, MissingError)) as caught:
        library.cluster(str(path))
    assert message in str(caught.value)


def test_missing_files_say_so(tmp_path):
    for find in (library.cluster, library.workload):
        with pytest.raises(MissingError, match="no such file"):
            find(str(tmp_path / "nothing.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[dataset]\nsamples = 10", "exactly one of"),
        ("[dataset]\nsamples = 0\n[[layers]]\nkind='dense'\ninputs=1\noutputs=1", "samples"),
        ("[dataset]\nsamples = 1\n[[layers]]\nkind='dens'\ninputs=1\noutputs=1", "dense"),
        ("[dataset]\nsamples = 1\n[[measured]]\ngpu='t4'\nbatch=1\nseconds=1", "parameters"),
        (
            "[dataset]\nsamples=1\n[transformer]\nhidden=10\nlayers=1\nheads=3\nsequence=8\n"
            "vocabulary=9",
            "multiple",
        ),
    ],
)  # fmt: skip
def test_wrong_workload_files_say_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "w.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        library.workload(str(path))
    assert message in str(caught.value)


class Node:
    def __init__(self, name, gpus, features=()):
        self.name, self.gpus, self.features = name, gpus, features
        self.cpus, self.memory_bytes = 64, 2**38


def test_a_cluster_file_from_slurm_can_be_read_back(tmp_path):
    nodes = [Node(f"g{i}", {"nvidia_a100-sxm4-80gb": 4}, ("hdr", "ib")) for i in range(6)]
    nodes += [Node("t1", {"tesla_t4": 2}), Node("l1", {"nvidia_l4": 1}), Node("cpu1", {})]
    text = describe_nodes(nodes)
    path = tmp_path / "slurm.toml"
    path.write_text(text)
    cluster = library.cluster(str(path))
    assert (cluster.nodes, cluster.node.gpus) == (6, 4)
    assert cluster.node.gpu.name == "a100-80gb"
    assert cluster.node.network.name == "infiniband-hdr"
    assert "Left out: 1 nodes with 2 of 'tesla_t4'" in text
    path.write_text(describe_nodes(nodes, "tesla_t4"))
    assert library.cluster(str(path)).node.gpu.name == "t4"
    path.write_text(describe_nodes(nodes, "nvidia_l4"))
    assert library.cluster(str(path)).node.gpu.name == "l4"


def test_unknown_gpus_and_none_at_all(tmp_path):
    path = tmp_path / "slurm.toml"
    path.write_text(describe_nodes([Node("n", {"imagined": 8})]))
    assert "No bundled GPU" in path.read_text()
    assert library.cluster(str(path)).gpus == 8
    with pytest.raises(InputError, match="no node has GPUs"):
        describe_nodes([Node("n", {})])


@pytest.mark.parametrize(
    ("slurm", "ours"),
    [
        ("v100", "v100"),
        ("tesla_v100-pcie-32gb", "v100-pcie"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("virtual-a100", "a100"),
        ("quadro_rtx_6000", "rtx-6000"),
        ("gtx_titan_x", "titan-x"),
        ("imagined", None),
    ],
)
def test_slurm_names_are_understood(slurm, ours):
    assert library.match_gpu(slurm) == ours
