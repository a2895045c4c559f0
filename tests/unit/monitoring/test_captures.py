"""Real captures, whole: nvidia-smi of three cards, InfiniBand of three vendors, RAPL, cgroups."""

import pytest

from carme_monitoring.collectors import jobs, network, power
from carme_monitoring.collectors.gpu import add_gpu_samples
from carme_monitoring.gpus import slots
from carme_monitoring.metrics import LabelledCounter, Samples
from support import smi
from support.ttar import unpack

pytestmark = pytest.mark.data
MIB = 2**20


@pytest.fixture(scope="module")
def kernel(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("procfs")
    return unpack(data / "sysfs/procfs-fixtures.ttar", folder) / "fixtures"


@pytest.fixture(scope="module")
def slurm(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cgroup")
    return unpack(data / "sysfs/slurm-cgroup-fixtures.ttar", folder) / "fixtures"


def capture(data, word):
    [path] = (data / "nvidia-smi").glob(f"*{word}*")
    return path.read_text(encoding="utf-8")


def test_h100_under_load(data):
    [gpu] = smi.gpus(capture(data, "h100-80gb"), "load")
    assert (gpu.name, gpu.minor, gpu.utilisation) == ("NVIDIA H100 80GB HBM3", 0, 1.0)
    assert (gpu.power_watts, gpu.power_limit_watts) == (631.95, 700.0)
    assert gpu.memory_total_bytes == 81559 * MIB
    assert gpu.temperature_celsius == 59
    assert gpu.clocks_hertz["sm"] == 1_980_000_000
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (0, 0)
    assert [process.pid for process in gpu.processes] == [11327, 11328, 11345]
    [idle] = smi.gpus(capture(data, "h100-80gb"), "idle")
    assert idle.throttle == {"idle"}
    assert idle.utilisation == 0


def test_a_sliced_h100_has_its_power_once(data):
    [gpu] = smi.gpus(capture(data, "mig"), "load")
    assert gpu.mig
    assert gpu.utilisation is None  # absent on a sliced card
    assert [round(part.share * 7) for part in gpu.slices] == [3, 2, 1, 1]
    assert gpu.slices[0].memory_used_bytes == 11091 * MIB
    assert len(slots([gpu])) == 4
    out = Samples()
    add_gpu_samples(out, [gpu])
    assert list(out.families["carme_gpu_power_watts"].values()) == [433.78]
    assert len(out.families["carme_gpu_mig_share_ratio"]) == 4
    assert "carme_gpu_utilisation_ratio" not in out.families


def test_a_card_without_ecc(data):
    [gpu] = smi.gpus(capture(data, "4080"), "load")
    assert gpu.ecc_corrected is None
    assert gpu.utilisation == 0.07
    assert gpu.pcie_receive == 1_436_230_000


@pytest.mark.parametrize("word", ["mig", "h100-80gb", "4080"])
def test_truncated_captures_never_raise(data, word):
    text = capture(data, word)
    for end in range(0, len(text), 4999):
        for gpu in smi.gpus(text[:end], "load"):
            add_gpu_samples(Samples(), [gpu])


def test_infiniband_of_three_vendors(kernel):
    ports = {(port.device, port.port): port for port in network.ports(kernel / "sys")}
    assert {device for device, _ in ports} == {"hfi1_0", "mlx4_0", "mlx5_0"}
    omnipath = ports["hfi1_0", "1"]
    assert omnipath.receive_bytes == 345091702026 * 4
    assert omnipath.rate_bytes_per_second == 100e9 / 8
    assert omnipath.is_active
    assert ports["mlx4_0", "1"].send_bytes == 26509113295 * 4
    assert ports["mlx5_0", "1"].send_packets == 10907922116
    assert ports["mlx5_0", "1"].errors["port_rcv_errors"] == 0
    assert ports["mlx4_0", "2"].is_active
    assert len(ports) == 4


def test_rapl(kernel):
    errors = LabelledCounter()
    zones = power.read_rapl(kernel / "sys", errors)
    package = zones["intel-rapl:0"]
    assert (package.uj, package.range_uj, package.component) == (
        240422366267, 262143328850, "cpu",
    )  # fmt: skip
    assert "intel-rapl" not in zones
    assert all(zone.component in ("cpu", "dram") for zone in zones.values())


def test_interfaces(kernel):
    found = {one.name: one for one in network.read(kernel / "proc", kernel / "sys").interfaces}
    assert "lo" not in found
    assert found["eth0"].receive_bytes == 874354587


def test_slurm_cgroups_v1(slurm):
    uses = jobs.JobCgroups("", slurm, slurm / "proc").read()
    assert {10, 11, 4} <= set(uses)
    job = uses[10]
    assert job.cpu_seconds == pytest.approx(0.007710215)
    assert job.cpu_user_seconds == 0
    assert job.cpus == 2
    assert job.memory_bytes == 311296
    assert job.memory_limit_bytes == 2147483648
    assert job.memory_peak_bytes == 552960


def test_slurm_cgroups_v2(slurm):
    job = jobs.JobCgroups("", slurm, slurm / "proc").read()[4]
    assert job.cpu_seconds == pytest.approx(0.126686)
    assert job.cpu_user_seconds == pytest.approx(0.049043)
    assert job.memory_bytes == 2260992
    assert job.oom_kills == 0
