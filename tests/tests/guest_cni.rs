//! A virtual machine on the socket that the CNI plugin made for it, as Kata Containers and KubeVirt have them: it is what the result says,
//! reaches a pod and is reached, is there again when the switch was killed, and leaves nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tests::cni::{Host, Pod, address, with};
use tests::guest::site::MEMORY;
use tests::guest::{self, Cable, Guest, Hardware};
use tests::traffic;

/// An emulated machine beside others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Turns a machine on as the result of an ADD describes its interface.
fn boot(result: &Value) -> Guest {
    let interface = &result["interfaces"][0];
    let socket = Path::new(interface["socketPath"].as_str().unwrap());
    let mac = interface["mac"].as_str().unwrap();
    let image = guest::image();
    let cable = Cable::VhostUser(socket);
    let guest = Guest::boot(&Hardware { name: "vm", mac, cable, memory: MEMORY, image: &image, more: "" });
    guest.wait_ready();
    guest.run(&format!("ip link set eth0 mtu {} up", interface["mtu"]));
    for ip in result["ips"].as_array().unwrap() {
        let (address, gateway) = (ip["address"].as_str().unwrap(), ip["gateway"].as_str().unwrap());
        let (family, nodad) = if address.contains(':') { ("-6", " nodad") } else { ("-4", "") };
        guest.run(&format!("ip {family} addr add {address} dev eth0{nodad}"));
        guest.run(&format!("ip {family} route add default via {gateway}"));
    }
    guest
}

fn hear_each_other(guest: &Guest, its: &Value, pod: &Pod, pods: &Value) {
    for is_ipv6 in [false, true] {
        let to = address(pods, is_ipv6);
        guest.until(&format!("ping -c 1 -W 1 {to}"), PATIENCE);
        guest.run(&format!("ping -c 3 -i 0.2 -s 1000 -W 10 {to}"));
        traffic::ping(&pod.netns, &address(its, is_ipv6), 1000, 3);
    }
}

#[test]
fn guest_cni_has_the_socket_that_the_plugin_made() {
    if !guest::can_run() {
        return;
    }
    let mut host = Host::start();
    let pods = host.network();
    let machines =
        with(&pods, json!({"port": "vhost-user", "socketFolder": host.dir.path(), "socketMode": "0600"}));
    let (pod, vm) = (Pod::new("pod"), Pod::new("vm"));
    let of_pod = host.add(&pod, &pods);
    let of_vm = host.add(&vm, &machines);
    let socket = Path::new(of_vm["interfaces"][0]["socketPath"].as_str().unwrap()).to_owned();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let guest = boot(&of_vm);
    hear_each_other(&guest, &of_vm, &pod, &of_pod);
    // What Kubernetes does meanwhile: it looks, and asks once more.
    host.check(&vm, &machines, &of_vm).result();
    assert_eq!(host.add(&vm, &machines), of_vm);
    hear_each_other(&guest, &of_vm, &pod, &of_pod);
    // The switch is killed: the machine finds its socket again, and nobody asks the plugin.
    let process = host.daemon.process();
    process.signal("KILL");
    process.wait(PATIENCE);
    host.daemon.restart(&host.lab.host);
    hear_each_other(&guest, &of_vm, &pod, &of_pod);
    host.check(&vm, &machines, &of_vm).result();
    // It goes while the machine still runs, which then has no link and harms nobody.
    let heard = pod.heard();
    host.del(&vm, &machines);
    assert!(!socket.exists());
    assert!(host.check(&vm, &machines, &of_vm).told["code"] == 103);
    guest.until("grep -q 0 /sys/class/net/eth0/carrier", PATIENCE);
    assert!(!guest.try_run(&format!("ping -c 1 -W 1 {}", address(&of_pod, false)), PATIENCE).ok());
    assert_eq!(pod.heard(), heard, "the pod hears nothing of it");
    // The same again: the same machine is on the new socket, with what it is told then.
    let again = host.add(&vm, &machines);
    assert_eq!(again, of_vm);
    hear_each_other(&guest, &again, &pod, &of_pod);
    guest.off();
    host.del(&vm, &machines);
    host.del(&vm, &machines);
    host.del(&pod, &pods);
    assert!(!socket.exists());
    host.nothing_left(&[&vm, &pod]);
    host.daemon.process().signal("TERM");
    host.daemon.assert_clean_end();
}
