//! The outer source port that a device would write, as its driver tells it: of a device of our own (`testdev`, net_eswitch),
//! from DPDK 24.03 on. Before, the question is refused by name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::eswitch::{Bed, Uplink, well_behaved};
use common::{start, stop};
use pmd::flow::BUILD;
use pmd::{FlowDevice, FlowEngine, Port, PortConfig};
use rules::{BackEnd, Cause, FlowError, InnerProtocol, InnerTuple};

/// What the device computes, in other words than its own: the tuple as one number, divided by the polynomial.
fn crc(tuple: &InnerTuple) -> u16 {
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => Ipv6Addr::from(u128::from(u32::from(address))).octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let protocol = match tuple.protocol {
        InnerProtocol::Tcp => 6,
        InnerProtocol::Udp => 17,
    };
    let mut bytes = [address(tuple.destination), address(tuple.source)].concat();
    bytes.push(protocol);
    bytes.extend([tuple.destination_port, tuple.source_port].map(u16::to_be_bytes).concat());
    bytes[0] ^= 0xff;
    bytes[1] ^= 0xff;
    let bits = bytes.iter().chain(&[0, 0]).flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
    let rest = bits.fold(0u32, |rest, bit| {
        let rest = rest << 1 | u32::from(bit);
        if rest >> 16 == 1 { rest ^ 0x1_1021 } else { rest }
    });
    0xc000 | rest as u16
}

/// Tuples of both families and protocols, those of zeros among them.
fn tuples() -> Vec<InnerTuple> {
    let mut state = 1u128;
    let mut random = move || {
        state = state.wrapping_mul(0xda94_2042_e4dd_58b5_1234_5678_9abc_def1).wrapping_add(1);
        state.rotate_left(64)
    };
    let one = |n: u32| {
        let mut address = || match n & 1 {
            0 => IpAddr::V4(Ipv4Addr::from(if n < 4 { 0 } else { random() as u32 })),
            _ => IpAddr::V6(Ipv6Addr::from(if n < 4 { 0 } else { random() })),
        };
        let (source, destination) = (address(), address());
        let protocol = if n & 2 == 0 { InnerProtocol::Udp } else { InnerProtocol::Tcp };
        let ports = if n < 4 { 0 } else { random() };
        let destination_port = if n.is_multiple_of(3) { 4791 } else { (ports >> 16) as u16 };
        InnerTuple { source, destination, protocol, source_port: ports as u16, destination_port }
    };
    (0..400).map(one).collect()
}

fn ask(args: &str) -> Vec<(InnerTuple, Result<u16, FlowError>)> {
    let bed = Bed::new();
    let (port, rx, tx): Uplink = bed.uplink(args, 64);
    let mut device = FlowDevice::new(&port).unwrap();
    let answers = tuples().into_iter().map(|tuple| (tuple, device.encap_source_port(&tuple))).collect();
    drop(device);
    well_behaved(&port);
    stop(port, rx, tx).detach().unwrap();
    answers
}

/// The refusal of a DPDK that has no such question, which no driver hears of.
fn is_too_old(error: &FlowError) -> bool {
    error.cause == Cause::Unsupported && error.message.contains(BUILD.version)
}

#[test]
fn the_port_is_the_drivers() {
    for (tuple, answer) in ask("hash=1") {
        match answer {
            Ok(port) => assert_eq!(port, crc(&tuple), "{tuple}"),
            Err(error) => assert!(!BUILD.encap_hash && is_too_old(&error), "{error}"),
        }
    }
}

#[test]
fn a_driver_that_does_not_tell_is_quoted() {
    for (_, answer) in ask("") {
        let error = answer.unwrap_err();
        let quoted =
            error.cause == Cause::Unsupported && error.message.contains("no calc encap hash handler");
        assert!(if BUILD.encap_hash { quoted } else { is_too_old(&error) }, "{error}");
    }
}

#[test]
fn without_queues_nobody_is_asked() {
    let bed = Bed::new();
    let port = Port::attach(&bed.eal, "net_eswitch0", "hash=1").unwrap();
    let config = PortConfig { flow_engine: FlowEngine::Sync, ..PortConfig::default() };
    let (port, rx, tx) = start(port, &config, &bed.pool);
    let mut device = FlowDevice::new(&port).unwrap();
    let error = device.encap_source_port(&tuples()[0]).unwrap_err();
    assert!(error.cause == Cause::Unsupported && error.message.contains("templates and queues"), "{error}");
    drop(device);
    well_behaved(&port);
    stop(port, rx, tx).detach().unwrap();
}
