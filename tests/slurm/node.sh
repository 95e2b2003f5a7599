#!/usr/bin/env bash
# A private Slurm of one node, as processes of whoever calls: node.sh start FOLDER prints the
# SLURM_CONF to export, node.sh stop FOLDER ends it. Nothing is written outside FOLDER. Its path is
# to be short, since a socket lies in it, and the folders above it are not to be open to others.
# Debian: apt-get install slurmctld slurmd slurm-client munge. Seen with Slurm 22.05, without
# systemd or cgroups.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
word=$1 here=$(mkdir -p "$2" && cd "$2" && pwd)
export SLURM_CONF=$here/slurm.conf

stop() {
  local name pid
  # Jobs that nobody controls any more would stay.
  if timeout 10 scancel --user="$(id -un)" 2>/dev/null; then
    for _ in $(seq 300); do
      [[ $(timeout 10 squeue --noheader 2>/dev/null) ]] || break
      sleep 0.1
    done
  fi
  for name in slurmd slurmctld munged; do
    pid=$(cat "$here/$name.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
  done
}

start() {
  mkdir -p "$here/state" "$here/spool"
  chmod 755 "$here"
  (umask 077 && head -c 128 /dev/urandom >"$here/munge.key")
  munged --force --socket "$here/munge.socket" --key-file "$here/munge.key" \
    --pid-file "$here/munged.pid" --log-file "$here/munged.log" --seed-file "$here/munge.seed"
  local ports
  ports=$(python3 -c '
import socket
both = [socket.socket(), socket.socket()]
for each in both: each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in both))')
  cat >"$SLURM_CONF" <<C
ClusterName=private
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$here/munge.socket
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd.pid
SlurmctldLogFile=$here/slurmctld.log
SlurmdLogFile=$here/slurmd.log
SlurmctldPort=${ports% *}
SlurmdPort=${ports#* }
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
# So many tasks at a time, whatever the machine has: nothing is measured here.
SlurmdParameters=config_overrides
NodeName=$(hostname) NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=brief Nodes=ALL MaxTime=30 State=UP
C
  slurmctld
  slurmd
  for _ in $(seq 300); do
    [[ $(sinfo --noheader --partition=main --format=%T 2>/dev/null) != idle ]] || break
    sleep 0.2
  done
  if [[ $(sinfo --noheader --partition=main --format=%T) != idle ]]; then
    tail -n 20 "$here"/*.log >&2
    stop
    exit 1
  fi
  echo "$SLURM_CONF"
}

"$word"
