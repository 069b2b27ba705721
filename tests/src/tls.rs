//! Certificates, made by openssl as an operator makes them.

use crate::{Workdir, process};
use std::path::PathBuf;

/// A folder of authorities, and of certificates and keys that they have signed: `<name>.pem` and `<name>.key`.
#[derive(Debug)]
pub struct Authority(Workdir);

impl Authority {
    /// Authorities of these names.
    #[track_caller]
    pub fn new(names: &[&str]) -> Self {
        let made = Self(Workdir::new("certificates"));
        for name in names {
            made.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.pem -days 2 \
                 -subj /CN={name} -addext basicConstraints=critical,CA:TRUE"
            ));
        }
        made
    }

    fn openssl(&self, line: &str) {
        let command = format!("cd {} && openssl {line} 2>&1", self.0.path().display());
        process::run(&["bash", "-c", &command]);
    }

    /// A certificate with its key for a subject ("DNS:name", "IP:address"), signed by an authority; `valid` says for how long
    /// ("-days 2").
    #[track_caller]
    pub fn sign(&self, name: &str, ca: &str, subject: &str, valid: &str) {
        self.0.write(&format!("{name}.ext"), &format!("subjectAltName = {subject}\n"));
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -out {name}.pem {valid} -extfile {name}.ext"
        ));
    }

    /// Writes one of its files, which is made where it is not there.
    #[track_caller]
    pub fn write(&self, name: &str, text: &str) {
        self.0.write(name, text);
    }

    /// One of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
