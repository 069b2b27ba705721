"""Hosts of a cluster that are not there: writes what they would publish into etcd, by its JSON gateway.

  etcd_fill.py ENDPOINT fill VNI HOSTS VNICS        HOSTS hosts with VNICS vNICs each
  etcd_fill.py ENDPOINT bloat VNI HOSTS BYTES       so many bytes that say nothing in the place of each of HOSTS hosts
  etcd_fill.py ENDPOINT churn VNI HOSTS RATE TIME   RATE changes a second for TIME seconds: vNICs of these hosts come and go

The hosts are called s0, s1 ... at VTEPs 172.16.<1..>.<..>; vNIC n of host h has the address 10.(h * VNICS + n).
"""

import base64
import json
import sys
import time
import urllib.request

OPERATIONS = 100


def field(number, data):
    """A field of a protobuf message: bytes, shorter than 128."""
    return bytes([number << 3 | 2, len(data)]) + data


def address(base, number):
    return ".".join(str(base + number >> shift & 255) for shift in (24, 16, 8, 0))


def member(host):
    return field(1, address(0xAC100100, host + host // 254 * 2 + 1).encode())


def vnic(number, mac=0x02):
    text = f"{mac:02x}:00:" + ":".join(f"{number >> shift & 255:02x}" for shift in (24, 16, 8, 0))
    return field(1, text.encode()) + field(2, address(0x0A800000, number).encode())


class Etcd:
    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.waiting = []

    def add(self, operation, at_once=False):
        self.waiting.append(operation)
        if at_once or len(self.waiting) >= OPERATIONS:
            self.send()

    def send(self):
        if self.waiting:
            body = json.dumps({"success": self.waiting}).encode()
            request = urllib.request.Request(self.endpoint + "/v3/kv/txn", body)
            urllib.request.urlopen(request, timeout=30).read()
            self.waiting = []

    def put(self, key, value, at_once=False):
        encoded = base64.b64encode(key.encode()).decode(), base64.b64encode(value).decode()
        self.add({"request_put": {"key": encoded[0], "value": encoded[1]}}, at_once)

    def delete(self, key, at_once=False):
        self.add({"request_delete_range": {"key": base64.b64encode(key.encode()).decode()}}, at_once)


def main():
    endpoint, what, vni, hosts = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    etcd = Etcd(endpoint)
    root = f"/vswitch/v1/vni/{vni}/"
    if what == "fill":
        count = int(sys.argv[5])
        for host in range(hosts):
            for number in range(count):
                etcd.put(f"{root}s{host}/v{number}", vnic(host * count + number))
            etcd.put(f"{root}s{host}", member(host))
        etcd.send()
        return
    if what == "bloat":
        for host in range(hosts):
            etcd.put(f"{root}b{host}", bytes(int(sys.argv[5])), at_once=True)
        return
    rate, duration = int(sys.argv[5]), float(sys.argv[6])
    began, done = time.monotonic(), 0
    while time.monotonic() - began < duration:
        due = int((time.monotonic() - began) * rate)
        while done < due:
            # Beyond the addresses of those that stay.
            number = done % 4096
            key = f"{root}s{number % hosts}/churn{number}"
            if done // 4096 % 2 == 0:
                etcd.put(key, vnic(0x400000 + number))
            else:
                etcd.delete(key)
            done += 1
        # What was due in a few milliseconds is one transaction.
        etcd.send()
        time.sleep(0.005)
    print(json.dumps({"changes": done}), flush=True)


main()
