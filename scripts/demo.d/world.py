"""The demo's world: three hosts on one underlay, six machines of two tenants that have the same addresses.

    host alpha (a switch)      red-a, blue-a   10.0.0.1
    host beta  (Linux vxlan)   red-b, blue-b   10.0.0.2    blue-b also has 10.0.0.4
    host gamma (a switch)      red-c, blue-c   10.0.0.3
"""
import json
import os
import subprocess

from net import MTU_TENANT, MTU_UNDERLAY, Failure, Host, Process, cable, run, wait_for

TENANTS = {"red": 100, "blue": 200}
HOSTS = {"alpha": "172.16.0.1", "beta": "172.16.0.2", "gamma": "172.16.0.3"}
PLACES = {"a": "alpha", "b": "beta", "c": "gamma"}
NUMBER = {"a": 1, "b": 2, "c": 3}
# An address that only tenant blue has.
BLUE_ONLY = "10.0.0.4"


class Machine:
    """A tenant's machine: its own namespace with eth0."""

    def __init__(self, tenant, letter):
        self.tenant, self.letter, self.name = tenant, letter, f"{tenant}-{letter}"
        self.address = f"10.0.0.{NUMBER[letter]}"
        self.mac = f"02:00:00:00:{'0a' if tenant == 'red' else '0b'}:0{NUMBER[letter]}"
        self.place = PLACES[letter]
        self.host = Host(self.name)

    @property
    def addresses(self):
        return [self.address, BLUE_ONLY] if self.name == "blue-b" else [self.address]


class Switch:
    """A running vswitch on a host."""

    def __init__(self, program, world, place, core, out):
        self.program, self.place = program, place
        self.socket = f"/run/{place}.sock"
        self.config = f"{out}/{place}.toml"
        with open(self.config, "w") as file:
            file.write(self._config(world, core))
        log = f"{out}/{place}.log"
        self.process = Process(world.hosts[place].inside(program, "run", "--config", self.config), log)
        wait_for(f"the switch on {place} to answer", lambda: not self.process.running() or self.try_ctl("show workers")[0], 30)
        if not self.process.running():
            raise Failure(f"the switch on {place} did not start (log: {log}):\n{self.process.output()[-2000:]}")

    def _config(self, world, core):
        others = [f'"{address}"' for name, address in HOSTS.items() if name != self.place]
        text = f"""# The switch of host {self.place}, as the demo ran it.
[eal]
huge-pages = "auto"
memory = "256MiB"
file-prefix = "demo-{self.place}"

[workers]
cores = [{core}]
idle = "sleep"          # cores are shared with the traffic here

[api]
socket = "{self.socket}"

[[uplink]]
name = "up"
port = {{ kind = "af-packet", iface = "up0" }}
addresses = ["{HOSTS[self.place]}/24"]
mtu = {MTU_UNDERLAY}
peers = [{", ".join(others)}]
"""
        for tenant, vni in TENANTS.items():
            text += f'\n[[vpc]]\nname = "{tenant}"\nvni = {vni}\n\n[[subnet]]\nvpc = "{tenant}"\nprefix = "10.0.0.0/24"\n'
        for machine in world.machines.values():
            if machine.place == self.place:
                text += f"""
[[vnic]]
name = "{machine.name}"
vpc = "{machine.tenant}"
mac = "{machine.mac}"
vips = ["{machine.address}"]
mtu = {MTU_TENANT}
port = {{ kind = "tap", iface = "{machine.name}" }}
"""
        for machine in world.machines.values():
            if machine.place != self.place:
                for address in machine.addresses:
                    text += f"""
[[location]]
vni = {TENANTS[machine.tenant]}
vip = "{address}"
mac = "{machine.mac}"
vtep = "{HOSTS[machine.place]}"
"""
        return text

    def try_ctl(self, command, *options):
        done = subprocess.run(
            [self.program, "ctl", "--socket", self.socket, *options, command], capture_output=True, text=True, timeout=20
        )
        return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr

    def ctl(self, command):
        worked, text = self.try_ctl(command)
        if not worked:
            raise Failure(f"'{command}' on {self.place}: {text.strip()}")
        return text

    def json(self, command):
        worked, text = self.try_ctl(command, "--json")
        if not worked:
            raise Failure(f"'{command}' on {self.place}: {text.strip()}")
        return json.loads(text)


class World:
    """Builds all of it; the kernel takes it away with the demo's namespaces."""

    def __init__(self, program, out):
        self.fabric = Host("fabric")
        self.fabric.ip("link add br0 mtu %d type bridge" % MTU_UNDERLAY)
        self.fabric.ip("link set br0 up")
        self.hosts = {name: Host(name) for name in HOSTS}
        for name, host in self.hosts.items():
            cable(host, "up0", self.fabric, name, MTU_UNDERLAY)
            self.fabric.ip(f"link set {name} master br0")
        self.hosts["beta"].ip(f"addr add {HOSTS['beta']}/24 dev up0")
        self.machines = {m.name: m for m in (Machine(t, letter) for letter in PLACES for t in TENANTS)}
        for machine in self.machines.values():
            if machine.place == "beta":
                self._behind_the_kernel(machine)
                # What a control plane would tell Linux; the switches have it in their config.
                for other in self.machines.values():
                    if other.tenant == machine.tenant and other is not machine:
                        machine.host.ip(f"neigh replace {other.address} lladdr {other.mac} dev eth0 nud permanent")
                        run(*machine.host.inside("bridge", "fdb", "append", other.mac, "dev", "eth0", "dst", HOSTS[other.place]))
        cores = sorted(os.sched_getaffinity(0))
        self.switches = {
            "alpha": Switch(program, self, "alpha", cores[-1], out),
            "gamma": Switch(program, self, "gamma", cores[0], out),
        }
        for machine in self.machines.values():
            if machine.place != "beta":
                self._behind_a_switch(machine)
            for address in machine.addresses:
                machine.host.ip(f"addr add {address}/24 dev eth0")

    def _behind_a_switch(self, machine):
        """The switch made a tap; the machine gets it as its eth0, as a container runtime would do it."""
        self.hosts[machine.place].ip(f"link set {machine.name} netns {machine.name}")
        machine.host.ip(f"link set {machine.name} name eth0")
        machine.host.ip(f"link set eth0 address {machine.mac} mtu {MTU_TENANT} up")

    def _behind_the_kernel(self, machine):
        """Linux's own vxlan device is made on beta, whose underlay it keeps, and moved into the machine as its eth0."""
        beta, vni = self.hosts["beta"], TENANTS[machine.tenant]
        try:
            beta.ip(f"link add vx{vni} address {machine.mac} mtu {MTU_TENANT} type vxlan id {vni} dstport 4789 local {HOSTS['beta']} dev up0 nolearning")
        except Failure as failure:
            raise Failure(f"this kernel has no vxlan device, which plays host beta here: {failure}") from failure
        beta.ip(f"link set vx{vni} netns {machine.name}")
        machine.host.ip(f"link set vx{vni} name eth0")
        machine.host.ip("link set eth0 up")
