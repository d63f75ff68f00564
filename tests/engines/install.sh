#!/bin/sh
# What the engine tests need: Slurm's daemons and munge, on Debian and Ubuntu. Where they cannot be had, the tests are
# skipped with the reason, so this script succeeds.
set -u
PATH="$PATH:/usr/sbin:/usr/local/sbin"
command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && command -v munged >/dev/null && exit 0
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi; }
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -qq "$@" >/dev/null 2>&1; }
if command -v apt-get >/dev/null; then
    apt update
    apt install -y --no-install-recommends slurmctld slurmd slurm-client munge && exit 0
fi
echo "the engine tests need Slurm: as root, apt-get install slurmctld slurmd slurm-client munge" >&2
