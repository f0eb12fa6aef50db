"""Runs the image in build/image/muster in two containers, by runc, each in a network of its own.

They have what the chart gives pods: user 65532, a read-only root, no capabilities, limits, and the
calls of the system that container engines allow by default. Holds that they form a fleet, follow
their limits, also when these change, and drain. It needs root.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

USER = 65532
NAME = f"muster-test-{os.getpid()}"
MEMORY = 512 << 20


def run(*command, check=True):
    """Runs a command, and returns what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(
            f"container: {' '.join(map(str, command))}: {done.stdout}{done.stderr}"
        )
    return done.stdout


def unpack(layout, to):
    """Unpacks the image's layers, and returns its configuration."""

    def read(digest):
        return (layout / "blobs" / digest.replace(":", "/")).read_bytes()

    index = json.loads((layout / "index.json").read_bytes())
    images = json.loads(read(index["manifests"][0]["digest"]))
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    digest = next(
        m["digest"]
        for m in images["manifests"]
        if m.get("platform", {})["architecture"] == arch
    )
    manifest = json.loads(read(digest))
    for layer in manifest["layers"]:
        blob = layout / "blobs" / layer["digest"].replace(":", "/")
        with tarfile.open(blob) as files:
            files.extractall(to, filter="fully_trusted")
    return json.loads(read(manifest["config"]["digest"]))["config"]


def seccomp(profile):
    """Returns a profile of container engines as runc takes it, for a process without capabilities."""
    of = json.loads(profile.read_text())
    machine = os.uname().machine
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[machine]
    main = f"SCMP_ARCH_{machine.upper()}"
    also = next(
        a["subArchitectures"] for a in of["archMap"] if a["architecture"] == main
    )

    def applies(rule):
        has, lacks = rule.get("includes", {}), rule.get("excludes", {})
        return (
            not has.get("caps")
            and arch in has.get("arches", [arch])
            and arch not in lacks.get("arches", [])
        )

    # Not those by which processes read each other's memory, which containerd does not allow.
    for rule in of["syscalls"]:
        rule["names"] = [n for n in rule["names"] if not n.startswith("process_vm_")]
    keys = ("names", "action", "errnoRet", "args")
    rules = [{k: r[k] for k in keys if r.get(k)} for r in of["syscalls"] if applies(r)]
    default = {k: of[k] for k in ("defaultAction", "defaultErrnoRet") if k in of}
    return default | {"architectures": [main, *also], "syscalls": rules}


class Agent:
    """An agent in a container."""

    def __init__(self, args, work, letter, config, join):
        """Makes its network, and starts it."""
        self.args, self.id, self.host = (
            args,
            f"{NAME}-{letter}",
            f"10.99.7.{ord(letter)}",
        )
        self.bundle = work / letter
        self.net = f"/run/netns/{self.id}"
        self.log = work / f"{letter}.log"
        models = self.bundle / "models"
        run(args.muster, "models", "generate", "ncf", "--out", models)
        run("chmod", "-R", "a+rX", models)
        spec = self.spec(config, models, join, work / "root")
        (self.bundle / "config.json").write_text(json.dumps(spec))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    args.runc,
                    "--root",
                    work / "runc",
                    "run",
                    "--bundle",
                    self.bundle,
                    self.id,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.state = work / "runc"

    def spec(self, config, models, join, root):
        """Returns the container's description, as a kubelet makes it for the chart's pods."""
        bind = ["rbind", "ro", "nosuid", "nodev"]
        tmp = ["nosuid", "nodev", f"uid={USER}", f"gid={USER}", "mode=0700"]
        mounts = [
            ("/proc", "proc", "proc", []),
            ("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"]),
            ("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
            ("/sys/fs/cgroup", "cgroup", "cgroup", ["nosuid", "noexec", "nodev", "ro"]),
            ("/tmp", "tmpfs", "tmpfs", tmp),
            ("/var/lib/muster/state", "tmpfs", "tmpfs", tmp),
            ("/var/lib/muster/models", "bind", str(models), bind),
        ]
        flags = [
            "--insecure",
            "--http=:8000",
            "--grpc=:8001",
            "--metrics=:8002",
            "--probe=:8003",
            "--gossip=:7946",
            f"--advertise={self.host}",
            "--drain-delay=1s",
            "--drain-timeout=10s",
        ]
        return {
            "ociVersion": "1.0.2",
            "hostname": self.id,
            "root": {"path": str(root), "readonly": True},
            "process": {
                "args": config["Entrypoint"]
                + ["agent"]
                + flags
                + ([f"--join={join}"] if join else []),
                "env": config["Env"],
                "cwd": config["WorkingDir"],
                "user": {"uid": USER, "gid": USER},
                "noNewPrivileges": True,
                "capabilities": {},
            },
            "mounts": [
                {"destination": to, "type": kind, "source": source, "options": options}
                for to, kind, source, options in mounts
            ],
            "linux": {
                "cgroupsPath": f"/{self.id}",
                "namespaces": [
                    {"type": kind} for kind in ("pid", "ipc", "uts", "mount")
                ]
                + [{"type": "network", "path": self.net}],
                "resources": {
                    "cpu": {"quota": 100000, "period": 100000},
                    "memory": {"limit": MEMORY},
                },
                "seccomp": seccomp(self.args.seccomp),
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
            },
        }

    def within(self, *command, check=True):
        """Runs a command in the container's network."""
        return run("nsenter", f"--net={self.net}", *command, check=check)

    def get(self, port, path):
        """Returns what the agent answers; "" if nothing."""
        url = f"http://{self.host}:{port}{path}"
        return self.within("curl", "-s", "--max-time", "5", url, check=False)

    def metric(self, name):
        """Returns a metric without labels."""
        found = re.search(rf"^{name} (\S+)$", self.get(8002, "/metrics"), re.MULTILINE)
        return float(found[1]) if found else None

    def await_that(self, what, good, seconds):
        """Waits until good; what is awaited is in the error."""
        end = time.monotonic() + seconds
        while not good():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"container: not {what}:\n{self.log.read_text()}")
            time.sleep(0.2)
        print(f"{self.id}: {what}", flush=True)


def networks(letters):
    """Makes the containers' networks, joined by a bridge in one of their own."""
    with contextlib.ExitStack() as undo:
        hub = f"{NAME}-hub"
        for name in [hub] + [f"{NAME}-{letter}" for letter in letters]:
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "delete", name, check=False)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "br0", "up")
        for letter in letters:
            name = f"{NAME}-{letter}"
            port = f"port-{letter}"
            peer = ("peer", "name", "eth0", "netns", name)
            run("ip", "-n", hub, "link", "add", "name", port, "type", "veth", *peer)
            run("ip", "-n", hub, "link", "set", port, "master", "br0", "up")
            run(
                "ip",
                "-n",
                name,
                "address",
                "add",
                f"10.99.7.{ord(letter)}/24",
                "dev",
                "eth0",
            )
            run("ip", "-n", name, "link", "set", "eth0", "up")
        return undo.pop_all()


def test(args, work, undo):
    """Starts the agents and looks at them."""
    (work / "root").mkdir()
    config = unpack(args.layout, work / "root")
    if config["User"] != f"{USER}:{USER}":
        raise SystemExit(f"container: the image's user is {config['User']}")
    agents = []
    for letter in "ab":
        agents.append(
            Agent(args, work, letter, config, agents and f"{agents[0].host}:7946")
        )
        undo.callback(
            run,
            args.runc,
            "--root",
            work / "runc",
            "delete",
            "--force",
            agents[-1].id,
            check=False,
        )
    first, second = agents
    for agent in agents:
        agent.await_that(
            "ready", lambda a=agent: '"ready":true' in a.get(8003, "/readyz"), 120
        )
        agent.await_that(
            "in a fleet of two",
            lambda a=agent: a.metric("muster_gossip_members") == 2,
            60,
        )
        if agent.get(8003, "/v2/models/ncf").startswith("{"):
            raise SystemExit("container: the port of probes answers more than probes")
        first.within(args.muster, "infer", "ncf", "--server", f"{agent.host}:8001")
        cores, limit = (
            agent.metric("muster_cores"),
            agent.metric("go_gc_gomemlimit_bytes"),
        )
        if cores != 1 or not 0 < limit < MEMORY:
            raise SystemExit(
                f"container: {cores} cores and a Go limit of {limit} bytes, want 1 and less"
            )
    state = json.loads(run(args.runc, "--root", work / "runc", "state", first.id))
    status = pathlib.Path(f"/proc/{state['pid']}/status").read_text()
    for line in (
        f"Uid:\t{USER}\t{USER}",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ):
        if line not in status:
            raise SystemExit(f"container: no {line!r} in\n{status}")
    print("limits, user and capabilities are as they should be", flush=True)
    if os.cpu_count() > 1:
        update = [
            args.runc,
            "--root",
            work / "runc",
            "update",
            "--cpu-period",
            "100000",
        ]
        run(*update, "--cpu-quota", "200000", second.id)
        second.await_that(
            "anew with two cores", lambda: second.metric("muster_cores") == 2, 180
        )
        second.await_that(
            "ready again", lambda: '"ready":true' in second.get(8003, "/readyz"), 120
        )
        first.within(args.muster, "infer", "ncf", "--server", f"{second.host}:8001")
    run(args.runc, "--root", work / "runc", "kill", second.id, "TERM")
    if (
        code := second.process.wait(timeout=60)
    ) != 0 or "drained" not in second.log.read_text():
        raise SystemExit(
            f"container: the agent ended with {code}:\n{second.log.read_text()}"
        )
    print(f"{second.id}: drained", flush=True)
    first.within(args.muster, "infer", "ncf", "--server", f"{first.host}:8001")


def main():
    """Says what is missing, or runs the test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", type=pathlib.Path, default="build/image/muster")
    parser.add_argument("--muster", type=pathlib.Path, default="bin/muster")
    parser.add_argument("--runc", type=pathlib.Path, default="runc")
    parser.add_argument("--seccomp", type=pathlib.Path, required=True, help="profile")
    args = parser.parse_args()
    args.muster = args.muster.resolve()
    lacks = [p for p in ("ip", "nsenter", "curl") if not shutil.which(p)]
    if os.geteuid() or lacks:
        sys.exit(print(f"container: skipped: needs root, and lacks {lacks}"))
    if subprocess.run(
        ["ip", "netns", "add", NAME], capture_output=True, check=False
    ).returncode:
        sys.exit(print("container: skipped: no network namespaces here"))
    run("ip", "netns", "delete", NAME)
    with tempfile.TemporaryDirectory() as work, networks("ab") as undo:
        test(args, pathlib.Path(work), undo)
    print("container: all is well")


main()
