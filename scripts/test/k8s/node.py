"""Runs the chart's pods on two real nodes: kubelets with containerd and runc, on this machine.

Each node has a network and mounts of its own, and so has the control plane, which a bridge joins to
them. Holds that the chart of a release becomes a fleet that serves two models through its Service, to
clients that know nothing of Muster; that the leader rents a pod, which becomes a serving agent; that no
query is lost while pods are deleted; and that nothing is left at the end. What it prints is kept in
docs/internals/kubernetes.md.

It runs as root in a network, mounts and processes of its own (scripts/k8s.sh sees to that), so that all
of it ends with it. Kubelets would set the kernel's vm.overcommit_memory and kernel.panic; they find
files in their place. CoreDNS is not here: a server of names in this program answers for Services, by
the API server's EndpointSlices.
"""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request

HUB = "10.77.0.1"  # of the control plane, the models and the names
TOKEN = "admin-token"
NAMESPACE = "serving"
BEGIN = time.monotonic()
# What kubelets would change of the machine.
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
STORE_KEYS = {"AWS_ACCESS_KEY_ID": "muster", "AWS_SECRET_ACCESS_KEY": "muster"}
STORE = f"s3://models?endpoint=http://{HUB}:5000&use_path_style=true&region=us-east-1"

PAUSE = """
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main() {
  signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""

CONTAINERD = """
version = 2
root = "{dir}/containerd"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{dir}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
"""

# Debian 12's containerd and control groups of version 1 are the last that kubelet 1.37 takes.
KUBELET = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupRoot: /{group}
failCgroupV1: false
failSwapOn: false
featureGates: {{KubeletInUserNamespace: true}}
clusterDNS: [{hub}]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {{memory.available: 50Mi}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
"""

VALUES = {
    "image": {"repository": "localhost/muster", "tag": "dev", "pullPolicy": "Never"},
    "modelStore": STORE,
    "env": [{"name": k, "value": v} for k, v in STORE_KEYS.items()],
    "settings": {"model-store-poll": "2s"},
    "keepers": {
        "instanceType": "g4dn.xlarge",
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        },
    },
    "rent": {
        "enabled": True,
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "policy": {
            "mode": "auto",
            "limits": {
                "max_price_usd_per_hour": 1,
                "types": {"r5n.large": {"min": 1, "max": 1}},
            },
            "kubernetes": {"nodes": "karpenter", "prices": {"r5n.large": 0.149}},
        },
    },
}


def say(text):
    """Prints what happens, with the time since the start."""
    print(f"{time.monotonic() - BEGIN:6.1f} s  {text}", flush=True)


def run(*command, check=True, **more):
    """Runs a command, and returns what it prints."""
    command = [str(c) for c in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if check and done.returncode:
        raise SystemExit(f"node: {' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def await_that(what, good, seconds=300):
    """Waits until good returns something, which it returns; what is awaited is in the error."""
    end = time.monotonic() + seconds
    last = None
    while time.monotonic() < end:
        try:
            if found := good():
                say(what)
                return found
        except (OSError, ValueError, KeyError) as error:
            last = error
        time.sleep(0.5)
    raise SystemExit(f"node: not within {seconds} s: {what} ({last})")


class Cluster:
    """The control plane, and what asks it."""

    def __init__(self, args):
        """Makes its network."""
        self.args, self.dir, self.processes = args, args.dir, {}
        self.url, self.config = f"https://{HUB}:6443", args.dir / "kubeconfig"
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "address", "add", f"{HUB}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def start(self, name, *command, of="hub", **more):
        """Starts a process, whose output is in a log."""
        log = (self.dir / f"{of}-{name}.log").open("a")
        self.processes[of, name] = subprocess.Popen(
            [str(c) for c in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **more,
        )
        return self.processes[of, name]

    def check(self):
        """Ends all if a process has ended."""
        for (of, name), process in self.processes.items():
            if process.poll() is not None:
                log = (self.dir / f"{of}-{name}.log").read_text()[-3000:]
                raise SystemExit(f"node: {name} of {of} ended:\n{log}")

    def open(self):
        """Starts the control plane, the store of models and the server of names."""
        keys = self.dir / "accounts.key"
        run(
            "openssl",
            "ecparam",
            "-genkey",
            "-name",
            "prime256v1",
            "-noout",
            "-out",
            keys,
        )
        (self.dir / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        ca = self.dir / "certificates" / "apiserver.crt"
        self.config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "clusters": [
                        {
                            "name": "it",
                            "cluster": {
                                "server": self.url,
                                "certificate-authority": str(ca),
                            },
                        }
                    ],
                    "users": [{"name": "it", "user": {"token": TOKEN}}],
                    "contexts": [
                        {"name": "it", "context": {"cluster": "it", "user": "it"}}
                    ],
                }
            )
        )
        program = self.args.cluster / "cluster"
        self.start(
            "etcd",
            program,
            "etcd",
            f"--data-dir={self.dir}/etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self.start(
            "kube-apiserver",
            program,
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--advertise-address={HUB}",
            f"--cert-dir={ca.parent}",
            f"--token-auth-file={self.dir}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys}",
            f"--service-account-signing-key-file={keys}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
        )
        await_that(
            "the API server is ready", lambda: self.get("/readyz", raw=True) == "ok"
        )
        self.start(
            "kube-controller-manager",
            program,
            "kube-controller-manager",
            f"--kubeconfig={self.config}",
            f"--service-account-private-key-file={keys}",
            f"--root-ca-file={ca}",
            "--leader-elect=false",
            "--secure-port=0",
        )
        self.start(
            "kube-scheduler",
            program,
            "kube-scheduler",
            f"--kubeconfig={self.config}",
            "--leader-elect=false",
            "--secure-port=0",
        )
        self.start("store", self.args.moto / "moto_server", "-H", HUB, "-p", "5000")
        threading.Thread(target=Names(self).serve, daemon=True).start()

    def get(self, path, raw=False):
        """Asks the API server."""
        self.check()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            text = answer.read().decode()
        return text if raw else json.loads(text)

    def kubectl(self, *args, **more):
        """Runs kubectl in the fleet's namespace."""
        return run(
            self.args.clients / "kubectl",
            "--kubeconfig",
            self.config,
            "-n",
            NAMESPACE,
            *args,
            **more,
        )

    def helm(self, *args):
        """Runs helm for the release m."""
        env = os.environ | {"KUBECONFIG": str(self.config)}
        for of in ("CACHE", "CONFIG", "DATA"):
            env[f"HELM_{of}_HOME"] = str(self.dir / "helm")
        return run(self.args.clients / "helm", *args, "--namespace", NAMESPACE, env=env)

    def pods(self, labels=""):
        """Returns the fleet's pods."""
        return self.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={labels}")[
            "items"
        ]


def is_ready(of):
    """Reports whether a pod or a node is ready."""
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in of["status"].get("conditions", [])
    )


class Names:
    """A server of the names of Services: SERVICE.NAMESPACE.svc.cluster.local."""

    def __init__(self, cluster):
        """Opens its socket."""
        self.cluster = cluster
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((HUB, 53))

    def addresses(self, name):
        """Returns the addresses of a Service: its own, or its pods' if it has none."""
        found = re.fullmatch(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc\.cluster\.local", name)
        if not found:
            return None
        service, namespace = found.groups()
        try:
            of = self.cluster.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        except OSError:
            return None
        if (ip := of["spec"].get("clusterIP", "None")) != "None":
            return [ip]
        slices = self.cluster.get(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            f"?labelSelector=kubernetes.io/service-name={service}"
        )
        return [
            address
            for s in slices["items"]
            for e in s.get("endpoints") or []
            for address in e["addresses"]
        ]

    def answer(self, query):
        """Returns the answer to a query of one name."""
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
        found = self.addresses(".".join(labels).lower())
        answers = (found or []) if kind == 1 else []
        head = struct.pack(
            ">HHHHHH",
            struct.unpack(">H", query[:2])[0],
            0x8580 | (3 if found is None else 0),
            1,
            len(answers),
            0,
            0,
        )
        return (
            head
            + query[12 : at + 5]
            + b"".join(
                struct.pack(">HHHIH", 0xC00C, 1, 1, 2, 4) + socket.inet_aton(a)
                for a in answers
            )
        )

    def serve(self):
        """Answers until the program ends."""
        while True:
            query, asker = self.socket.recvfrom(4096)
            with contextlib.suppress(OSError, IndexError, struct.error, KeyError):
                self.socket.sendto(self.answer(query), asker)


class Node:
    """A node: containerd, a kubelet and kube-proxy in a network and mounts of their own."""

    def __init__(self, cluster, number, labels):
        """Makes its network, and starts it."""
        self.cluster, self.name = cluster, f"node-{number}"
        self.dir = cluster.dir / self.name
        self.address, pods = f"10.77.0.{10 + number}", f"10.88.{number}.0/24"
        (self.dir / "cni").mkdir(parents=True)
        self.init = cluster.start(
            "init",
            "unshare",
            "--net",
            "--mount",
            "--propagation",
            "private",
            "sleep",
            "infinity",
            of=self.name,
        )
        pid = self.init.pid
        hub = os.readlink("/proc/self/ns/net")
        await_that(
            f"{self.name} has a network",
            lambda: (
                os.readlink(f"/proc/{pid}/ns/net") != hub
                and os.readlink(f"/proc/{pid}/ns/mnt")
                != os.readlink("/proc/self/ns/mnt")
            ),
        )
        port = f"port-{number}"
        run(
            "ip",
            "link",
            "add",
            "name",
            port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            pid,
        )
        run("ip", "link", "set", port, "master", "br0", "up")
        run("ip", "route", "add", pods, "via", self.address)
        for command in (
            "ip link set lo up",
            f"ip address add {self.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {HUB}",
        ):
            run(*self.within(*command.split()))
        self.mount()
        group = f"muster-{self.name}"
        for controller in pathlib.Path("/sys/fs/cgroup").iterdir():
            if controller.is_dir():
                (controller / group).mkdir(exist_ok=True)
        self.start(pods, group, labels)

    def within(self, *command):
        """Returns a command that runs on the node."""
        return ["nsenter", f"--target={self.init.pid}", "--net", "--mount", *command]

    def mount(self):
        """Gives the node folders and files of its own in fixed places."""
        for folder in (
            "/run",
            "/var/lib/kubelet",
            "/var/lib/cni",
            "/var/log/pods",
            "/var/log/containers",
        ):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            run(*self.within("mount", "-t", "tmpfs", "none", folder))
        resolv = self.dir / "resolv.conf"
        resolv.write_text(f"nameserver {HUB}\nsearch svc.cluster.local\n")
        run(*self.within("mount", "--bind", resolv, "/etc/resolv.conf"))
        for setting in SETTINGS:
            copy, of = self.dir / setting.replace("/", "-"), f"/proc/sys/{setting}"
            copy.write_text(pathlib.Path(of).read_text())
            run(*self.within("mount", "--bind", copy, of))

    def start(self, pods, group, labels):
        """Starts the node's programs."""
        args, cluster = self.cluster.args, self.cluster
        (self.dir / "cni" / "10-bridge.conflist").write_text(
            json.dumps(
                {
                    "cniVersion": "0.4.0",
                    "name": "pods",
                    "plugins": [
                        {
                            "type": "bridge",
                            "bridge": "cni0",
                            "isGateway": True,
                            "hairpinMode": True,
                            "ipam": {
                                "type": "host-local",
                                "ranges": [[{"subnet": pods}]],
                                "routes": [{"dst": "0.0.0.0/0"}],
                            },
                        }
                    ],
                }
            )
        )
        config = self.dir / "containerd.toml"
        config.write_text(CONTAINERD.format(dir=self.dir, cni=args.cni))
        cluster.start(
            "containerd", *self.within("containerd", "--config", config), of=self.name
        )
        ctr = self.within("ctr", "--namespace", "k8s.io")
        await_that(
            f"{self.name}: containerd answers",
            lambda: "Version" in run(*ctr, "version", check=False),
        )
        for image in ("pause", "muster"):
            run(*ctr, "images", "import", cluster.dir / f"{image}.tar")
        kubelet = self.dir / "kubelet.yaml"
        kubelet.write_text(KUBELET.format(group=group, hub=HUB))
        program, account = args.cluster / "cluster", f"--kubeconfig={cluster.config}"
        cluster.start(
            "kubelet",
            *self.within(
                program,
                "kubelet",
                f"--config={kubelet}",
                account,
                f"--node-ip={self.address}",
                f"--hostname-override={self.name}",
                f"--node-labels={labels}",
            ),
            of=self.name,
        )
        cluster.start(
            "kube-proxy",
            *self.within(
                program,
                "kube-proxy",
                account,
                f"--hostname-override={self.name}",
                "--proxy-mode=iptables",
                "--masquerade-all",
                "--cluster-cidr=10.88.0.0/16",
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
                "--iptables-min-sync-period=100ms",
            ),
            of=self.name,
        )


def images(args):
    """Makes archives of the images: of the agent, and of what holds a pod's network."""
    with tarfile.open(args.dir / "muster.tar", "w") as archive:
        index = json.loads((args.layout / "index.json").read_bytes())
        index["manifests"][0].setdefault("annotations", {})[
            "io.containerd.image.name"
        ] = "localhost/muster:dev"
        changed = args.dir / "index.json"
        changed.write_text(json.dumps(index))
        for path in ("oci-layout", "blobs"):
            archive.add(args.layout / path, path)
        archive.add(changed, "index.json")
    root = args.dir / "pause"
    root.mkdir()
    run("gcc", "-static", "-Os", "-x", "c", "-o", root / "pause", "-", input=PAUSE)
    with tarfile.open(args.dir / "layer.tar", "w") as layer:
        layer.add(root / "pause", "pause")
    digest = run("sha256sum", args.dir / "layer.tar").split()[0]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    (args.dir / "config.json").write_text(
        json.dumps(
            {
                "architecture": machine,
                "os": "linux",
                "config": {"Entrypoint": ["/pause"]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        )
    )
    (args.dir / "manifest.json").write_text(
        json.dumps(
            [
                {
                    "Config": "config.json",
                    "RepoTags": ["localhost/pause:1"],
                    "Layers": ["layer.tar"],
                }
            ]
        )
    )
    with tarfile.open(args.dir / "pause.tar", "w") as archive:
        for name in ("config.json", "manifest.json", "layer.tar"):
            archive.add(args.dir / name, name)


def push_models(args):
    """Puts two models into the store."""
    folder, env = args.dir / "models", os.environ | STORE_KEYS
    run(args.muster, "models", "generate", "ncf", "wnd", "--out", folder)
    make = f"""import boto3
boto3.client("s3", endpoint_url="http://{HUB}:5000", region_name="us-east-1").create_bucket(
    Bucket="models")"""
    await_that(
        "the store has a bucket",
        lambda: (
            subprocess.run(
                [args.moto / "python", "-c", make],
                env=env,
                capture_output=True,
                check=False,
            ).returncode
            == 0
        ),
    )
    for model in ("ncf", "wnd"):
        run(
            args.muster,
            "models",
            "push",
            model,
            "--store",
            STORE,
            "--dir",
            folder,
            env=env,
        )
    say("the store has the models ncf and wnd")


class Load:
    """Clients of the Service, on a node: tritonclient by gRPC and requests by REST."""

    def __init__(self, node, ca):
        """Starts them."""
        cluster = node.cluster
        env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
        self.process = subprocess.Popen(
            node.within(
                cluster.args.conformance / "python",
                pathlib.Path(__file__).with_name("clients.py"),
                f"m.{NAMESPACE}.svc.cluster.local",
                ca,
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit("node: the clients do not start")

    def stop(self):
        """Ends them, and returns what they count."""
        return json.loads(self.process.communicate("", timeout=120)[0])


def install(cluster):
    """Installs the chart, with volumes for the keepers on the first node."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl(
        "label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted"
    )
    for i in range(3):
        folder = cluster.dir / f"state-{i}"
        folder.mkdir()
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"state-{i}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "local": {"path": str(folder)},
                "claimRef": {"namespace": NAMESPACE, "name": f"state-m-keeper-{i}"},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {
                                        "key": "kubernetes.io/hostname",
                                        "operator": "In",
                                        "values": ["node-1"],
                                    }
                                ]
                            }
                        ]
                    }
                },
            },
        }
        cluster.kubectl("apply", "-f", "-", input=json.dumps(volume))
    values = cluster.dir / "values.json"
    values.write_text(json.dumps(VALUES))
    cluster.helm("install", "m", cluster.args.chart, "--values", values)
    say("helm has installed the chart")


def check_container(cluster, pod):
    """Holds that a pod's agent has what the chart asks for, by what the kernel says."""
    uid = pod["metadata"]["uid"].replace("-", "")
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            groups = (
                (status.parent / "cgroup").read_text().replace("_", "").replace("-", "")
            )
            text = status.read_text()
            if uid in groups and "Name:\tmuster" in text:
                for line in (
                    "Uid:\t65532",
                    "CapEff:\t0000000000000000",
                    "NoNewPrivs:\t1",
                    "Seccomp:\t2",
                ):
                    if line not in text:
                        raise SystemExit(f"node: no {line!r} in {text}")
                say(
                    "an agent runs as 65532, without capabilities, with seccomp's filter"
                )
                return
    raise SystemExit(f"node: no process of the pod {pod['metadata']['name']}")


def forward(cluster, ca):
    """Asks the fleet as the page for users says, through kubectl's port-forward."""
    forwarding = cluster.start(
        "port-forward",
        cluster.args.clients / "kubectl",
        "--kubeconfig",
        cluster.config,
        "-n",
        NAMESPACE,
        "port-forward",
        "svc/m",
        "8001",
    )
    query = (
        cluster.args.muster,
        "infer",
        "ncf",
        "--server",
        "localhost:8001",
        "--tls-ca",
        ca,
    )
    await_that(
        "a query is answered through kubectl port-forward",
        lambda: subprocess.run(query, capture_output=True, check=False).returncode == 0,
        60,
    )
    del cluster.processes["hub", "port-forward"]
    forwarding.kill()


def delete_under_load(cluster, node, ca, name, again):
    """Deletes a pod while clients ask; again awaits what comes in its place."""
    load = Load(node, ca)
    time.sleep(3)
    cluster.kubectl("delete", "pod", name)
    say(f"{name} has gone")
    again()
    time.sleep(3)
    count = load.stop()
    say(f"queries while {name} was replaced: {json.dumps(count)}")
    if count["lost"] or min(count["answered"].values()) == 0:
        raise SystemExit("node: queries were lost, or not asked")


def test(cluster):
    """Runs all of it."""
    args = cluster.args
    images(args)
    cluster.open()
    types = "node.kubernetes.io/instance-type"
    market = "karpenter.sh/capacity-type=on-demand"
    nodes = [
        Node(cluster, 1, f"{types}=g4dn.xlarge,{market}"),
        Node(cluster, 2, f"{types}=r5n.large,{market}"),
    ]
    await_that(
        "the nodes are ready",
        lambda: sum(map(is_ready, cluster.get("/api/v1/nodes")["items"])) == len(nodes),
    )
    print(cluster.kubectl("get", "nodes", "-o", "wide"), flush=True)
    push_models(args)
    install(cluster)
    cluster.kubectl("rollout", "status", "statefulset/m-keeper", "--timeout=600s")
    say("the keepers are ready")
    secret = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/m-admin")
    ca = cluster.dir / "ca.crt"
    ca.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    check_container(cluster, cluster.pods("muster.dev/pool=keeper")[0])

    def rented(but=""):
        return [
            p
            for p in cluster.pods("muster.dev/fleet")
            if is_ready(p)
            and p["metadata"]["name"] != but
            and "deletionTimestamp" not in p["metadata"]
        ]

    pod = await_that("a rented pod is ready", rented, 600)[0]
    print(cluster.kubectl("get", "pods", "-o", "wide"), flush=True)
    service = f"m.{NAMESPACE}.svc.cluster.local"
    ask = nodes[0].within(args.muster)
    for model in ("ncf", "wnd"):
        query = ("infer", model, "--server", f"{service}:8001", "--tls-ca", ca)
        await_that(
            f"the fleet answers a query of {model}",
            lambda q=query: (
                subprocess.run(
                    [str(c) for c in (*ask, *q)], check=False, capture_output=True
                ).returncode
                == 0
            ),
            60,
        )
    forward(cluster, ca)
    print(
        run(*ask, "status", "--server", f"{service}:8001", "--tls-ca", ca), flush=True
    )
    delete_under_load(
        cluster,
        nodes[0],
        ca,
        "m-keeper-0",
        lambda: await_that(
            "m-keeper-0 is ready again",
            lambda: (
                len([p for p in cluster.pods("muster.dev/pool=keeper") if is_ready(p)])
                == 3
            ),
        ),
    )
    name = pod["metadata"]["name"]
    delete_under_load(
        cluster,
        nodes[0],
        ca,
        name,
        lambda: await_that(
            "another pod is rented and ready", lambda: rented(name), 600
        ),
    )
    cluster.helm("uninstall", "m")
    await_that("after helm uninstall no pod is left", lambda: not cluster.pods())


def keep_logs(cluster):
    """Writes what the pods that are left say, and the events, into files."""
    for pod in cluster.pods():
        name = pod["metadata"]["name"]
        text = cluster.kubectl("logs", name, check=False)
        (cluster.dir / f"{name}.log").write_text(text)
    (cluster.dir / "events.txt").write_text(
        cluster.kubectl("get", "events", check=False)
    )


def main():
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("cluster", "clients", "moto", "conformance", "cni"):
        parser.add_argument(f"--{flag}", type=pathlib.Path, required=True)
    parser.add_argument("--muster", type=pathlib.Path, default="bin/muster")
    parser.add_argument("--layout", type=pathlib.Path, default="build/image/muster")
    parser.add_argument("--chart", type=pathlib.Path, default="deploy/helm/muster")
    parser.add_argument("--dir", type=pathlib.Path, default="build/k8s-node")
    args = parser.parse_args()
    args.dir, args.muster = args.dir.resolve(), args.muster.resolve()
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cluster = Cluster(args)
    try:
        test(cluster)
    finally:
        with contextlib.suppress(BaseException):
            keep_logs(cluster)
    print("node: all is well")


main()
