"""One job: the live side of `carme job`."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    Variable,
    lines,
    stat,
    table,
)

_J = 'jobid="$jobid"'
_RATE = "$__rate_interval"
NODE = DashboardLink("carme-node", "node", "node")

BOARD = Dashboard(
    "carme-job",
    "Carme: job",
    "For administrators who help somebody: what does this job do with what it holds? (Users have"
    " `carme job`.)",
    (
        PanelRow(
            "So far",
            (
                stat(
                    "Energy",
                    f"sum(job:carme_energy_joules:last{{{_J}}})",
                    "Everything charged to the job, all nodes.",
                    "joule",
                    needs="jobs",
                ),
                stat(
                    "GPU utilisation",
                    f"avg(job:carme_gpu_utilisation_ratio:last{{{_J}}})",
                    "Mean over its time. Below half: larger batches, more loader processes, or"
                    " fewer GPUs.",
                    "percentunit",
                    most=1,
                    warn=0.5,
                    alarm=0.2,
                    needs="jobs",
                ),
                stat(
                    "GPU time wasted",
                    f"avg(job:carme_gpu_idle_ratio:last{{{_J}}})",
                    "The part of its GPU time in which a GPU did nothing at all.",
                    "percentunit",
                    most=1,
                    warn=0.2,
                    alarm=0.5,
                    needs="jobs",
                ),
                stat(
                    "Emissions",
                    f"sum(job:carme_emissions_grams:last{{{_J}}})",
                    "Grams of CO2 equivalent, by the factor that was in force.",
                    "massg",
                    needs="emissions",
                ),
                stat(
                    "Cost",
                    f"sum by (currency) (job:carme_cost:last{{{_J}}})",
                    "Cost of its electricity, by the price that was in force.",
                    needs="price",
                ),
                stat(
                    "Killed for want of memory",
                    f"sum(carme_job_oom_kills_total{{{_J}}})",
                    "Processes of the job that were killed: it needs more memory.",
                    alarm=1,
                    needs="jobs",
                ),
            ),
        ),
        PanelRow(
            "GPUs",
            (
                lines(
                    "Utilisation",
                    "Each GPU that it holds. Some at zero: the program uses fewer than it asked"
                    " for. Waves: it waits for data.",
                    (f"carme_job_gpu_utilisation_ratio{{{_J}}}", "{{node}} GPU {{gpu}}"),
                    unit="percentunit",
                    most=1,
                    needs="jobs",
                ),
                lines(
                    "GPU memory",
                    "What its processes use. Much room: a larger batch may fit.",
                    (f"carme_job_gpu_memory_used_bytes{{{_J}}}", "{{node}} GPU {{gpu}}"),
                    unit="bytes",
                    needs="jobs",
                ),
                lines(
                    "Power",
                    "Mean power of the job, over five minutes.",
                    (f"job:carme_power_watts:avg5m{{{_J}}}", "power"),
                    unit="watt",
                    needs="jobs",
                ),
                lines(
                    "Energy by component",
                    "Energy so far. GPUs alone where the node has no other meter.",
                    (f"job_component:carme_energy_joules:last{{{_J}}}", "{{component}}"),
                    unit="joule",
                    stack=True,
                    needs="jobs",
                ),
                stat(
                    "Uncertainty of the energy",
                    f"max(carme_job_energy_uncertainty_ratio{{{_J}}})",
                    "Relative standard uncertainty. Above 10 %: part of it was divided by time;"
                    " docs/explanation/energy says when.",
                    "percentunit",
                    warn=0.1,
                    alarm=0.3,
                    needs="jobs",
                ),
                lines(
                    "Bursts",
                    "For jobs with --comment=carme-profile: mean length of bursts and of the"
                    " pauses between them.",
                    (f"carme_job_burst_duration_seconds{{{_J}}}", "{{signal}} burst"),
                    (f"carme_job_burst_pause_seconds{{{_J}}}", "{{signal}} pause"),
                    unit="s",
                    needs="profile",
                ),
            ),
        ),
        PanelRow(
            "Processors, memory, data",
            (
                lines(
                    "Processors",
                    "Processors at work, and those it asked for.",
                    (f"sum by (node) (rate(carme_job_cpu_seconds_total{{{_J}}}[{_RATE}]))",
                     "{{node}} used"),
                    (f"sum by (node) (carme_job_cpus{{{_J}}})", "{{node}} asked"),
                    needs="jobs",
                ),
                lines(
                    "Memory",
                    "Used now, at the most, and the limit. Far below the limit: ask for less.",
                    (f"carme_job_memory_used_bytes{{{_J}}}", "{{node}} used"),
                    (f"carme_job_memory_peak_bytes{{{_J}}}", "{{node}} peak"),
                    (f"carme_job_memory_limit_bytes{{{_J}}}", "{{node}} limit"),
                    unit="bytes",
                    needs="jobs",
                ),
                lines(
                    "Network",
                    "Its traffic; an estimate where other jobs share the node.",
                    (f"sum by (direction) (rate(carme_job_network_bytes_total{{{_J}}}[{_RATE}]))",
                     "{{direction}}"),
                    unit="Bps",
                    needs="jobs",
                ),
                lines(
                    "Waiting for resources",
                    "Time in which processes waited (pressure). High io: slow storage; high"
                    " memory: too little of it.",
                    (f"sum by (resource, kind) (rate(carme_job_pressure_seconds_total{{{_J}}}"
                     f"[{_RATE}]))", "{{resource}} {{kind}}"),
                    unit="percentunit",
                    needs="cgroup-v2",
                ),
                table(
                    "Where it runs",
                    "Its nodes; click for a node's page.",
                    ("sum by (node, user, account, partition)"
                     f" (job_node:carme_job_info:last{{{_J}}})",
                     "here"),
                    link=NODE,
                    width=16,
                    height=7,
                    needs="jobs",
                ),
            ),
        ),
    ),
    (Variable("jobid", "Job", "carme_job_info", "jobid"),),
    hours=1,
)  # fmt: skip
