#!/bin/bash
# A Slurm of several nodes on the loopback of this machine, for tests. It needs root, and Debian's packages slurmctld,
# slurmd, slurm-client and munge.
#
#   slurm.sh start [NODES]            munged, slurmctld and a slurmd for each node, on free ports
#   slurm.sh stop                     end what `start` has started, and all that still runs on its nodes
#   slurm.sh node-kill N              end a node as a power cut does: its slurmd, its step daemons, its processes
#   slurm.sh node-start N [FOLDER]    start a node; it sees an empty folder in place of FOLDER
#   slurm.sh head-kill | head-start   end and start slurmctld
#   slurm.sh left                     print the processes of tasks
set -eu
PATH=$PATH:/usr/sbin:/usr/local/sbin
S=${SLURM_TEST:?the folder of this Slurm}
export SLURM_CONF=$S/slurm.conf

free_ports() {
    python3 -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in sockets))' "$1"
}

write_conf() {
    mkdir -p "$S/state" "$S/spool" "$S/log" "$S/munge"
    chmod 755 "$S"
    # A node cannot start a task while the file no-start exists.
    printf '#!/bin/sh\ntest ! -e %s/no-start\n' "$S" >"$S/prolog"
    chmod 755 "$S/prolog"
    # shellcheck disable=SC2046
    set -- "$1" $(free_ports $(($1 + 1)))
    nodes=$1 head=$2
    shift 2
    {
        cat <<C
ClusterName=probe
SlurmctldHost=localhost
SlurmctldAddr=127.0.0.1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$S/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=$head
SlurmctldPidFile=$S/slurmctld.pid
SlurmdPidFile=$S/slurmd.%n.pid
SlurmdSpoolDir=$S/spool/%n
StateSaveLocation=$S/state
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=2
SlurmdParameters=config_overrides
Prolog=$S/prolog
SlurmdTimeout=${SLURMD_TIMEOUT:-10}
SlurmctldTimeout=10
KillWait=5
InactiveLimit=0
MinJobAge=300
MessageTimeout=10
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
C
        for i in $(seq 1 "$nodes"); do
            echo "NodeName=n$i NodeHostname=localhost NodeAddr=127.0.0.1 Port=$1 CPUs=1 RealMemory=4000 State=UNKNOWN"
            shift
        done
        echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"
        echo "PartitionName=physics Nodes=ALL MaxTime=INFINITE State=UP AllowAccounts=physics"
    } >"$S/slurm.conf"
}

start_munge() {
    dd if=/dev/urandom of="$S/munge/key" bs=1024 count=1 status=none
    chmod 400 "$S/munge/key"
    chown munge:munge "$S/munge" "$S/munge/key"
    chmod 711 "$S/munge"
    runuser -u munge -- "$(command -v munged)" --force --key-file="$S/munge/key" --socket="$S/munge/socket" \
        --pid-file="$S/munge/pid" --log-file="$S/munge/log" --seed-file="$S/munge/seed"
}

start_node() { # with a second argument, the node sees an empty folder there
    if [ -n "${2:-}" ]; then
        unshare -m sh -c "mount -t tmpfs none '$2' && exec slurmd -N n$1 -f '$S/slurm.conf'"
    else
        slurmd -N "n$1" -f "$S/slurm.conf"
    fi
}

tasks_of() { # the processes of tasks on nodes whose names match $1, and the step daemons above them
    for environment in $(grep -lzxF "SLURM_CONF=$S/slurm.conf" /proc/[0-9]*/environ 2>/dev/null || true); do
        grep -qzx "SLURMD_NODENAME=$1" "$environment" 2>/dev/null || continue
        process=${environment%/environ}
        process=${process#/proc/}
        echo "$process"
        above=$(awk '/^PPid/{print $2}' "/proc/$process/status" 2>/dev/null || true)
        case $(cat "/proc/${above:-0}/comm" 2>/dev/null || true) in slurmstepd) echo "$above" ;; esac
    done | sort -u
}

end() { # the processes of these files of ids
    for file in "$@"; do
        if [ -f "$file" ]; then kill -9 "$(cat "$file")" 2>/dev/null || true; fi
    done
}

case $1 in
start)
    write_conf "${2:-4}"
    start_munge
    slurmctld -f "$S/slurm.conf"
    for i in $(seq 1 "${2:-4}"); do start_node "$i"; done
    for _ in $(seq 300); do
        if [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "${2:-4}" ]; then exit 0; fi
        sleep 0.1
    done
    echo "the nodes are not idle after 30 s; see $S/log" >&2
    exit 1
    ;;
stop)
    end "$S"/slurmd.*.pid "$S/slurmctld.pid"
    # shellcheck disable=SC2046
    kill -9 $(tasks_of 'n[0-9]*') 2>/dev/null || true
    end "$S/munge/pid"
    ;;
node-kill)
    end "$S/slurmd.n$2.pid"
    # shellcheck disable=SC2046
    kill -9 $(tasks_of "n$2") 2>/dev/null || true
    ;;
node-start) start_node "$2" "${3:-}" ;;
head-kill) end "$S/slurmctld.pid" ;;
head-start) slurmctld -f "$S/slurm.conf" ;;
left) tasks_of 'n[0-9]*' ;;
*) sed -n '2,/^set/p' "$0" >&2; exit 2 ;;
esac
