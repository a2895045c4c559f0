#!/bin/bash
#SBATCH --job-name={{ job_name }}
#SBATCH --partition={{ partition }}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={{ cpus }}
#SBATCH --mem={{ memory_mb }}M
#SBATCH --time={{ time }}
{% if gpus %}
#SBATCH --gres=gpu:{{ gpu_type ~ ':' if gpu_type else '' }}{{ gpus }}
{% endif %}
{% if account %}
#SBATCH --account={{ account }}
{% endif %}
{% if qos %}
#SBATCH --qos={{ qos }}
{% endif %}
{% if reservation %}
#SBATCH --reservation={{ reservation }}
{% endif %}
#SBATCH --comment=carme-image={{ image.name }}
#SBATCH --signal=B:TERM@{{ notice_seconds }}
#SBATCH --no-requeue

umask 077
cd "$HOME" || exit 1

# The container starts with a clean environment: these alone come along.
for name in ${!SLURM_@} SLURMD_NODENAME CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; do
  [ -n "${!name+set}" ] && export "{{ env_prefix }}_$name=${!name}"
done

image={{ image | quote }}
{% if cached %}
# The node's own copy starts faster. It counts if root alone could have written it and it is whole.
cached={{ cached | quote }}
if [ "$(stat -c '%u %A %s' "$cached" 2>/dev/null)" = {{ ("0 -rw-r--r-- " ~ size_bytes) | quote }} ] &&
  [ "$(stat -c '%u %A' "$(dirname "$cached")" 2>/dev/null)" = '0 drwxr-xr-x' ]; then
  image=$cached
fi
{% endif %}

{{ apptainer | quote }} --quiet exec --cleanenv --pwd "$HOME" \
{% if gpu_flag %}
  {{ gpu_flag }} \
{% endif %}
{% for bind in binds %}
  --bind {{ bind | quote }} \
{% endfor %}
  "$image" \
  python3 {{ launcher | quote }} &

# bash hands a signal to a trap only while it waits, so the container runs in the background.
server=$!
trap 'kill -TERM "$server" 2>/dev/null' TERM INT
wait "$server"
code=$?
if kill -0 "$server" 2>/dev/null; then wait "$server"; code=$?; fi
exit "$code"
