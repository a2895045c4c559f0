"""No answer has more series than allowed, and nothing disappears from the sums."""

from carme_monitoring.metrics import Samples
from carme_monitoring.pipeline import TABLE
from carme_monitoring.series_limit import SeriesLimit


def of_jobs(energy: dict[int, float]) -> Samples:
    samples = Samples()
    samples.add("carme_node_cpus", (), 8)
    for jobid, joules in energy.items():
        key = (str(jobid), "n1")
        samples.add("carme_job_info", (*key, f"user{jobid}", "acct", "gpu"), 1)
        samples.add("carme_job_energy_joules_total", (*key, "gpu"), joules)
        samples.add("carme_job_energy_joules_total", (*key, "cpu"), joules / 2)
        samples.add("carme_job_memory_used_bytes", key, 100)
        samples.add("carme_job_gpu_utilisation_ratio", (*key, "0", "GPU-1"), 0.5)
    return samples


def energies(samples: Samples, component: str = "gpu") -> dict[str, float]:
    family = samples.families["carme_job_energy_joules_total"]
    return {labels[0]: value for labels, value in family.items() if labels[2] == component}


def test_below_the_limit_nothing_changes() -> None:
    samples, cap = of_jobs({1: 10, 2: 20}), SeriesLimit(1000, TABLE)
    assert cap.apply(samples) is samples
    assert (cap.rolled_jobs, cap.rolled_total) == (0, 0)


def test_jobs_beyond_the_limit_share_other() -> None:
    cap = SeriesLimit(100, TABLE)
    out = cap.apply(of_jobs({job: 10.0 * job for job in range(1, 41)}))
    assert len(out) + 8 <= 100
    found = energies(out)
    assert sum(found.values()) == sum(10.0 * job for job in range(1, 41))
    assert cap.rolled_jobs == 40 - (len(found) - 1)
    assert out.value("carme_job_info", "other", "n1", "other", "other", "gpu") == 1
    assert out.value("carme_job_memory_used_bytes", "other", "n1") == 100 * cap.rolled_jobs
    assert not any(
        labels[0] == "other" for labels in out.families["carme_job_gpu_utilisation_ratio"]
    )


def test_places_are_kept_and_other_only_grows() -> None:
    cap = SeriesLimit(100, TABLE)
    jobs = dict.fromkeys(range(1, 41), 10.0)
    first = energies(cap.apply(of_jobs(jobs)))
    kept = set(first) - {"other"}
    last = first["other"]
    for step in range(1, 10):
        rolled = [job for job in jobs if str(job) not in kept]
        del jobs[rolled[0]]  # a rolled-up job ends
        jobs = {job: joules + step for job, joules in jobs.items()}
        jobs[100 + step] = 1.0
        now = energies(cap.apply(of_jobs(jobs)))
        assert set(now) >= kept
        assert now["other"] >= last
        last = now["other"]


def test_users_in_controller_mode() -> None:
    samples = Samples()
    for user in range(200):
        for state in ("running", "pending"):
            samples.add("carme_slurm_jobs", ("gpu", "acct", f"u{user}", state), 2)
    out = SeriesLimit(150, TABLE).apply(samples)
    assert len(out) + 8 <= 150
    assert sum(out.families["carme_slurm_jobs"].values()) == 800
    assert out.value("carme_slurm_jobs", "gpu", "other", "other", "running") is not None
