# Debian packages, listed once for every script that installs them. Sourced, never run.
# shellcheck shell=bash disable=SC2034

# Building: the bindings are generated from the installed DPDK headers, and the messages of the API from its proto files (protoc). dpdk-dev has dpdk-testpmd, a peer of `perf compare`.
build_packages=(build-essential pkg-config protobuf-compiler libprotobuf-dev clang libclang-dev libdpdk-dev dpdk-dev dpdk libibverbs-dev librdmacm-dev libpcap-dev)
# Running traffic: namespaces, captures, generators, DHCP clients.
traffic_packages=(iproute2 iputils-ping iperf3 tcpdump ethtool procps util-linux python3 python3-scapy socat isc-dhcp-client udhcpc curl)
# Clients of the API: Python's gRPC with its code generator; and the plugins that CNI delegates addresses to. Peers of the scenarios: another switch, the BFD and BGP of a router (FRR), the BGP speaker that the switch is a client of (gobgpd), the store that hosts share (etcd), Debian's traceroute, and virtual machines (their image is made by scripts/lab-guest from packages too), one of them started by libvirt;
# what makes a root of another Debian release (scripts/debian13); what the sources of DPDK are unpacked with
# (scripts/dpdk-source); and the browser that looks at the page of `perf gen`.
test_packages=(openvswitch-switch-dpdk python3-grpcio python3-protobuf protobuf-compiler-grpc containernetworking-plugins frr gobgpd etcd-server etcd-client traceroute qemu-system-x86 libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients valgrind fonts-dejavu-core debootstrap dpkg-dev chromium)
