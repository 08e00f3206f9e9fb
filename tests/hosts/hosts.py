"""Hosts to run ranks on: network namespaces joined by a switch, or shares of this host that only
say that they are different ones.

Namespaces carry the number of the process that made them; they go when that is done, and those of a
process that was killed go when the next one comes.
"""

import os
import signal
import socket
import subprocess
import warnings

PREFIX = "fullshard-test-"
SLOW = (("netem", "delay", "1ms", "rate", "400mbit"),
        ("tbf", "rate", "400mbit", "burst", "256kb", "latency", "50ms"))  # fmt: skip


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_namespaces(is_mine):
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(PREFIX) and is_mine(int(name[len(PREFIX):].split("-")[0])):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def why_no_namespaces():
    """Empty where they can be made."""
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        remove_namespaces(lambda pid: not is_alive(pid))
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "veth-one", "type", "veth", "peer", "name",
           "veth-two")
        ip("-n", name, "link", "add", "switch", "type", "bridge")
        ip("netns", "exec", name, "true")
    except FileNotFoundError:
        return "there is no program 'ip' (Debian's iproute2)"
    except subprocess.CalledProcessError as error:
        return f"'{' '.join(error.cmd)}' was refused: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


class Ranks:
    """The processes of one job."""

    def __init__(self, processes, hosts):
        self.processes = processes
        self.hosts = hosts  # by rank
        self.stderr = []  # by rank, of those that have ended

    def on(self, host):
        return [p for p, at in zip(self.processes, self.hosts) if at == host]

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


class Hosts:
    """What both kinds have in common. A context: what it made is gone at its end."""

    def __init__(self, count):
        self.count = count
        self.jobs = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.kill()

    def start(self, program, words, hosts, variables=lambda rank: {}):
        """Starts a rank on each of `hosts`."""
        port = str(self.free_port())
        processes = []
        for rank, host in enumerate(hosts):
            local = [r for r, at in enumerate(hosts) if at == host]
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(hosts)),
                           "LOCAL_RANK": str(local.index(rank)),
                           "LOCAL_WORLD_SIZE": str(len(local)),
                           "MASTER_ADDR": self.address(hosts[0]), "MASTER_PORT": port,
                           **self.variables(host), **variables(rank)}  # fmt: skip
            processes.append(subprocess.Popen(
                [*self.prefix(host), str(program), *map(str, words)], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
        self.jobs.append(Ranks(processes, hosts))
        return self.jobs[-1]


class OneHost(Hosts):
    """Ranks of this host, over loopback, that say they are on different ones."""

    kind = "loopback"

    def prefix(self, host):
        return []

    def address(self, host):
        return "127.0.0.1"

    def variables(self, host):
        return {"FULLSHARD_HOST": f"host{host}", "GLOO_SOCKET_IFNAME": "lo"}

    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def cut(self, host):
        """As good as a cable that is pulled: the host's ranks neither send nor receive."""
        for process in self.jobs[-1].on(host):
            process.send_signal(signal.SIGSTOP)

    def unreachable(self, host):
        """Variables by which a rank listens where no other can reach it."""
        return {"GLOO_SOCKET_IFNAME": "no-such-interface"}


class Namespaces(Hosts):
    """Every host a network namespace with its address at eth0; their cables end in a switch, which
    is one more. Slowed down as far as the kernel can."""

    kind = "namespaces"

    slowed = ""  # by which kind of queue

    def name(self, host):
        return f"{PREFIX}{os.getpid()}-{host}"

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        switch = self.name("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for host in range(self.count):
            name = self.name(host)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}",
               "netns", switch)  # fmt: skip
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", switch, "link", "set", f"port{host}", "master", "switch", "up")
            self.slow_down(name)

    def slow_down(self, name):
        """A rate and a delay where the kernel has both, else the rate, else nothing."""
        for way in SLOW:
            done = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *way],
                                  capture_output=True, check=False)  # fmt: skip
            if done.returncode == 0:
                self.slowed = way[0]
                return

    def __exit__(self, *_):
        super().__exit__()
        remove_namespaces(lambda pid: pid == os.getpid())

    def prefix(self, host):
        return ["ip", "netns", "exec", self.name(host)]

    def address(self, host):
        return f"10.213.7.{host + 1}"

    def variables(self, host):
        return {}

    def free_port(self):
        return 29500  # nobody else is there

    def cut(self, host):
        ip("-n", self.name("switch"), "link", "set", f"port{host}", "down")

    def unreachable(self, host):
        name = self.name(host)
        ip("-n", name, "link", "add", "island", "type", "bridge")
        ip("-n", name, "addr", "add", "10.99.0.1/24", "dev", "island")
        ip("-n", name, "link", "set", "island", "up")
        return {"GLOO_SOCKET_IFNAME": "island"}


def make_hosts(count):
    """Namespaces where they can be made; where not, says why and makes do with this host."""
    reason = why_no_namespaces()
    if not reason:
        return Namespaces(count)
    warnings.warn(f"no network namespaces: {reason}; loopback instead")
    return OneHost(count)
