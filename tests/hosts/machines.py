"""What tests of launchers need and a machine may lack: programs to install, a Slurm of one node, two hosts on one wire."""
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest
from pathlib import Path

from hosts import TORCHRUN, clean_environment, descendants_of

ROOT = os.geteuid() == 0


def need(program, package):
    """Installs a Debian package for a program that is missing; skips the test where that cannot be."""
    if shutil.which(program):
        return
    if not ROOT:
        raise unittest.SkipTest(f"{program} is missing and there is no root to install {package}")
    subprocess.run(["apt-get", "update", "-qq"], check=False)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *package.split()]
    done = subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, capture_output=True)
    if done.returncode != 0 or not shutil.which(program):
        raise unittest.SkipTest(f"{package} cannot be installed: {done.stderr.decode()[-300:]}")


class Slurm:
    """One node, as root, without systemd or cgroups."""

    def __init__(self, folder):
        self.folder, self.started = folder, []

    def __enter__(self):
        name = socket.gethostname().split(".")[0]
        for part in ("state", "spool"):
            (self.folder / part).mkdir(parents=True)
        conf = self.folder / "slurm.conf"
        conf.write_text(f"""ClusterName=one
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmdSpoolDir={self.folder}/spool
StateSaveLocation={self.folder}/state
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
NodeName={name} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes={name} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
""")
        Path("/run/munge").mkdir(exist_ok=True)
        for place in ("/run/munge", "/var/lib/munge", "/var/log/munge", "/etc/munge/munge.key"):
            shutil.chown(place, "munge", "munge")
        self.environment = clean_environment(SLURM_CONF=str(conf))
        if subprocess.run(["pgrep", "-x", "munged"], capture_output=True).returncode != 0:
            self.started.append(subprocess.Popen(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground"],
                                                 stderr=subprocess.DEVNULL))
            time.sleep(1)
        for daemon in ("slurmctld", "slurmd"):
            self.started.append(subprocess.Popen([daemon, "-D"], env=self.environment, stderr=subprocess.DEVNULL,
                                                 stdout=subprocess.DEVNULL))
        for _ in range(100):
            state = subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.environment, capture_output=True, text=True)
            if "idle" in state.stdout:
                return str(conf)
            time.sleep(0.2)
        logs = "".join(path.read_text() for path in self.folder.glob("*.log"))
        self.__exit__()
        raise AssertionError(f"the node did not come up: {logs[-2000:]}")

    def __exit__(self, *_):
        for process in reversed(self.started):
            for pid in [*descendants_of(process.pid), process.pid]:
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass
        for process in self.started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class TwoHosts:
    """Two network namespaces with names of their own, on one wire."""

    def __enter__(self):
        self.name = f"st{os.getpid()}"
        for i in (0, 1):
            self.ip("netns", "add", f"{self.name}-{i}")
            folder = Path(f"/etc/netns/{self.name}-{i}")  # `ip netns exec` lays it over /etc
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n10.78.0.1 host0\n10.78.0.2 host1\n")
        self.ip("link", "add", "e0", "netns", f"{self.name}-0", "type", "veth", "peer", "name", "e0", "netns",
                f"{self.name}-1")
        for i in (0, 1):
            self.ip("-n", f"{self.name}-{i}", "addr", "add", f"10.78.0.{i + 1}/24", "dev", "e0")
            for device in ("lo", "e0"):
                self.ip("-n", f"{self.name}-{i}", "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        for i in (0, 1):
            subprocess.run(["ip", "netns", "del", f"{self.name}-{i}"], check=False)
            shutil.rmtree(f"/etc/netns/{self.name}-{i}", ignore_errors=True)

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def on(self, host, *command):
        """A command that runs on a host."""
        return ["ip", "netns", "exec", f"{self.name}-{host}", "unshare", "--uts", "sh", "-c",
                f'hostname host{host}; exec "$@"', "sh", *command]

    def torchrun(self, host, *command, options=()):
        return self.on(host, *TORCHRUN, "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                       "10.78.0.1:29700", "--rdzv-id", "t", "--local-addr", f"10.78.0.{host + 1}", *options,
                       "--no-python", *command)

    def cut(self):
        """All packets between them are lost from now on, without a word."""
        for here, there, address in ((0, "10.78.0.2", "99"), (1, "10.78.0.1", "98")):
            self.ip("-n", f"{self.name}-{here}", "neigh", "replace", there, "lladdr", f"02:00:00:00:00:{address}", "dev",
                    "e0", "nud", "permanent")
