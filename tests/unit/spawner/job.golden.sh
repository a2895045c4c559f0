#!/bin/bash
#SBATCH --job-name=carme-default
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=4096M
#SBATCH --time=0-01:30:00
#SBATCH --gres=gpu:a100:2
#SBATCH --comment=carme-image=base.sif,carme-submission=4f4f
#SBATCH --signal=B:TERM@30
#SBATCH --no-requeue

umask 077
cd "$HOME" || exit 1

# The container starts with a clean environment; it gets only these variables.
for name in ${!SLURM_@} ${!PMI@} SLURMD_NODENAME CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; do
  [ -n "${!name+set}" ] && export "APPTAINERENV_$name=${!name}"
done

image=/images/base.sif

inside() {
  exec /usr/bin/apptainer --quiet exec --cleanenv --pwd "$PWD" \
    --nv \
    --bind /data:/data:ro \
    --bind /home/ann/.carme/sessions/default/ipython_kernel_config.py:/etc/ipython/ipython_kernel_config.py:ro \
    "$image" "$@"
}
# bash hands a signal to a trap only while it waits, so the container runs in the background.
inside python3 /home/ann/.carme/sessions/default/launcher.py &
server=$!
trap 'kill -TERM "$server" 2>/dev/null' TERM INT
wait "$server"
code=$?
if kill -0 "$server" 2>/dev/null; then wait "$server"; code=$?; fi
exit "$code"
