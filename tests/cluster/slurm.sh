#!/usr/bin/env bash
# A real Slurm on this machine for the tests: one controller, two nodes (two slurmd), its own munge.
#   slurm.sh install            install Debian's packages (root); says so if it cannot, and never fails
#   slurm.sh postgresql         the same for PostgreSQL
#   slurm.sh start FOLDER       start the daemons; slurm.conf, logs and pids are in the folder
#   slurm.sh restart FOLDER S   restart the controller alone, after S seconds
# The daemons stay: tests/cluster/daemons.py runs this script and ends them.
set -euo pipefail
action=$1 folder=${2:-}
nodes="node1 node2"

skip() { # what, why
    echo "SKIPPED: $1: $2"
    exit 0
}

install() { # what they are for, packages
    local what=$1 log policy=/usr/sbin/policy-rc.d
    local options=(-qq -o DPkg::Lock::Timeout=60 -o Acquire::http::Timeout=20)
    shift
    command -v apt-get >/dev/null || skip "$what" "there is no apt-get"
    [ "$(id -u)" = 0 ] || skip "$what" "apt-get needs root"
    if [ ! -e $policy ]; then # Debian asks it whether to start the services of the packages
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap "rm -f $policy" EXIT
    fi
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    {
        timeout 120 apt-get "${options[@]}" update &&
            timeout 300 apt-get "${options[@]}" install -y --no-install-recommends "$@"
    } >"$log" 2>&1 </dev/null || skip "$what" "apt-get failed: $(tail -n 1 "$log")"
    rm -f "$log"
}

free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))
PYTHON
}

start_munge() {
    dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 2>/dev/null
    chmod 400 "$folder/munge.key"
    munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
        --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" \
        --seed-file="$folder/munge.seed"
}

write_config() {
    local host control first second
    host=$(hostname -s)
    read -r control first second <<<"$(free_ports 3)"
    cat >"$folder/slurm.conf" <<CONF
ClusterName=saccade
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=10
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$first CPUs=4
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second CPUs=4
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
CONF
}

wait_for_nodes() {
    local left
    for left in $(seq 120); do
        [ "$(sinfo -h -N -p test -o %T 2>/dev/null | grep -c -E 'idle|mixed|allocated|drain')" = 2 ] && return
        sleep 0.5
    done
    echo "the nodes did not come up"
    tail -n 5 "$folder"/slurmctld.log
    return 1
}

end() { # end the process of a pid file and wait until it is gone, or left for its parent to reap
    local pid
    pid=$(cat "$1")
    kill "$pid"
    while grep -q '^State:[^Z]*$' "/proc/$pid/status" 2>/dev/null; do sleep 0.1; done
}

case $action in
install)
    type slurmctld slurmd srun munged >/dev/null 2>&1 ||
        install "tests of Slurm" slurm-wlm munge
    ;;
postgresql)
    compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null ||
        install "tests of PostgreSQL" postgresql
    ;;
start)
    mkdir -p "$folder"/state "$folder"/spool-node1 "$folder"/spool-node2
    start_munge
    write_config
    export SLURM_CONF=$folder/slurm.conf
    slurmctld
    for node in $nodes; do slurmd -N "$node"; done
    wait_for_nodes
    ;;
restart)
    export SLURM_CONF=$folder/slurm.conf
    end "$folder/slurmctld.pid"
    sleep "$3"
    slurmctld
    ;;
esac
