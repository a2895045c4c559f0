# The container starts with a clean environment; it gets only these variables.
for name in ${!SLURM_@} ${!PMI@} SLURMD_NODENAME CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; do
  [ -n "${!name+set}" ] && export "{{ env_prefix }}_$name=${!name}"
done

image={{ container.image | quote }}
{% if cached %}
# The node's own copy starts faster. It is used if only root could write it and its size is right.
cached={{ cached | quote }}
if [ "$(stat -c '%u %A %s' "$cached" 2>/dev/null)" = {{ ("0 -rw-r--r-- " ~ container.size_bytes) | quote }} ] &&
  [ "$(stat -c '%u %A' "$(dirname "$cached")" 2>/dev/null)" = '0 drwxr-xr-x' ]; then
  image=$cached
fi
{% endif %}

inside() {
  exec {{ apptainer | quote }} --quiet exec --cleanenv --pwd "$PWD" \
{% if gpu_flag %}
    {{ gpu_flag }} \
{% endif %}
{% for bind in binds %}
    --bind {{ bind | quote }} \
{% endfor %}
    --bind {{ (container.folder ~ "/" ~ kernel_config ~ ":/etc/ipython/" ~ kernel_config ~ ":ro") | quote }} \
{% if request.nodes > 1 %}
    ${CARME_RELAY:+--bind "$CARME_RELAY"} --bind {{ (container.folder ~ "/srun:/usr/local/bin/srun:ro") | quote }} \
{% endif %}
    "$image" "$@"
}
