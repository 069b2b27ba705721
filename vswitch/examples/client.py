#!/usr/bin/env python3
"""Drives a switch from Python: makes a VPC with two vNICs in one change, waits until they are up, and takes them away.

The messages are made from the proto files once (Debian: protobuf-compiler, protobuf-compiler-grpc, python3-grpcio):

    protoc -I vswitch/proto --python_out=OUT --grpc_python_out=OUT \\
        --plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin \\
        vswitch/proto/vswitch/v1/*.proto
    PYTHONPATH=OUT python3 vswitch/examples/client.py /run/vswitch/vswitch.sock
"""

import sys

import grpc
from vswitch.v1 import objects_pb2 as objects
from vswitch.v1 import switch_pb2 as switch
from vswitch.v1 import switch_pb2_grpc as services


def refusal(error):
    """What a refusal says, by fields."""
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    found = switch.Refusal()
    for detail in switch.RpcStatus.FromString(details).details:
        detail.Unpack(found)
    return [(problem.code, problem.field, problem.message) for problem in found.problems]


def vnic(number):
    return objects.Vnic(
        name=f"py{number}",
        vpc="python",
        mac=f"02:00:00:00:03:{number:02x}",
        vips=[f"10.30.0.{number}"],
        port=objects.PortSpec(tap=objects.PortSpec.Tap(iface=f"py{number}")),
        qos=objects.VnicQos(outbound=objects.Limits(ceil="1Gbit")),
    )


def wait_until_up(stub, names):
    """Reads the stream of changes until all of them are up."""
    waiting = set(names)
    for told in stub.Watch(switch.WatchRequest(kinds=[objects.KIND_VNIC]), timeout=30):
        if told.WhichOneof("event") == "set" and told.set.status.state == switch.STATE_UP:
            waiting.discard(told.set.key.id)
        if not waiting:
            return


def main():
    channel = grpc.insecure_channel(f"unix:{sys.argv[1]}")
    stub, observe = services.ObjectsStub(channel), services.ObserveStub(channel)
    info = observe.GetInfo(switch.GetInfoRequest(), timeout=10)
    print(f"a switch with {info.workers} workers, at revision {info.revision}")

    specs = [
        objects.Object(vpc=objects.Vpc(name="python", vni=3000)),
        objects.Object(subnet=objects.Subnet(vpc="python", prefix="10.30.0.0/24")),
        objects.Object(vnic=vnic(1)),
        objects.Object(vnic=vnic(2)),
    ]
    creations = [switch.Operation(create=switch.CreateRequest(object=spec)) for spec in specs]
    done = stub.Apply(switch.ApplyRequest(operations=creations), timeout=10)
    print(f"made at revision {done.revision}")
    wait_until_up(stub, ["py1", "py2"])
    print("both are up")

    wrong = objects.Object(vnic=objects.Vnic(name="py1", mac="nonsense"))
    try:
        stub.Create(switch.CreateRequest(object=wrong), timeout=10)
        sys.exit("a vNIC with a wrong address was taken")
    except grpc.RpcError as error:
        print(f"refused: {error.code().name}: {refusal(error)}")

    gone = [(objects.KIND_VNIC, "py1"), (objects.KIND_VNIC, "py2"), (objects.KIND_SUBNET, "python 10.30.0.0/24"), (objects.KIND_VPC, "python")]
    deletions = [switch.Operation(delete=switch.DeleteRequest(key=objects.Key(kind=kind, id=name))) for kind, name in gone]
    stub.Apply(switch.ApplyRequest(operations=deletions), timeout=10)
    left = stub.List(switch.ListRequest(kind=objects.KIND_VNIC), timeout=10).entries
    print(f"gone; {len(left)} vNICs are left")


if __name__ == "__main__":
    main()
