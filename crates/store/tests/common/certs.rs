//! Certificates, made with the openssl program: a CA, a server and a client of it, and a client of another CA.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub(crate) struct Certs {
    dir: TempDir,
}

impl Certs {
    /// The server's is for this address, and for the IPv6 loopback address.
    pub(crate) fn new(address: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        authority(at, "ca");
        authority(at, "other-ca");
        signed(at, "server", "ca", &format!("subjectAltName=IP:{address},IP:::1\n"));
        signed(at, "client", "ca", "extendedKeyUsage=clientAuth\n");
        signed(at, "stranger", "other-ca", "extendedKeyUsage=clientAuth\n");
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn openssl(dir: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split_whitespace()).current_dir(dir).output();
    let output = output.expect("openssl is installed (tools/setup test)");
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

fn authority(dir: &Path, name: &str) {
    openssl(dir, &format!("req -x509 {NEW_KEY} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
}

fn signed(dir: &Path, name: &str, by: &str, extensions: &str) {
    // The name is no user of etcd.
    openssl(dir, &format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr -subj /O=podwire"));
    fs::write(dir.join("ext"), extensions).unwrap();
    let args = format!("-CA {by}.pem -CAkey {by}.key -CAcreateserial -days 2 -extfile ext");
    openssl(dir, &format!("x509 -req -in {name}.csr -out {name}.pem {args}"));
}
