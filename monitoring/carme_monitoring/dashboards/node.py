"""One node: GPUs, processors, memory, network, power, and the jobs on it."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    Variable,
    lines,
    stat,
    table,
)

_N = 'node="$node"'
_RATE = "$__rate_interval"
JOB = DashboardLink("carme-job", "jobid", "jobid")

BOARD = Dashboard(
    "carme-node",
    "Carme: node",
    "For administrators: what happens on this node, is its hardware well, whose jobs are there?",
    (
        PanelRow(
            "Now",
            (
                stat(
                    "Power",
                    f"node:carme_power_watts:avg5m{{{_N}}}",
                    "What is metered of this node: GPUs alone where it has neither RAPL nor a"
                    " meter.",
                    "watt",
                ),
                stat(
                    "GPUs held",
                    f"node:carme_gpus_held:avg5m{{{_N}}}",
                    "Held by jobs, over five minutes.",
                ),
                stat(
                    "Processors busy",
                    f'1 - avg(rate(carme_node_cpu_seconds_total{{mode="idle",{_N}}}[{_RATE}]))'
                    f" / sum(carme_node_cpus{{{_N}}})",
                    "The part of the processors' time that was used, by whomever.",
                    "percentunit",
                    most=1,
                    warn=0.9,
                ),
                stat(
                    "Memory used",
                    f"1 - carme_node_memory_available_bytes{{{_N}}}"
                    f" / carme_node_memory_total_bytes{{{_N}}}",
                    "Near 100 % the kernel begins to kill: is a job without a memory limit there?",
                    "percentunit",
                    most=1,
                    warn=0.9,
                    alarm=0.97,
                ),
                stat(
                    "GPUs lost",
                    f"sum(carme_gpu_lost{{{_N}}})",
                    "GPUs that do not answer: drain the node, reset or reboot.",
                    alarm=1,
                    needs="gpus",
                ),
                stat(
                    "Up since",
                    f"time() - carme_node_boot_timestamp_seconds{{{_N}}}",
                    "Time since the last boot. A few minutes on a node that nobody rebooted: look"
                    " at its log.",
                    "s",
                ),
            ),
        ),
        PanelRow(
            "GPUs",
            (
                lines(
                    "Utilisation",
                    "Time with a kernel running. A GPU at zero that a job holds is wasted.",
                    (f"carme_gpu_utilisation_ratio{{{_N}}}", "GPU {{gpu}}"),
                    unit="percentunit",
                    most=1,
                    needs="gpus",
                ),
                lines(
                    "Power and limit",
                    "Power of each card. At its limit a card slows down.",
                    (f"carme_gpu_power_watts{{{_N}}}", "GPU {{gpu}}"),
                    (f"max(carme_gpu_power_limit_watts{{{_N}}})", "limit"),
                    unit="watt",
                    needs="gpus",
                ),
                lines(
                    "Temperature",
                    "Above 85 °C most cards slow down: check fans, filters, and the aisle.",
                    (f"carme_gpu_temperature_celsius{{{_N}}}", "GPU {{gpu}}"),
                    unit="celsius",
                    warn=80,
                    alarm=88,
                    needs="gpus",
                ),
                lines(
                    "GPU memory",
                    "Used memory of each card, as a part of what it has.",
                    (f"carme_gpu_memory_used_bytes{{{_N}}}"
                     f" / carme_gpu_memory_total_bytes{{{_N}}}", "GPU {{gpu}}"),
                    unit="percentunit",
                    most=1,
                    needs="gpus",
                ),
                lines(
                    "Slowed down by",
                    "Cards that are slowed, by reason. Thermal: cooling. Power: limit or supply.",
                    (f"sum by (reason) (carme_gpu_throttle_active{{{_N}}})", "{{reason}}"),
                    needs="gpus",
                ),
                lines(
                    "Clocks",
                    "Clock of the multiprocessors. Low under load goes with the panel before.",
                    (f'carme_gpu_clock_hertz{{clock="sm",{_N}}}', "GPU {{gpu}}"),
                    unit="hertz",
                    needs="gpus",
                ),
                lines(
                    "PCIe",
                    "Traffic on the bus, to and from each card.",
                    (f"carme_gpu_pcie_bytes_per_second{{{_N}}}", "GPU {{gpu}} {{direction}}"),
                    unit="Bps",
                    needs="gpus",
                ),
                lines(
                    "NVLink",
                    "Traffic between cards, where they have links.",
                    (f"sum by (direction) (rate(carme_gpu_nvlink_bytes_total{{{_N}}}[{_RATE}]))",
                     "{{direction}}"),
                    unit="Bps",
                    needs="gpus",
                ),
                lines(
                    "Memory errors",
                    "Over the cards' lifetime. Uncorrected ones that grow: replace the card.",
                    (f"sum by (gpu, kind) (carme_gpu_ecc_errors_total{{{_N}}})",
                     "GPU {{gpu}} {{kind}}"),
                    needs="gpus",
                ),
                lines(
                    "Driver errors (XID)",
                    "By number since the exporter started. 48, 63, 64, 74, 79, 94 and 95 mean"
                    " hardware; 13 and 31 are mostly a user's program.",
                    (f"sum by (gpu, xid) (carme_gpu_xid_errors_total{{{_N}}})",
                     "GPU {{gpu}} XID {{xid}}"),
                    needs="xid",
                ),
                lines(
                    "MIG slices",
                    "Memory of each slice in use. Power exists for the whole card only.",
                    (f"carme_gpu_mig_memory_used_bytes{{{_N}}}"
                     f" / carme_gpu_mig_memory_total_bytes{{{_N}}}", "GPU {{gpu}} slice {{mig}}"),
                    unit="percentunit",
                    most=1,
                    needs="mig",
                ),
            ),
        ),
        PanelRow(
            "Host",
            (
                lines(
                    "Processors by mode",
                    "Processors at work. Much iowait: storage is slow; much system: many small"
                    " files or packets.",
                    (f'sum by (mode) (rate(carme_node_cpu_seconds_total{{mode!="idle",{_N}}}'
                     f"[{_RATE}]))", "{{mode}}"),
                    stack=True,
                ),
                lines(
                    "Memory",
                    "What new work could have, and what there is.",
                    (f"carme_node_memory_available_bytes{{{_N}}}", "available"),
                    (f"carme_node_memory_total_bytes{{{_N}}}", "total"),
                    unit="bytes",
                ),
                lines(
                    "Network",
                    "Traffic of all interfaces.",
                    (f"sum by (device, direction) (rate(carme_network_bytes_total{{{_N}}}"
                     f"[{_RATE}]))", "{{device}} {{direction}}"),
                    unit="Bps",
                ),
                lines(
                    "InfiniBand",
                    "Traffic of each port; the line is the port's speed.",
                    (f"sum by (device, port, direction) (rate(carme_infiniband_bytes_total{{{_N}}}"
                     f"[{_RATE}]))", "{{device}}/{{port}} {{direction}}"),
                    (f"carme_infiniband_rate_bytes_per_second{{{_N}}}",
                     "{{device}}/{{port}} speed"),
                    unit="Bps",
                    needs="infiniband",
                ),
                lines(
                    "Energy by who used it",
                    "Jobs, nobody, and the system itself.",
                    (f"sum by (consumer) (rate(carme_node_energy_joules_total{{{_N}}}[{_RATE}]))",
                     "{{consumer}}"),
                    unit="watt",
                    stack=True,
                    needs="gpus",
                ),
                lines(
                    "Processor energy (RAPL)",
                    "Packages and memory, by zone.",
                    (f"sum by (zone, name) (rate(carme_rapl_energy_joules_total{{{_N}}}[{_RATE}]))",
                     "{{name}} {{zone}}"),
                    unit="watt",
                    needs="rapl",
                ),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                table(
                    "Jobs here",
                    "Jobs of the last minutes on this node; click for a job's page.",
                    (f"job_node:carme_job_info:last{{{_N}}}", "here"),
                    link=JOB,
                    needs="jobs",
                ),
            ),
        ),
    ),
    (Variable("node", "Node", "carme_node_cpus", "node"),),
    hours=1,
)  # fmt: skip
