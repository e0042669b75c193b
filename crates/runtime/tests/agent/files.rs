use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::ensure;
use runtime::{Machine, Stop};
use testkit::{Lab, wait_until};

use crate::site::{CONFIG, LOOPBACK, PLUGIN, Programs, Site, TIMEOUT, start_agent, wait_for_agent};

fn read_with_mode(path: &Path) -> anyhow::Result<(u32, Vec<u8>)> {
    Ok((fs::metadata(path)?.permissions().mode(), fs::read(path)?))
}

type Change = fn(&Path);

/// Unwanted changes to an installed file.
const CHANGES: [(&str, Change); 5] = [
    ("removed", |file| fs::remove_file(file).unwrap()),
    ("overwritten", |file| fs::write(file, "{}").unwrap()),
    ("replaced", |file| {
        let other = file.with_file_name(".other");
        fs::write(&other, "#!/bin/false\n").unwrap();
        fs::rename(other, file).unwrap();
    }),
    ("made writable for all users", |file| fs::set_permissions(file, Permissions::from_mode(0o777)).unwrap()),
    ("removed with its directory", |file| fs::remove_dir_all(file.parent().unwrap()).unwrap()),
];

#[test]
fn changed_installed_files_are_restored() {
    let mut site = Site::new("agent-files");
    let machine = &site.testbed.machine;
    let files = [PLUGIN, LOOPBACK, CONFIG].map(|path| (path, machine.path(path)));
    let expected = files.each_ref().map(|(_, file)| read_with_mode(file).unwrap());
    for (path, file) in &files {
        for (change, apply) in CHANGES {
            // A loopback plugin with other content is unmanaged.
            if *path == LOOPBACK && ["overwritten", "replaced"].contains(&change) {
                continue;
            }
            apply(file);
            wait_until(&format!("{path} to be restored after it was {change}"), TIMEOUT, || {
                for ((path, file), expected) in files.iter().zip(&expected) {
                    let now = read_with_mode(file)?;
                    ensure!(now == *expected, "{path}: mode {:o}, {} bytes", now.0, now.1.len());
                }
                Ok(true)
            })
            .unwrap();
        }
    }
    // containerd stops watching a removed directory.
    site.testbed.containerd.restart(Stop::Sigterm).unwrap();
    site.wait_until_ready();
    let pod = site.testbed.run("a");
    site.testbed.remove(&pod);
}

#[test]
fn an_unmanaged_loopback_plugin_is_not_replaced() {
    let lab = Lab::new("agent-loopback").unwrap();
    let machine = Machine::new(&lab.node("n1").unwrap()).unwrap();
    let existing = machine.path(LOOPBACK);
    fs::create_dir_all(existing.parent().unwrap()).unwrap();
    fs::write(&existing, "#!/bin/true\n").unwrap();
    fs::set_permissions(&existing, Permissions::from_mode(0o755)).unwrap();
    let before = read_with_mode(&existing).unwrap();
    let agent = start_agent(&machine, &Programs::built(&lab)).unwrap();
    wait_for_agent(&machine).unwrap();
    wait_until("the config", TIMEOUT, || Ok(machine.path(CONFIG).exists())).unwrap();
    assert_eq!(read_with_mode(&existing).unwrap(), before);
    drop(agent);
}
