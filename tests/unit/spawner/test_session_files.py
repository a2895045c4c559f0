import subprocess
from pathlib import Path

from carme.config import Config, ImageSettings, SessionSettings, SlurmSettings
from carme.requests.resource_request import ResourceRequest
from carme_spawner.session_files import SessionContainer, job_script

VALUES = {
    "session": "default",
    "submission": "4f4f",
    "partition": "gpu",
    "cpus": 2,
    "memory_gb": 4,
    "hours": 1.5,
    "gpus": 2,
    "gpu_type": "a100",
    "image": Path("/images/base.sif"),
    "size_bytes": 1000,
    "folder": Path("/home/ann/.carme/sessions/default"),
}
SITE = {
    "apptainer": Path("/usr/bin/apptainer"),
    "node_cache": None,
    "gpu_flag": "nv",
    "binds": ("/data:/data:ro",),
    "bin": None,
}


def script(values=VALUES, template="job.sh", **changes):
    """The script for values of the request, of the container and of the configuration.

    The configuration is not validated: it would refuse odd paths.
    """
    values = {**SITE, **values, **changes}
    fields = ResourceRequest.model_fields
    request = ResourceRequest(**{k: v for k, v in values.items() if k in fields})
    container = {k: v for k, v in values.items() if k not in fields and k not in SITE}
    config = Config(
        session=SessionSettings.model_construct(gpu_flag=values["gpu_flag"], binds=values["binds"]),
        images=ImageSettings(apptainer=values["apptainer"], node_cache=values["node_cache"]),
        slurm=SlurmSettings(bin=values["bin"]),
    )
    return job_script(config, request, SessionContainer(**container), template)


def test_the_whole_script():
    golden = Path(__file__).with_name("job.golden.sh")
    assert script() == golden.read_text()


def test_no_name_of_an_image_of_ones_own_adds_an_option():
    own = Path("/home/ann/x --nodes=50 --qos=urgent y.sif")
    text = script(image=own, size_bytes=0)
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert [line for line in lines if "--nodes" in line] == ["#SBATCH --nodes=1"]
    [comment] = [line for line in lines if "--comment" in line]
    assert comment == "#SBATCH --comment=carme-submission=4f4f"
    assert not any("--qos" in line for line in lines)


def test_a_short_session_is_not_told_to_end_before_it_started():
    assert "--signal=B:TERM@30" in script(hours=1 / 12)
    assert "--signal" not in script(hours=1 / 60)


def test_it_is_valid_shell_whatever_the_paths(tmp_path):
    odd = {**VALUES, "image": Path("/a b/$(touch pwned)'\"`id`.sif"), "binds": ("/x y/'$HOME;id",)}
    text = script(odd)
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    # Run it with a stand-in for apptainer that prints its arguments: they arrive unchanged.
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    done = subprocess.run(
        ["bash"], input=script(odd, apptainer=echo),
        text=True, capture_output=True, cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert str(odd["image"]) in done.stdout.splitlines()
    assert odd["binds"][0] in done.stdout.splitlines()
    assert not (tmp_path / "pwned").exists()


def test_several_nodes(tmp_path):
    """What a job on two nodes sets up, with stand-ins for Slurm's and Apptainer's programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "scontrol": 'case "$*" in *hostnames*) printf "n1\\nn2\\n";; '
        '*) echo "NodeName=n1 NodeAddr=10.0.0.5 Port=1";; esac',
        "apptainer": 'env | grep ^APPTAINERENV_; printf "%s\\n" "$@"',
        "python3": ":",
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "srun").touch()
    many = {**VALUES, "nodes": 2, "folder": tmp_path, "apptainer": programs / "apptainer"}
    text = script(many, bin=programs)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in text
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    environment |= {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n[1-2]"}
    done = subprocess.run(["bash"], input=text, text=True, capture_output=True, env=environment)
    lines = done.stdout.splitlines()
    assert (tmp_path / "hostfile").read_text() == "n1 slots=2\nn2 slots=2\n"
    for line in ("CARME_NODES=2", "CARME_GPUS_PER_NODE=2", "MASTER_ADDR=10.0.0.5"):
        assert f"APPTAINERENV_{line}" in lines
    [port] = [line.partition("=")[2] for line in lines if "MASTER_PORT=" in line]
    assert 20000 <= int(port) < 30000
    assert f"{tmp_path}/srun:/usr/local/bin/srun:ro" in lines
    assert not list(tmp_path.glob("tmp.*")), "the relay's folder is gone"

    task = script(many, template="task.sh")
    argv = ["bash", "-s", "--", "python3", "a b", "$(id)"]
    ran = subprocess.run(argv, input=task, text=True, capture_output=True, env=environment)
    assert ran.stdout.splitlines()[-3:] == ["python3", "a b", "$(id)"]


def test_without_gpus_none_are_asked_for():
    text = script(gpus=0, gpu_flag="")
    assert "--gres" not in text
    assert "--nv" not in text


def test_any_type_of_gpu():
    assert "#SBATCH --gres=gpu:2\n" in script(gpu_type="")


def test_a_copy_on_the_node_counts_only_if_root_wrote_all_of_it(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    copy = cache / "base.sif"
    copy.write_bytes(b"12345")
    copy.chmod(0o644)
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)

    def used(size):
        values = {**VALUES, "apptainer": echo, "node_cache": cache, "size_bytes": size}
        done = subprocess.run(
            ["bash"],
            input=script(values),
            text=True,
            capture_output=True,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
        return next(line for line in done.stdout.splitlines() if line.endswith(".sif"))

    mine = str(copy) if copy.stat().st_uid == 0 else "/images/base.sif"
    assert used(5) == mine
    assert used(6) == "/images/base.sif"
    cache.chmod(0o777)
    assert used(5) == "/images/base.sif"
