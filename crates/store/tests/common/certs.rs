//! Certificates, created with openssl: a CA with a server and a client certificate, and a client certificate of another CA.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub(crate) struct Certs {
    dir: TempDir,
}

impl Certs {
    /// The server certificate is valid for this address and for the IPv6 loopback address.
    pub(crate) fn new(address: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        create_ca(path, "ca");
        create_ca(path, "other-ca");
        create_signed(path, "server", "ca", &format!("subjectAltName=IP:{address},IP:::1\n"));
        create_signed(path, "client", "ca", "extendedKeyUsage=clientAuth\n");
        create_signed(path, "other-client", "other-ca", "extendedKeyUsage=clientAuth\n");
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

fn create_ca(dir: &Path, name: &str) {
    openssl(dir, &format!("req -x509 {NEW_KEY} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
}

fn create_signed(dir: &Path, name: &str, ca: &str, extensions: &str) {
    // Without a common name, which etcd would use as a user name.
    openssl(dir, &format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr -subj /O=podwire"));
    fs::write(dir.join("ext"), extensions).unwrap();
    let args = format!("-CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile ext");
    openssl(dir, &format!("x509 -req -in {name}.csr -out {name}.pem {args}"));
}
