#!/usr/bin/env bash
# Stops what cluster-up.sh started: the processes recorded in run/pids (checked against their start time, so a reused
# pid is never hit), with everything in their process namespaces, and the network namespaces it made.
set -uo pipefail

LAB=${SLURMLAB_DIR:-/tmp/pretok-slurm}
RUN=$LAB/run
[ -d "$RUN" ] || exit 0
if [ "${1:-}" != --locked ]; then
    exec 9>"$LAB/.lock"
    flock -w 120 9 || { echo "cluster-down: another script holds $LAB/.lock" >&2; exit 1; }
fi

while read -r pid start _; do
    now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
    if [ -n "$now" ] && [ "$now" = "$start" ]; then kill -KILL "$pid"; fi # --kill-child takes the namespace along
done < <(cat "$RUN/pids" 2>/dev/null)

while read -r ns; do
    for _ in $(seq 100); do
        [ -z "$(ip netns pids "$ns" 2>/dev/null)" ] && break
        sleep 0.1
    done
    ip netns del "$ns" 2>/dev/null
    rm -rf "/etc/netns/$ns"
done < <(cat "$RUN/netns" 2>/dev/null)
rmdir /etc/netns 2>/dev/null
rm -rf "$RUN" "$LAB/bin"
echo "cluster-down: stopped"
