//! `pcap`: packets from and to capture files or, by libpcap, interfaces. For the lab.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use super::devargs::Devargs;
use super::{DevicePlan, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::PcapPort;

/// Bytes of a capture file's own header: a file of no more holds no packet.
const FILE_HEADER: u64 = 24;
/// pcap with micro- or nanoseconds in either byte order, and pcapng.
const MAGICS: [u32; 5] = [0xa1b2_c3d4, 0xd4c3_b2a1, 0xa1b2_3c4d, 0x4d3c_b2a1, 0x0a0d_0d0a];

pub(super) fn plan(spec: &PcapPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let ifaces = [&spec.iface, &spec.rx_iface, &spec.tx_iface].into_iter().flatten();
    for iface in ifaces {
        preflight::capable("pcap", preflight::NET_RAW)?;
        preflight::own_interface(iface, opening)?;
    }
    if let Some(path) = &spec.rx_pcap {
        check_source(path, spec.infinite_rx)?;
    }
    if let Some(path) = &spec.tx_pcap {
        opening.take(format!("file {}", path.display()))?;
        check_sink(path)?;
    }
    Ok(DevicePlan::virtual_device("pcap", args(spec)?, Traits::exactly(1)))
}

fn args(spec: &PcapPort) -> Result<Devargs, OpenError> {
    let mut args = Devargs::default();
    if let Some(path) = &spec.rx_pcap {
        args = args.path("rx_pcap", "rx-pcap", path)?;
    }
    // `rx_iface_in` leaves out what leaves by the interface: what this port sends would come back.
    if let Some(iface) = &spec.rx_iface {
        args = args.text("rx_iface_in", "rx-iface", iface)?;
    }
    if let Some(iface) = &spec.iface {
        args = args.text("rx_iface_in", "iface", iface)?.text("tx_iface", "iface", iface)?;
    }
    if let Some(path) = &spec.tx_pcap {
        args = args.path("tx_pcap", "tx-pcap", path)?;
    }
    if let Some(iface) = &spec.tx_iface {
        args = args.text("tx_iface", "tx-iface", iface)?;
    }
    Ok(if spec.infinite_rx { args.number("infinite_rx", 1) } else { args })
}

fn check_source(path: &Path, infinite: bool) -> Result<(), OpenError> {
    let key = "rx-pcap";
    let file_error = |source| OpenError::File { key, path: path.into(), source };
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(file_error)?;
    if file.metadata().map_err(file_error)?.is_dir() {
        return Err(file_error(io::ErrorKind::IsADirectory.into()));
    }
    let read = file.read(&mut magic).map_err(file_error)?;
    let why = if read < magic.len() {
        "it is empty; write packets to it first"
    } else if !MAGICS.contains(&u32::from_ne_bytes(magic)) {
        "it begins like neither pcap nor pcapng"
    } else if infinite && file.metadata().map_err(file_error)?.len() <= FILE_HEADER {
        "it holds no packet, and infinite-rx would repeat nothing"
    } else {
        return Ok(());
    };
    Err(OpenError::Capture { key, path: path.into(), why })
}

fn check_sink(path: &Path) -> Result<(), OpenError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(OpenError::NoFolder { path: path.into(), folder: folder.into() });
    }
    let existed = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|source| OpenError::File { key: "tx-pcap", path: path.into(), source })?;
    if !existed {
        // The driver makes it anew; a refusal later must leave no empty file.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(spec: PcapPort) -> String {
        args(&spec).unwrap().finish()
    }

    #[test]
    fn arguments() {
        let file = PcapPort {
            rx_pcap: Some("in.pcap".into()),
            tx_pcap: Some("out.pcap".into()),
            infinite_rx: true,
            ..PcapPort::default()
        };
        assert_eq!(golden(file), "rx_pcap=in.pcap,tx_pcap=out.pcap,infinite_rx=1");
        let both = PcapPort { iface: Some("v0".into()), ..PcapPort::default() };
        assert_eq!(golden(both), "rx_iface_in=v0,tx_iface=v0");
        let mixed =
            PcapPort { rx_iface: Some("v0".into()), tx_iface: Some("v1".into()), ..PcapPort::default() };
        assert_eq!(golden(mixed), "rx_iface_in=v0,tx_iface=v1");
        let bad = PcapPort { rx_pcap: Some("a,b".into()), ..PcapPort::default() };
        assert!(matches!(args(&bad), Err(OpenError::Value { key: "rx-pcap", .. })));
    }

    #[test]
    fn files_are_looked_at_first() {
        let folder = std::env::temp_dir().join(format!("pcap-port-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("f");
        assert!(matches!(check_source(&path, false), Err(OpenError::File { .. })));
        assert!(matches!(check_source(&folder, false), Err(OpenError::File { .. })));
        let refused = |bytes: &[u8], infinite| {
            fs::write(&path, bytes).unwrap();
            matches!(check_source(&path, infinite), Err(OpenError::Capture { .. }))
        };
        let mut header = vec![0; 24];
        header[..4].copy_from_slice(&0xa1b2_c3d4u32.to_ne_bytes());
        assert!(refused(b"", false) && refused(b"not a capture", false) && refused(&header, true));
        assert!(!refused(&header, false));
        header.push(0);
        assert!(!refused(&header, true));

        let sink = folder.join("new");
        check_sink(&sink).unwrap();
        assert!(!sink.exists());
        assert!(matches!(check_sink(&folder.join("no/new")), Err(OpenError::NoFolder { .. })));
        assert!(matches!(check_sink(&folder), Err(OpenError::File { .. })));
        fs::remove_dir_all(&folder).unwrap();
    }
}
