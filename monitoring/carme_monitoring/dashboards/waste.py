"""Waste: GPUs, processors and memory that were held and not used."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    bars,
    lines,
    stat,
    table,
)

JOB = DashboardLink("carme-job", "jobid", "jobid")
USER = DashboardLink("carme-user", "user", "user")

BOARD = Dashboard(
    "carme-waste",
    "Carme: waste",
    "For administrators: who holds what they do not use? Start at the top of the tables and write"
    " to people; `carme job` tells them what to ask for instead.",
    (
        PanelRow(
            "Now",
            (
                stat(
                    "GPUs held idle",
                    "cluster:carme_gpus_idle:avg5m",
                    "Held by jobs, doing nothing, over five minutes. The tables below say whose.",
                    warn=1,
                    alarm=8,
                ),
                stat(
                    "GPU time wasted, last hour",
                    "cluster:carme_gpu_idle_ratio:avg1h",
                    "The part of the held GPU time in which nothing ran.",
                    "percentunit",
                    most=1,
                    warn=0.2,
                    alarm=0.4,
                    needs="jobs",
                ),
                stat(
                    "Processor time wasted, last hour",
                    "cluster:carme_cpu_idle_ratio:avg1h",
                    "The part of the processors' time asked for that was not used.",
                    "percentunit",
                    most=1,
                    warn=0.5,
                    alarm=0.8,
                    needs="jobs",
                ),
                stat(
                    "Energy wasted, last hour",
                    "cluster:carme_gpu_idle_joules:increase1h",
                    "GPU energy while held and idle.",
                    "joule",
                ),
                stat(
                    "Memory untouched",
                    "sum(job:carme_memory_untouched_bytes:last)",
                    "Asked for by the jobs of now and never used; others could have it.",
                    "bytes",
                    needs="jobs",
                ),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                table(
                    "Idle GPUs, by job",
                    "The jobs that wasted the most GPU time so far; click for a job's page. A"
                    " notebook that somebody forgot: session.gpu_idle_hours ends such sessions.",
                    ("topk(20, sum by (jobid, user, partition) (job:carme_gpu_idle_seconds:last))",
                     "GPU-s idle"),
                    link=JOB,
                    width=12,
                    needs="jobs",
                ),
                table(
                    "Untouched memory, by job",
                    "The jobs that asked for the most memory in vain.",
                    ("topk(20, sum by (jobid, user, partition)"
                     " (job:carme_memory_untouched_bytes:last))", "bytes untouched"),
                    link=JOB,
                    width=12,
                    needs="jobs",
                ),
            ),
        ),
        PanelRow(
            "Who",
            (
                bars(
                    "GPUs idle, by user",
                    "Mean over the last hour; click for the user's page.",
                    "topk(15, user:carme_gpus_idle:avg1h)",
                    "{{user}}",
                    link=USER,
                    needs="jobs",
                ),
                bars(
                    "GPU time wasted, by account",
                    "The part of what the account held, in the last hour.",
                    "topk(15, account:carme_gpu_idle_ratio:avg1h)",
                    "{{account}}",
                    "percentunit",
                    most=1,
                    needs="jobs",
                ),
                bars(
                    "Processors idle, by user",
                    "Asked for and not used, mean over the last hour.",
                    "topk(15, user:carme_cpus_idle:avg1h)",
                    "{{user}}",
                    link=USER,
                    needs="jobs",
                ),
                lines(
                    "GPU time wasted, by partition",
                    "A partition that wastes more than others: a default that asks for too much?",
                    ("partition:carme_gpu_idle_ratio:avg1h", "{{partition}}"),
                    unit="percentunit",
                    most=1,
                    width=12,
                    needs="jobs",
                ),
                lines(
                    "Utilisation, by partition",
                    "Of the GPUs held there: compare before buying more of a type.",
                    ("partition:carme_gpu_utilisation_ratio:avg5m", "{{partition}}"),
                    unit="percentunit",
                    most=1,
                    width=12,
                    needs="jobs",
                ),
            ),
        ),
    ),
)  # fmt: skip
