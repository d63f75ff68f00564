#!/bin/sh
# Install what the engine tests need on Debian and Ubuntu: Slurm's daemons, munge and ejabberd. If they cannot be
# installed, the tests are skipped with the reason, so this script succeeds.
set -u
PATH="$PATH:/usr/sbin:/usr/local/sbin"
packages=""
for program in slurmctld slurmd sbatch munged; do
    command -v "$program" >/dev/null || packages="slurmctld slurmd slurm-client munge"
done
command -v ejabberdctl >/dev/null || packages="$packages ejabberd"
[ -z "$packages" ] && exit 0
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi; }
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -qq "$@" >/dev/null 2>&1; }
if command -v apt-get >/dev/null; then
    apt update
    # shellcheck disable=SC2086  # a list of packages
    apt install -y --no-install-recommends $packages && exit 0
fi
echo "the engine tests need more packages: as root, apt-get install $packages" >&2
