"""A client of the API by TLS: looks at the switch, and tries to change it; says in JSON what came of either.

    api_tls.py <address> <ca> <certificate or -> <key or -> <name of a VPC to make>

PYTHONPATH has the stubs of vswitch/proto.
"""

import json
import sys

import grpc
from vswitch.v1 import objects_pb2, switch_pb2, switch_pb2_grpc


def read(path):
    if path == "-":
        return None
    with open(path, "rb") as file:
        return file.read()


def attempt(call, request):
    try:
        call(request, timeout=5)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


address, ca, certificate, key, vpc = sys.argv[1:]
credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
options = [("grpc.ssl_target_name_override", "switch.test")]
objects = switch_pb2_grpc.ObjectsStub(grpc.secure_channel(address, credentials, options))
made = objects_pb2.Object(vpc=objects_pb2.Vpc(name=vpc, vni=1 + sum(vpc.encode()) % 10000))
print(
    json.dumps(
        {
            "look": attempt(objects.List, switch_pb2.ListRequest(kind=objects_pb2.KIND_VPC)),
            "change": attempt(objects.Create, switch_pb2.CreateRequest(object=made)),
        }
    )
)
