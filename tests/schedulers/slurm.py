"""Slurm on hosts of `tests/hosts/network.py`: a controller on the first, and munge and a node's daemon on each.

Slurm is Debian's, with processes in control groups, as on clusters. Packages: slurm-wlm, munge.
"""

import contextlib
import os
import shutil
import sys

from network import SHARED, Network, missing_tools

from processes import wait_until

KILL_WAIT_S = 15
GRACE_TIME_S = 20
LIMIT_S = 200
_CONF = f"""\
ClusterName=test
SlurmctldHost=host1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge/socket,cred_expire=5
SlurmdSpoolDir=/tmp/slurmd
StateSaveLocation=/tmp/slurmctld
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={KILL_WAIT_S}
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=host[1-2] CPUs=4 RealMemory=8000 Gres=gpu:1
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime={GRACE_TIME_S}
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
_GRES_CONF = "Name=gpu File=/dev/null\n"
"""A GPU that Slurm gives to jobs, without the device."""
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
_SET_UP = f"""\
mkdir -p /tmp/munge /tmp/slurmd /tmp/slurmctld /tmp/all
chmod 755 /tmp/munge
install -m 600 {SHARED}/munge.key /tmp/munge.key
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/freezer
mount -t cgroup -o freezer cgroup /tmp/all
mkdir -p /tmp/all/$0
mount --bind /tmp/all/$0 /sys/fs/cgroup/freezer
umount /tmp/all
"""
_TIDY_UP = """\
pkill -9 'slurm|munged'
while pgrep -r D,R,S,T 'slurm|munged' > /dev/null; do sleep 0.1; done
find /sys/fs/cgroup/freezer -mindepth 1 -depth -type d -exec rmdir {} +
mount -t cgroup -o freezer cgroup /tmp/all
rmdir /tmp/all/$0
true
"""


def missing_for_slurm():
    """Return what this machine lacks to run Slurm on hosts; empty if nothing."""
    if missing := missing_tools():
        return missing
    missing = [tool for tool in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} (Debian: slurm-wlm munge)"
    with open("/proc/cgroups") as groups:
        has_freezer = any(line.split()[0] == "freezer" and line.split()[1] != "0" for line in groups)
    return "" if has_freezer else "the freezer of control groups, version 1"


class Slurm:
    def __init__(self, directory):
        self._network = Network(directory, 2)
        self.hosts = self._network.hosts
        self.shared = self._network.shared
        self._variables = {"SLURM_CONF": str(SHARED / "slurm.conf")}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        (self.shared / "slurm.conf").write_text(_CONF)
        (self.shared / "cgroup.conf").write_text(_CGROUP_CONF)
        (self.shared / "gres.conf").write_text(_GRES_CONF)
        (self.shared / "munge.key").write_bytes(os.urandom(1024))
        munged = ["munged", "--foreground", "--force", "--key-file=/tmp/munge.key", "--socket=/tmp/munge/socket"]
        munged += [f"--{name}-file=/tmp/munge/{name}" for name in ("pid", "log", "seed")]
        for host in self.hosts:
            host.run("bash", "-ec", _SET_UP, self._group(host))
            host.start_daemon(*munged)
        self.hosts[0].start_daemon("slurmctld", "-D", env=self._variables)
        for host in self.hosts:
            host.start_daemon("slurmd", "-D", env=self._variables)
        wait_until(lambda: self.find_states("sinfo -h -N -o %T") == ["idle"] * 4, LIMIT_S)  # in two partitions

    def run(self, *command, place=SHARED, env=None):
        """Run a command on the first host, in the directory that all share; return its output."""
        script = 'cd "$0" && exec "$@"'
        return self.hosts[0].run("bash", "-c", script, place, *command, env={**self._variables, **(env or {})})

    def find_states(self, command):
        """The words of a command's answer; none before the controller answers."""
        with contextlib.suppress(AssertionError):
            return self.run(*command.split()).split()
        return []

    def launch(self, *arguments):
        """`paceline launch slurm --submit`; return the number of the job."""
        printed = self.run(sys.executable, "-m", "paceline", "launch", "slurm", "--submit", *arguments)
        return printed.split()[-1]

    def show_job(self, job):
        """What Slurm knows of a job, by name."""
        words = self.run("scontrol", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def wait_for_state(self, job, *states):
        wait_until(lambda: self.show_job(job)["JobState"] in states, LIMIT_S)

    def find_left_over(self):
        """Processes and files of jobs that are left on the hosts. The first process of a host is not one of a job."""
        processes = "pgrep -af -r D,R,S,T '[r]ay|[p]aceline|[s]lurmstepd' | grep -v '^1 '"
        find = f"{processes}; ls -d /tmp/[r]ay* 2> /dev/null; true"
        return [f"{host.name}: {line}" for host in self.hosts for line in host.run("bash", "-c", find).splitlines()]

    def close(self):
        for host in self.hosts:
            if host.is_alive:
                host.run("bash", "-c", _TIDY_UP, self._group(host))
        self._network.close()

    def _group(self, host):
        return f"{self._network.name}-{host.name}"
