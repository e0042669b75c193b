use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::ensure;
use runtime::{Machine, Stop};
use testkit::{Lab, wait_until};

use crate::site::{CONFIG, LOOPBACK, PLUGIN, Programs, SOON, Site, start_agent, wait_for_agent};

fn look(path: &Path) -> anyhow::Result<(u32, Vec<u8>)> {
    Ok((fs::metadata(path)?.permissions().mode(), fs::read(path)?))
}

type Damage = fn(&Path);

/// What somebody's hands can do to a file.
const DAMAGES: [(&str, Damage); 5] = [
    ("removed", |file| fs::remove_file(file).unwrap()),
    ("overwritten", |file| fs::write(file, "{}").unwrap()),
    ("replaced", |file| {
        let other = file.with_file_name(".other");
        fs::write(&other, "#!/bin/false\n").unwrap();
        fs::rename(other, file).unwrap();
    }),
    ("given to all", |file| fs::set_permissions(file, Permissions::from_mode(0o777)).unwrap()),
    ("removed with its directory", |file| fs::remove_dir_all(file.parent().unwrap()).unwrap()),
];

#[test]
fn what_is_installed_comes_back_within_two_seconds_and_pods_with_it() {
    let mut site = Site::new("agent-files");
    let machine = &site.world.machine;
    let files = [PLUGIN, LOOPBACK, CONFIG].map(|path| (path, machine.path(path)));
    let right = files.each_ref().map(|(_, file)| look(file).unwrap());
    for (path, file) in &files {
        for (what, damage) in DAMAGES {
            // A loopback plugin with another content is somebody else's.
            if *path == LOOPBACK && ["overwritten", "replaced"].contains(&what) {
                continue;
            }
            damage(file);
            wait_until(&format!("{path} to be put back, which was {what}"), SOON, || {
                for ((path, file), right) in files.iter().zip(&right) {
                    let now = look(file)?;
                    ensure!(now == *right, "{path}: mode {:o}, {} bytes", now.0, now.1.len());
                }
                Ok(true)
            })
            .unwrap();
        }
    }
    // containerd does not watch a directory any more that was removed.
    site.world.containerd.restart(Stop::Politely).unwrap();
    site.wait_until_ready();
    let pod = site.world.run("a");
    site.world.remove(&pod);
}

#[test]
fn the_loopback_plugin_of_somebody_else_stays() {
    let lab = Lab::new("agent-loopback").unwrap();
    let machine = Machine::new(&lab.node("n1").unwrap()).unwrap();
    let theirs = machine.path(LOOPBACK);
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "#!/bin/true\n").unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o755)).unwrap();
    let before = look(&theirs).unwrap();
    let agent = start_agent(&machine, &Programs::built(&lab)).unwrap();
    wait_for_agent(&machine).unwrap();
    wait_until("the config", SOON, || Ok(machine.path(CONFIG).exists())).unwrap();
    assert_eq!(look(&theirs).unwrap(), before);
    drop(agent);
}
