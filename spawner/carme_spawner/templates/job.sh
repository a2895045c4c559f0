#!/bin/bash
#SBATCH --job-name={{ name_prefix }}{{ container.session }}
{% for option in request.sbatch_options() %}
#SBATCH {{ option }}
{% endfor %}
{% set image = "carme-image=" ~ container.image.name ~ "," if container.size_bytes else "" %}
#SBATCH --comment={{ image }}carme-submission={{ container.submission }}
{% if notice_seconds %}
#SBATCH --signal=B:TERM@{{ notice_seconds }}
{% endif %}
#SBATCH --no-requeue

umask 077
cd "$HOME" || exit 1
{% if request.nodes > 1 %}

# Variables and the host file that programs on several nodes need.
export PATH={{ slurm_path | quote }}${PATH:-/usr/local/bin:/usr/bin:/bin}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${hosts%%$'\n'*}
address=$(scontrol --oneliner show node "$first" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
sed 's/$/ slots={{ request.gpus or 1 }}/' <<<"$hosts" >{{ (container.folder ~ "/hostfile") | quote }}
export {{ env_prefix }}_CARME_HOSTFILE={{ (container.folder ~ "/hostfile") | quote }}
export {{ env_prefix }}_CARME_NODES={{ request.nodes }}
export {{ env_prefix }}_CARME_GPUS_PER_NODE={{ request.gpus }}
export {{ env_prefix }}_MASTER_ADDR="${address:-$first}"
# At random, and not taken now: other users of this node could wait on a port that they can guess.
for _ in {1..100}; do
  port=$((20000 + (RANDOM << 15 | RANDOM) % 10000))
  grep -qs "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$port") " /proc/net/tcp /proc/net/tcp6 || break
done
export {{ env_prefix }}_MASTER_PORT=$port

# `srun` in the container asks this process, which runs the site's srun outside of it.
CARME_RELAY=$(mktemp -d) || exit 1
trap 'rm -rf "$CARME_RELAY"' EXIT
chmod 700 {{ (container.folder ~ "/srun") | quote }}
export CARME_RELAY {{ env_prefix }}_CARME_RELAY="$CARME_RELAY"
python3 {{ (container.folder ~ "/relay.py") | quote }} "$CARME_RELAY/socket" {{ (container.folder ~ "/task.sh") | quote }} {{ env_prefix }} &
{% endif %}

{% include "enter.sh" %}
# bash hands a signal to a trap only while it waits, so the container runs in the background.
inside python3 {{ (container.folder ~ "/launcher.py") | quote }} &
server=$!
trap 'kill -TERM "$server" 2>/dev/null' TERM INT
wait "$server"
code=$?
if kill -0 "$server" 2>/dev/null; then wait "$server"; code=$?; fi
exit "$code"
