"""What the demo shows, step by step, and the summary. Run by scripts/demo inside namespaces of its own.

Every claim of the summary is checked against what was seen; a claim that does not hold is marked and fails the demo.
"""
import json
import logging
import os
import re
import select
import signal
import sys
import threading
import time

# Scapy warns about interfaces that have nothing to do with the frames built here.
logging.getLogger("scapy").setLevel(logging.ERROR)

import roce
import show
from net import Failure, Process, Watch, private_run_folder, wait_for
from world import BLUE_ONLY, HOSTS, TENANTS, World

WHO_PORT = 7000
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", BLUE_ONLY]
ROCE_PACKETS = 2000


class Story:
    def __init__(self, program, out):
        self.out = out
        self.facts = {}
        self.wrong = []
        began = time.monotonic()
        show.heading("Two tenants, three hosts, one underlay")
        show.note("red and blue have the same addresses; alpha and gamma run vswitch, beta is Linux's own vxlan")
        self.world = World(program, out)
        rows = []
        for host, vtep in HOSTS.items():
            here = [m for m in self.world.machines.values() if m.place == host]
            cells = [(f"{m.name} {m.addresses[0]}", f"{show.tenant(m.name)} {m.addresses[0]}") for m in here]
            rows.append([host, vtep, "vswitch" if host != "beta" else "Linux vxlan", *cells])
        show.table(["host", "VTEP", "runs", "tenant red (VNI 100)", "tenant blue (VNI 200)"], rows)
        show.note(f"two switches up in {time.monotonic() - began:.1f} s; configs and logs: {out}")
        self.machines = self.world.machines
        self.alpha, self.gamma = self.world.switches["alpha"], self.world.switches["gamma"]

    def claim(self, right, text):
        show.fact(right, text)
        if not right:
            self.wrong.append(re.sub(r"\x1b\[[0-9;]*m", "", text))

    # Watching: one filter per machine and tenant, counted in the kernel, so that watching costs next to nothing.

    def watch(self):
        self.watchers = {}
        for name, machine in self.machines.items():
            for tenant in TENANTS:
                addresses = " or ".join(f"ether host {m.mac}" for m in self.machines.values() if m.tenant == tenant)
                self.watchers[name, tenant] = Watch(machine.host, "eth0", addresses)
        for tenant, vni in TENANTS.items():
            # Bytes 12 to 14 of the UDP datagram are the VNI.
            tunnelled = f"udp dst port 4789 and udp[12:4] & 0xffffff00 = {vni << 8:#x}"
            self.watchers["wire", tenant] = Watch(self.world.hosts["alpha"], "up0", tunnelled)

    # Who can talk to whom.

    def answer_who(self):
        """In every machine, on every address it has, somebody answers with the machine's name."""
        socks = {}
        for name, machine in self.machines.items():
            for address in machine.addresses:
                socks[machine.host.udp(address, WHO_PORT)] = name

        def serve():
            while True:
                for sock in select.select(list(socks), [], [])[0]:
                    _, client = sock.recvfrom(100)
                    sock.sendto(socks[sock].encode(), client)

        threading.Thread(target=serve, daemon=True).start()

    def ask(self, machine, address, tries=3):
        sock = machine.host.udp(machine.address, 0)
        try:
            for _ in range(tries):
                sock.sendto(b"who is there?", (address, WHO_PORT))
                if select.select([sock], [], [], 0.4)[0]:
                    return sock.recvfrom(100)[0].decode()
        except OSError:
            pass
        finally:
            sock.close()
        return None

    def matrix(self):
        show.heading("Who talks to whom")
        self.answer_who()
        rows, heard, right = [], {}, True
        for name, machine in self.machines.items():
            row = [(name, show.tenant(name))]
            for address in ADDRESSES:
                if address in machine.addresses:
                    row.append(("(itself)", show.dim("(itself)")))
                    continue
                answer = self.ask(machine, address)
                owner = next((m.name for m in self.machines.values() if m.tenant == machine.tenant and address in m.addresses), None)
                right &= answer == owner
                heard[f"{name} -> {address}"] = answer
                row.append((answer, show.tenant(answer)) if answer else ("-", show.dim("-")))
            rows.append(row)
        show.table(["asks \\ address", *ADDRESSES], rows)
        self.facts["matrix"] = heard
        self.claim(right, "the same address reaches the asker's own tenant, always; an address that only blue has is silent for red")

    def pings(self):
        show.heading("Pings, small and fragmented (tenant MTU 1450)")
        rows, lost = [], 0
        pairs = [("red-a", "red-b"), ("red-b", "red-a"), ("blue-a", "blue-c"), ("blue-c", "blue-b")]
        for source, target in pairs:
            row = [(f"{source} -> {target}", f"{show.tenant(source)} -> {show.tenant(target)}")]
            for size in (56, 1400, 8000):
                text = self.machines[source].host.run(
                    "ping", "-n", "-q", "-c", "5", "-i", "0.2", "-W", "2", "-s", str(size), self.machines[target].address, check=False
                )
                times = re.search(r"= [\d.]+/([\d.]+)/", text)
                loss = re.search(r"([\d.]+)% packet loss", text)
                lost += loss is None or float(loss.group(1)) > 0
                row.append(f"{times.group(1)} ms" if times else "lost")
            rows.append(row)
        show.table(["", "56 bytes", "1400 bytes", "8000 bytes"], rows)
        self.facts["pings_lost"] = lost
        self.claim(lost == 0, "every ping came back")

    def tcp(self):
        show.heading("TCP (iperf3, 3 seconds each)")
        rows, speeds, complete = [], {}, True
        runs = [("red-a", "red-b", "vswitch -> Linux vxlan"), ("red-b", "red-a", "Linux vxlan -> vswitch"), ("blue-a", "blue-c", "vswitch -> vswitch")]
        for source, target, way in runs:
            server_log = f"{self.out}/iperf-{source}-{target}.txt"
            there = self.machines[target]
            server = Process(there.host.inside("iperf3", "-s", "-1", "--forceflush", "-B", there.address), server_log)
            server.wait_output("listening")
            text = self.machines[source].host.run("iperf3", "-J", "-t", "3", "-c", there.address, check=False)
            server.stop()
            try:
                end = json.loads(text)["end"]
                speed, resent = end["sum_received"]["bits_per_second"], end["sum_sent"].get("retransmits", 0)
            except (ValueError, KeyError):
                speed, resent = 0, 0
            complete &= speed > 0
            speeds[f"{source} -> {target}"] = speed
            rows.append([(f"{source} -> {target}", f"{show.tenant(source)} -> {show.tenant(target)}"), way, f"{speed / 1e9:.2f} Gbit/s", resent])
        show.table(["", "way", "throughput", "retransmits"], rows)
        show.note("the hosts, their kernels and the switches share this machine's cores: a figure of this machine, not of the switch")
        self.facts["tcp_bits_per_second"] = speeds
        self.claim(complete, "TCP runs in every direction")

    def rdma(self):
        show.heading("RoCEv2 (RC SENDs with a valid ICRC, made with scapy, every 10th marked congestion-experienced)")
        rows, results = [], {}
        for source, target, qpn in (("red-a", "red-b", 17), ("red-a", "red-c", 18), ("blue-c", "blue-a", 17)):
            here, there = self.machines[source], self.machines[target]
            frames = roce.packets((here.mac, here.address), (there.mac, there.address), qpn, ROCE_PACKETS, 10)
            sender, receiver = here.host.raw("eth0"), there.host.raw("eth0")
            result = roce.stream(sender, receiver, frames)
            sender.close()
            receiver.close()
            results[f"{source} -> {target}"] = result
            name = (f"{source} -> {target} QP {qpn}", f"{show.tenant(source)} -> {show.tenant(target)} QP {qpn}")
            ce = f"{result['ce_received']} of {result['ce_sent']}"
            rows.append([name, result["sent"], result["received"], result["icrc_ok"], ce, "yes" if result["in_order"] else "NO"])
        show.table(["", "sent", "received", "ICRC right", "CE kept", "in order"], rows)
        self.facts["roce"] = results
        whole = all(r["sent"] == r["received"] == r["icrc_ok"] and r["ce_sent"] == r["ce_received"] and r["in_order"] for r in results.values())
        self.claim(whole, "every RoCEv2 packet arrived once, in order, with its ICRC right and its ECN mark kept")

    def hostile(self):
        show.heading("Uninvited packets (crafted on beta and in red-a)")
        from scapy.layers.inet import IP, UDP
        from scapy.layers.l2 import Ether
        from scapy.packet import Raw

        red_a, red_b = self.machines["red-a"], self.machines["red-b"]
        beta = self.world.hosts["beta"]
        uplink = self.world.hosts["alpha"].mac("up0")
        inner = bytes(Ether(src=red_b.mac, dst=red_a.mac) / IP(src=red_b.address, dst=red_a.address) / UDP(sport=1, dport=9) / Raw(b"x" * 20))

        def tunnelled(source, vni):
            header = bytes([8, 0, 0, 0]) + (vni << 8).to_bytes(4, "big")
            link = Ether(src=beta.mac("up0"), dst=uplink)
            return bytes(link / IP(src=source, dst=HOSTS["alpha"]) / UDP(sport=50000, dport=4789, chksum=0) / Raw(header + inner))

        spoofed = bytes(Ether(src=red_a.mac, dst=red_b.mac) / IP(src="10.0.0.99", dst=red_b.address) / UDP(sport=1, dport=9) / Raw(b"x" * 20))
        cases = [
            ("unknown-vni", "a VNI nobody here has", beta, "up0", tunnelled(HOSTS["beta"], 999)),
            ("unknown-vtep", "a tunnel from a stranger", beta, "up0", tunnelled("172.16.0.66", TENANTS["red"])),
            ("guard-vip", "a tenant posing as another address", red_a.host, "eth0", spoofed),
        ]
        rows, right = [], True
        for reason, what, host, interface, frame in cases:
            before = self.drops(reason)
            sock = host.raw(interface)
            for _ in range(7):
                sock.send(frame)
            try:
                wait_for(reason, lambda: self.drops(reason) - before >= 7, 3)
            except Failure:
                pass
            sock.close()
            counted = self.drops(reason) - before
            right &= counted == 7
            rows.append([what, 7, counted, reason])
        show.table(["sent to alpha", "packets", "dropped", "reason"], rows)
        self.facts["hostile"] = {row[3]: row[2] for row in rows}
        self.claim(right, "each was dropped, and counted by name")

    def drops(self, reason):
        return self.alpha.json("show fwd stats all")["drops"].get(reason, 0)

    def tables(self):
        show.heading("Tables of alpha")
        for command in ("show vlt", "show nft", "show neigh"):
            print(f"  {show.bold(command)}")
            show.block(self.alpha.ctl(command))
        show.heading("Drops by name")
        for name, switch in self.world.switches.items():
            print(f"  {show.bold(name)}")
            show.block(switch.ctl("show drops"), 20)
        show.heading("Workers")
        for name, switch in self.world.switches.items():
            print(f"  {show.bold(name)}")
            show.block(switch.ctl("show workers"))
        show.note("most of these cycles are the kernel's: a tap costs a system call a packet; `perf compare` measures the switch alone")

    def books(self):
        """The conservation law, and what a packet cost."""
        show.heading("Books")
        balanced = True
        self.facts["books"] = {}
        for name, switch in self.world.switches.items():
            stats = switch.json("show fwd stats all")
            came = stats["received"] + stats["originated"] + stats["copies"]
            went = stats["sent"] + sum(stats["drops"].values()) + stats["consumed"] + stats["queued"]
            balanced &= came == went
            self.facts["books"][name] = {"in": came, "out": went}
            print(f"    {name}: received + originated + copies = {came}; sent + drops + consumed + queued = {went}")
        self.claim(balanced, "no packet was lost without a name")

    def isolation(self):
        show.heading("What the tenants saw (a packet filter in every machine, during all of the above)")
        seen = {place: watcher.stop() for place, watcher in self.watchers.items()}
        rows, leaked, control = [], 0, True
        for name, machine in self.machines.items():
            own = seen[name, machine.tenant]
            foreign = sum(seen[name, tenant] for tenant in TENANTS if tenant != machine.tenant)
            leaked += foreign
            control &= own > 0
            rows.append([(name, show.tenant(name)), own, foreign])
        show.table(["machine", "packets of its own tenant", "of the other tenant"], rows)
        wire = {tenant: seen["wire", tenant] for tenant in TENANTS}
        show.note("(Linux joins packets of one flow before its machines see them: red-b and blue-b count fewer)")
        show.note(f"on alpha's uplink, by VNI: red {wire['red']}, blue {wire['blue']}")
        self.facts.update(leaked=leaked, wire=wire)
        self.claim(control, "the filters work: each machine saw its own tenant's packets")
        self.claim(all(wire.values()), "both tenants' packets shared the wire, told apart by VNI alone")
        self.claim(leaked == 0, "no machine saw a single packet of the other tenant")

    def end(self):
        show.heading("Stop")
        codes = {name: switch.process.stop() for name, switch in self.world.switches.items()}
        self.facts["exit_codes"] = codes
        self.claim(all(code == 0 for code in codes.values()), f"both switches ended cleanly ({codes})")


def main():
    program, out, json_file = sys.argv[1:4]

    def interrupted(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    def die_with_the_script():
        # Not by way of sys.stdin: a buffered reader would still hold its lock when the interpreter ends.
        while os.read(0, 1):
            pass
        os._exit(1)

    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    threading.Thread(target=die_with_the_script, daemon=True).start()
    began = time.monotonic()
    private_run_folder()
    story = Story(program, out)
    story.watch()
    for step in (story.matrix, story.pings, story.tcp, story.rdma, story.hostile, story.tables, story.books, story.isolation, story.end):
        step()
    story.facts.update(wrong=story.wrong, seconds=round(time.monotonic() - began, 1))
    if json_file:
        with open(json_file, "w") as file:
            json.dump(story.facts, file, indent=2)
    show.heading(f"Summary ({story.facts['seconds']:.0f} s)")
    fastest = max(story.facts["tcp_bits_per_second"].values()) / 1e9
    print(f"  TCP up to {fastest:.2f} Gbit/s, RoCEv2 {sum(r['icrc_ok'] for r in story.facts['roce'].values())} packets with their ICRC right,")
    print(f"  {sum(story.facts['hostile'].values())} uninvited packets dropped by name, {story.facts['leaked']} packets leaked between tenants.")
    if story.wrong:
        for text in story.wrong:
            show.fact(False, text)
        return 1
    show.fact(True, "everything the demo claims was so")
    return 0


try:
    sys.exit(main())
except Failure as failure:
    print(f"demo: {failure}", file=sys.stderr)
    sys.exit(1)
except KeyboardInterrupt:
    # The namespaces go with this process, and everything in them.
    sys.exit(130)
