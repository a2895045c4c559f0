"""One user: what they hold, use and waste."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    Variable,
    lines,
    stat,
    table,
)

_U = 'user="$user"'
JOB = DashboardLink("carme-job", "jobid", "jobid")

BOARD = Dashboard(
    "carme-user",
    "Carme: user",
    "For administrators who talk with a user: how much do they use, and how well?",
    (
        PanelRow(
            "Now",
            (
                stat(
                    "GPUs held",
                    f"sum(user:carme_gpus_held:avg5m{{{_U}}})",
                    "Held by their jobs, over five minutes.",
                    needs="jobs",
                ),
                stat(
                    "GPUs idle",
                    f"sum(user:carme_gpus_idle:avg5m{{{_U}}})",
                    "Held and doing nothing. Write to them when it stays.",
                    warn=0.5,
                    alarm=2,
                    needs="jobs",
                ),
                stat(
                    "Power",
                    f"sum(user:carme_power_watts:avg5m{{{_U}}})",
                    "Drawn by all of their jobs, over five minutes.",
                    "watt",
                    needs="jobs",
                ),
                stat(
                    "Energy, last hour",
                    f"sum(user:carme_energy_joules:increase1h{{{_U}}})",
                    "Of all their jobs, ended ones too.",
                    "joule",
                    needs="jobs",
                ),
                stat(
                    "Emissions, last hour",
                    f"sum(user:carme_emissions_grams:increase1h{{{_U}}})",
                    "CO2 equivalent of all their jobs' energy, by the factor in force.",
                    "massg",
                    needs="emissions",
                ),
                stat(
                    "Cost, last hour",
                    f"sum by (currency) (user:carme_cost:increase1h{{{_U}}})",
                    "Cost of their jobs' electricity; `carme jobs --csv` has every job.",
                    needs="price",
                ),
            ),
        ),
        PanelRow(
            "Over time",
            (
                lines(
                    "GPUs",
                    "Held, working and idle. A gap that stays is worth a talk about job sizes.",
                    (f"user:carme_gpus_held:avg5m{{{_U}}}", "held"),
                    (f"user:carme_gpus_utilised:avg5m{{{_U}}}", "working"),
                    (f"user:carme_gpus_idle:avg5m{{{_U}}}", "idle"),
                    needs="jobs",
                ),
                lines(
                    "How well",
                    "Utilisation of their GPUs, and the part of the processors' time they left.",
                    (f"user:carme_gpu_utilisation_ratio:avg5m{{{_U}}}", "GPU utilisation"),
                    (f"user:carme_cpu_idle_ratio:avg5m{{{_U}}}", "processors idle"),
                    unit="percentunit",
                    most=1,
                    needs="jobs",
                ),
                lines(
                    "Jobs in the queue",
                    "Their jobs by state. Many that wait while few run: a limit of theirs?",
                    (f"sum by (state) (carme_slurm_jobs{{{_U}}})", "{{state}}"),
                    needs="jobs",
                ),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                table(
                    "Jobs of the last minutes",
                    "Running ones and those just ended; click for a job's page. Sort by idle ratio"
                    " to find what to talk about.",
                    (f"sum by (jobid, partition) (job:carme_energy_joules:last{{{_U}}})",
                     "energy (J)"),
                    (f"sum by (jobid, partition) (job:carme_gpu_held_seconds:last{{{_U}}})",
                     "GPU-s held"),
                    (f"sum by (jobid, partition) (job:carme_gpu_idle_ratio:last{{{_U}}})",
                     "GPU idle ratio"),
                    (f"sum by (jobid, partition) (job:carme_memory_untouched_bytes:last{{{_U}}})",
                     "memory untouched (B)"),
                    link=JOB,
                    needs="jobs",
                ),
            ),
        ),
    ),
    (Variable("user", "User", "carme_owner_cpu_asked_seconds_total", "user"),),
)  # fmt: skip
