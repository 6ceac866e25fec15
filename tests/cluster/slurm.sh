#!/usr/bin/env bash
# A real Slurm on this machine for the tests: one controller, two nodes (two slurmd).
#   slurm.sh install               install Debian's packages (root)
#   slurm.sh start FOLDER          start it; prints the path of its slurm.conf
#   slurm.sh restart FOLDER        restart the controller alone
#   slurm.sh stop FOLDER           cancel all jobs and end the daemons
set -euo pipefail
action=$1 folder=${2:-}
nodes="node1 node2"

install() {
    command -v slurmctld >/dev/null && command -v munged >/dev/null && return
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y slurm-wlm munge postgresql
}

start_munge() {
    munge -n >/dev/null 2>&1 && return
    mkdir -p /run/munge
    [ -s /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null
    chown -R munge:munge /etc/munge /run/munge
    chmod 400 /etc/munge/munge.key
    runuser -u munge -- munged
}

free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))
PYTHON
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
AuthInfo=cred_expire=10
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
    for left in $(seq 60); do
        [ "$(sinfo -h -N -p test -o %T 2>/dev/null | grep -c -E 'idle|mixed|allocated|drain')" = 2 ] && return
        sleep 0.5
    done
    echo "Slurm did not start; its logs are in $folder" >&2
    return 1
}

end() { # end the process of a pid file and wait for it
    local pid
    [ -s "$1" ] || return 0
    pid=$(cat "$1")
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}

case $action in
install) install ;;
start)
    mkdir -p "$folder"/state "$folder"/spool-node1 "$folder"/spool-node2
    start_munge
    write_config
    export SLURM_CONF=$folder/slurm.conf
    slurmctld
    for node in $nodes; do slurmd -N "$node"; done
    wait_for_nodes
    echo "$SLURM_CONF"
    ;;
restart)
    export SLURM_CONF=$folder/slurm.conf
    end "$folder/slurmctld.pid"
    sleep "${3:-1}"
    slurmctld
    ;;
stop)
    export SLURM_CONF=$folder/slurm.conf
    scancel --me 2>/dev/null || true
    for _ in $(seq 60); do
        [ -z "$(squeue -h 2>/dev/null)" ] && break
        sleep 0.5
    done
    for node in $nodes; do end "$folder/slurmd-$node.pid"; done
    end "$folder/slurmctld.pid"
    ;;
esac
