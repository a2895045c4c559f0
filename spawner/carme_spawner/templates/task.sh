#!/bin/bash
# One task of `srun` on a node of the session: the command that follows, in the session's container.
umask 077
unset CARME_RELAY  # it is on the first node only
{% include "enter.sh" %}
inside "$@"
