"""Hosts on one machine: network namespaces joined by a bridge, each with its own name, processes and temporary files.

A host shares no file with the others but the installed software and what is mounted on purpose. Packets are real:
links go down, and iptables drops what a test tells it to. Nothing leaves these namespaces. Needs root, `ip` and
`iptables`.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from processes import wait_until

SHARED = Path("/mnt/paceline-shared")
"""Where hosts see the directory that they share."""
_SOFTWARE = (Path(__file__).parents[2], Path(sys.prefix))
_OUTER_TMP = "/mnt/paceline-outer-tmp"
PORT = 6379
_SUBNET = "10.87.0"
_LIMIT_S = 180
_NODES_LIMIT_S = 240
_APART = ["setsid", "--fork"]
"""Starts what outlives a test, and is no process of it."""
_MARK = "PACELINE_TEST_SESSION"

_RAY_LOG = "/tmp/ray-start.log"
# On a busy machine a raylet waits in vain for Ray's agent, which gets 15 s to start.
_KEEP_STARTING = f"""
while "$@" >{_RAY_LOG} 2>&1; grep -q 'timed out during startup' {_RAY_LOG}; do :; done
"""

_LIST_NODES = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(*(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
"""
_WAIT_FOR_NODES = """
import socket, sys, time, ray
def is_there(node):
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=1).close()
    except OSError:
        return False
    return True
deadline = time.monotonic() + float(sys.argv[3])
while True:
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        break
    except ConnectionError:
        if time.monotonic() > deadline:
            sys.exit("the head does not answer")
        time.sleep(0.1)
while True:
    alive = [node for node in ray.nodes() if node["Alive"]]
    # Ray takes a while to give up one whose host was replaced.
    if len(alive) == int(sys.argv[2]) and all(map(is_there, alive)):
        break
    if time.monotonic() > deadline:
        sys.exit(f"not {sys.argv[2]} nodes, but {[(node['NodeManagerAddress'], is_there(node)) for node in alive]}")
    time.sleep(0.05)
"""


def missing_tools():
    """Return what this machine lacks to make hosts; empty if nothing."""
    missing = [tool for tool in ("ip", "iptables", "tc", "unshare", "nsenter") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "root"
    if missing:
        return ", ".join(missing)
    probe = f"probe-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if made.returncode:
        return "network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return ""


def _call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def _remove_abandoned():
    """Remove the namespaces of tests that were killed; the processes in them have ended by themselves."""
    for name in [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line]:
        tester = re.fullmatch(r"pl([0-9a-f]+)x.*", name)
        if tester and not Path(f"/proc/{int(tester[1], 16)}").exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _replace_tmp():
    """Give a host temporary files of its own, but leave it the software, wherever that is."""
    yield f"mkdir -p {_OUTER_TMP}"
    yield f"mount --bind /tmp {_OUTER_TMP}"
    yield "mount -t tmpfs -o size=2g tmpfs /tmp"
    for path in _SOFTWARE:
        if path.is_relative_to("/tmp"):
            yield f"mkdir -p {path}"
            yield f"mount --bind {_OUTER_TMP}/{path.relative_to('/tmp')} {path}"
    yield f"umount {_OUTER_TMP}"


class Host:
    def __init__(self, network, number):
        self.name = f"host{number}"
        self.address = f"{_SUBNET}.{number}"
        self._network = network
        self._namespace = f"{network.name}-{number}"
        self._port = f"{network.name}p{number}"
        self._processes = []
        _call("ip", "netns", "add", self._namespace)
        inner = ["type", "veth", "peer", "name", "eth0", "netns", self._namespace]
        _call("ip", "link", "add", self._port, "netns", network.switch, *inner)
        _call("ip", "-n", network.switch, "link", "set", self._port, "master", "bridge", "up")
        _call("ip", "-n", self._namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _call("ip", "-n", self._namespace, "link", "set", device, "up")
        self._start_init()

    def _start_init(self):
        """Start the process that holds the namespaces of this host. All others of the host die with it, and it with the
        tests, whichever way these end.
        """
        own = self._network.directory / self.name
        own.mkdir()
        (own / "hosts").write_text(self._network.names())
        steps = [
            "read -r pid rest < /proc/self/stat",  # as seen from outside
            "echo $pid",
            "mount --make-rprivate /",
            "mount -t proc proc /proc",
            f"hostname {self.name}",
            f"mount --bind {own}/hosts /etc/hosts",
            f"mkdir -p {SHARED}",
            f"mount --bind {self._network.shared} {SHARED}",
            "mount -t tmpfs -o size=2g tmpfs /dev/shm",
            *_replace_tmp(),
            "mkdir /tmp/home",
            "echo ready",
            "exec >/dev/null 2>&1",
            "until cat; do :; done",  # until the tests are gone; a shell, which buries orphans as an init does
        ]
        enter = ["ip", "netns", "exec", self._namespace, "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork"]
        command = [*_APART, *enter, "--kill-child", "sh", "-ec", "\n".join(steps)]
        variables = {name: value for name, value in os.environ.items() if name != _MARK}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **pipes, text=True, env=variables)
        self._lifeline = process.stdin
        with process.stdout as output:
            lines = [output.readline().strip() for _ in range(2)]
        process.wait()
        if lines[1] != "ready":
            raise OSError(f"cannot set up {self.name}: {lines}")
        self._pid = int(lines[0])

    def _enter(self, *command):
        where = ["nsenter", "-t", str(self._pid), "-m", "-u", "-i", "-n", "-p", "--wd=/tmp"]
        return [*where, *map(str, command)]

    def popen(self, *command, env=None, **options):
        """Start a command on this host."""
        variables = {**os.environ, "HOME": "/tmp/home", "RAY_USAGE_STATS_ENABLED": "0", **(env or {})}
        process = subprocess.Popen(self._enter(*command), env=variables, **options)
        self._processes.append(process)
        return process

    def run(self, *command, env=None, timeout=_LIMIT_S):
        """Run a command on this host to its end; return its output."""
        process = self.popen(*command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(timeout=timeout)
        if process.returncode:
            raise AssertionError(f"{command} ended with {process.returncode}:\n{output}")
        return output

    def start_ray(self, *options, num_cpus=2, env=None):
        """Start a Ray node, on the first host the head. What it starts inherits its variables, workers too."""
        ray = Path(sys.executable).with_name("ray")
        where = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        if self._network.head not in (None, self):
            where = [f"--address={self._network.head.address}:{PORT}"]
        else:
            self._network.head = self
        common = [f"--node-ip-address={self.address}", f"--num-cpus={num_cpus}", "--object-store-memory=100000000"]
        command = (ray, "start", *where, *common, "--disable-usage-stats", "--block", *options)
        self.start_daemon("sh", "-c", _KEEP_STARTING, "sh", *command, env=env)

    def start_daemon(self, *command, env=None):
        """Start a command that outlives a test, and ends with this host."""
        variables = {name: value for name, value in os.environ.items() if name != _MARK}
        variables |= {"HOME": "/tmp/home", **(env or {})}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*_APART, *self._enter(*command)], env=variables, check=True, **quiet)

    def has_ray_node(self):
        return self.is_alive and bool(self.run("sh", "-c", "pgrep -x raylet || true").strip())

    def list_processes(self):
        """Return the id and name of each process of this host, but for the one that lists them."""
        lines = self.run("sh", "-c", "exec ps -e -o pid=,comm=").splitlines()
        processes = [line.split(maxsplit=1) for line in lines]
        return [(int(pid), name) for pid, name in processes if name != "ps"]

    def stop_ray(self):
        """Stop the Ray node of this host, which tells the head."""
        self.run(Path(sys.executable).with_name("ray"), "stop")

    def signal_all(self, signum):
        """Signal all processes of this host, as when a virtual machine is frozen and thawed."""
        self.run("sh", "-c", f"kill -{int(signum)} -1")
        # `nsenter` stops with what it runs, and is no process of the host.
        subprocess.run(["pkill", f"-{int(signum)}", "-f", f"^nsenter -t {self._pid} "], check=False)

    def set_link(self, state):
        """Set the link `up` or `down`, as when a cable is pulled: at the bridge, which the host does not notice."""
        _call("ip", "-n", self._network.switch, "link", "set", self._port, state)

    @contextlib.contextmanager
    def dropping(self, *rule):
        """Drop incoming packets that match a rule of iptables."""
        table = ["ip", "netns", "exec", self._namespace, "iptables", "-w"]
        _call(*table, "-A", "INPUT", *rule, "-j", "DROP")
        try:
            yield
        finally:
            _call(*table, "-D", "INPUT", *rule, "-j", "DROP")

    @contextlib.contextmanager
    def limited_to(self, rate):
        """Let only so much through in each direction, such as `1mbit`."""
        ends = (self._namespace, "eth0"), (self._network.switch, self._port)
        for namespace, device in ends:
            shape = ["rate", rate, "burst", "32kb", "latency", "400ms"]
            _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *shape)
        try:
            yield
        finally:
            for namespace, device in ends:
                _call("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    @contextlib.contextmanager
    def delayed_by(self, seconds):
        """Let each packet to or from this host arrive so much later: a process in its path keeps it that long."""
        inside = ("ip", "-n", self._network.switch)
        near, far, segment = (f"{self._port}{letter}" for letter in "nfs")
        relay = (sys.executable, Path(__file__).with_name("relay.py"), near, far, seconds)
        with contextlib.ExitStack() as undo:
            for tap in (near, far):
                _call(*inside, "tuntap", "add", "dev", tap, "mode", "tap")
                undo.callback(_call, *inside, "link", "del", tap)
            _call(*inside, "link", "add", segment, "type", "bridge")
            undo.callback(_call, *inside, "link", "del", segment)
            command = [str(word) for word in ("ip", "netns", "exec", self._network.switch, *relay)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = undo.enter_context(subprocess.Popen(command, **pipes))  # which closes its input in the end
            if process.stdout.readline() != "ready\n":
                raise OSError(f"cannot relay the packets of {self.name}")
            _call(*inside, "link", "set", far, "master", "bridge", "up")
            _call(*inside, "link", "set", near, "master", segment, "up")
            _call(*inside, "link", "set", segment, "up")
            _call(*inside, "link", "set", self._port, "master", segment)
            undo.callback(_call, *inside, "link", "set", self._port, "master", "bridge")
            yield

    def kill(self):
        """End the host with all its processes, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._lifeline.close()
        wait_until(lambda: not self.is_alive)
        for process in self._processes:
            process.wait()
            for stream in (process.stdout, process.stderr, process.stdin):
                if stream is not None:
                    stream.close()

    @property
    def is_alive(self):
        return Path(f"/proc/{self._pid}").exists()

    def remove(self):
        self.kill()
        _call("ip", "-n", self._network.switch, "link", "del", self._port)
        _call("ip", "netns", "del", self._namespace)


class Network:
    """Hosts and the bridge between them. `shared` is a directory that all of them see at `SHARED`."""

    def __init__(self, directory, num_hosts):
        _remove_abandoned()
        self.name = f"pl{os.getpid():x}x{uuid.uuid4().hex[:2]}"
        self.switch = f"{self.name}-switch"
        self.directory = Path(directory)
        self.shared = self.directory / "shared"
        self.shared.mkdir()
        self.head = None
        self.hosts = []
        self._plain_hosts = []
        self._num_hosts = num_hosts
        _call("ip", "netns", "add", self.switch)
        try:
            _call("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            _call("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for number in range(1, num_hosts + 1):
                self.hosts.append(Host(self, number))
        except BaseException:
            self.close()
            raise

    def names(self):
        lines = ["127.0.0.1 localhost", *(f"{_SUBNET}.{n} host{n}" for n in range(1, self._num_hosts + 1))]
        return "\n".join(lines) + "\n"

    def start_ray(self, num_cpus=2):
        """Start a node of one cluster on each host, and return its address."""
        for number, host in enumerate(self.hosts, 1):
            host.start_ray(num_cpus=num_cpus)
            self.wait_for_nodes(number if host is self.head else None)
        self.wait_for_nodes(len(self.hosts))
        return self.address

    @property
    def address(self):
        return f"{self.head.address}:{PORT}"

    def restore(self):
        """Bring back links, and the nodes of hosts that were lost, as after a restart of those machines."""
        for host in self.hosts:
            host.set_link("up")
        alive = self.head.run(sys.executable, "-c", _LIST_NODES, self.address).split()
        for number, host in enumerate(self.hosts):
            # Ray takes back a node that it has given up only as a new one.
            if host.address not in alive or not host.has_ray_node():
                self.replace(number).start_ray()
        self.wait_for_nodes(len(self.hosts))

    @contextlib.contextmanager
    def cutting(self, one, other):
        """Drop all packets between two hosts; both still reach all others."""
        with one.dropping("-s", other.address), other.dropping("-s", one.address):
            yield

    def replace(self, number):
        """Put a new host in the place of one, as after a restart of the machine: without a Ray node."""
        self.hosts[number].remove()
        shutil.rmtree(self.directory / self.hosts[number].name)
        self.hosts[number] = Host(self, number + 1)
        return self.hosts[number]

    def add_plain_host(self):
        """Add a host without a Ray node, for a server; nothing restores it."""
        host = Host(self, len(self.hosts) + len(self._plain_hosts) + 1)
        self._plain_hosts.append(host)
        return host

    def wait_for_nodes(self, num_nodes):
        """Wait until the cluster has this many nodes, and counts none that is gone."""
        if num_nodes is not None:
            command = (sys.executable, "-c", _WAIT_FOR_NODES, self.address, num_nodes, _NODES_LIMIT_S)
            try:
                self.head.run(*command, timeout=_NODES_LIMIT_S + _LIMIT_S)
            except AssertionError as error:
                for host in filter(lambda host: host.is_alive, self.hosts):
                    error.add_note(f"{host.name}: {host.run('sh', '-c', f'cat {_RAY_LOG} || true')}")
                raise

    def close(self):
        for host in (*self.hosts, *self._plain_hosts):
            host.remove()
        _call("ip", "netns", "del", self.switch)
