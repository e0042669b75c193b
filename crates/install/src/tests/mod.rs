use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use types::AttachMode;

mod allocation;
mod remove;
mod template;
mod unmanaged;
mod watch;

use super::*;
use config::{Config, Flags};

/// A machine's directories, in a temporary one.
struct Site {
    root: TempDir,
    config: Config,
}

impl Site {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("programs")).unwrap();
        fs::write(root.path().join("programs/podwire-cni"), "version 1").unwrap();
        let at = |name: &str| root.path().join(name).into_os_string();
        let config = Config::load(
            &Flags::default(),
            [
                ("PODWIRE_RUN_DIR".into(), at("run")),
                ("PODWIRE_STATE_DIR".into(), at("var/lib/podwire")),
                ("PODWIRE_INSTALL_ENABLED".into(), "true".into()),
                ("PODWIRE_INSTALL_PLUGIN".into(), at("programs/podwire-cni")),
                ("PODWIRE_INSTALL_PLUGIN_DIR".into(), at("opt/cni/bin")),
                ("PODWIRE_INSTALL_CONFIG_DIR".into(), at("etc/cni/net.d")),
            ],
        );
        Self { root, config: config.unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn installer(&self) -> Installer {
        Installer::new(&self.config).unwrap().unwrap()
    }

    fn install(&mut self) -> &mut InstallConfig {
        self.config.install.as_mut().unwrap()
    }

    fn plugin(&self) -> PathBuf {
        self.at("opt/cni/bin/podwire-cni")
    }

    fn loopback(&self) -> PathBuf {
        self.at("opt/cni/bin/loopback")
    }

    fn conflist(&self) -> PathBuf {
        self.at("etc/cni/net.d/10-podwire.conflist")
    }

    fn upgrade(&self, content: &str) {
        fs::write(self.at("programs/new"), content).unwrap();
        fs::rename(self.at("programs/new"), self.at("programs/podwire-cni")).unwrap();
    }

    fn template(&mut self, text: &str) {
        let path = self.at("template.json");
        fs::write(&path, text).unwrap();
        self.install().template = Some(path);
    }

    /// Every file below the root, but the programs.
    fn everything(&self) -> Vec<String> {
        let list = Command::new("find").arg(".").current_dir(self.root.path()).output().unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        let mut all: Vec<String> =
            list.lines().filter(|l| !l.contains("programs") && *l != ".").map(str::to_owned).collect();
        all.sort();
        all
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn all_ok(installer: &Installer) -> bool {
    installer.check().iter().all(|file| file.ok)
}

#[test]
fn nothing_is_installed_unless_it_is_asked_for() {
    let mut site = Site::new();
    site.config.install = None;
    assert!(Installer::new(&site.config).unwrap().is_none());
}

#[test]
fn a7_plugin_0700_and_config_0600_are_put_and_nothing_is_written_twice() {
    let site = Site::new();
    let installer = site.installer();
    assert_eq!(installer.check().len(), 3);
    assert!(installer.check().iter().all(|file| !file.ok), "{:?}", installer.check());
    let done = installer.put().unwrap();
    assert_eq!(done.len(), 3, "{done:?}");
    assert!(
        done[0].starts_with("plugin ") && done[2].starts_with("config "),
        "plugin first, config last: {done:?}"
    );
    assert_eq!((mode(&site.plugin()), mode(&site.loopback()), mode(&site.conflist())), (0o700, 0o700, 0o600));
    assert_eq!(text(&site.plugin()), "version 1");
    assert_eq!(text(&site.conflist()), installer.render().unwrap());
    assert!(all_ok(&installer));
    let inodes = || {
        [site.plugin(), site.loopback(), site.conflist(), site.at("var/lib/podwire/installed.json")]
            .map(|path| fs::metadata(path).unwrap().ino())
    };
    let before = inodes();
    assert_eq!(installer.put().unwrap(), Vec::<String>::new());
    assert_eq!(site.installer().put().unwrap(), Vec::<String>::new());
    assert_eq!(inodes(), before);
    assert!(!site.everything().iter().any(|name| name.contains("tmp")), "{:?}", site.everything());
}

#[test]
fn e20_the_conflist_is_1_1_0_with_one_plugin_that_knows_its_agent() {
    let site = Site::new();
    let list: Value = serde_json::from_str(&site.installer().render().unwrap()).unwrap();
    assert_eq!(list["cniVersion"], "1.0.0");
    assert_eq!(list["cniVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
    assert_eq!(list["name"], "podwire");
    let [plugin] = list["plugins"].as_array().unwrap().as_slice() else { panic!("{list}") };
    assert_eq!(plugin["type"], "podwire-cni");
    assert_eq!(plugin["agent"], site.config.socket.to_str().unwrap());
    assert_eq!(plugin["runDir"], site.config.run_dir.to_str().unwrap());
    assert_eq!(plugin["capabilities"]["portMappings"], true);
    assert_eq!(plugin.get("subnet"), None);
}

#[test]
fn without_an_agent_the_config_describes_the_network() {
    let site = Site::new();
    let installer = Installer::standalone(StandaloneInstall {
        network: NetworkSettings { mode: AttachMode::Bridge, mtu: Some(1400), ..site.config.network.clone() },
        install: site.config.install.clone().unwrap(),
        run_dir: site.config.run_dir.clone(),
        state_dir: site.config.state_dir.clone(),
    })
    .unwrap();
    let list: Value = serde_json::from_str(&installer.render().unwrap()).unwrap();
    let plugin = &list["plugins"][0];
    assert_eq!(plugin.get("agent"), None);
    assert_eq!(plugin["subnet"], "10.83.0.0/16,fd00:88::/64");
    assert_eq!(
        (&plugin["mode"], &plugin["mtu"], &plugin["ipMasq"]),
        (&json!("bridge"), &json!(1400), &json!(true))
    );
    installer.put().unwrap();
    assert!(all_ok(&installer));
}

#[test]
fn the_plugin_must_be_there_and_must_not_be_its_own_copy() {
    let mut site = Site::new();
    site.installer().put().unwrap();
    site.install().plugin = site.plugin();
    let error = Installer::new(&site.config).unwrap_err().to_string();
    assert!(error.contains("the very file"), "{error}");
    for bad in ["nothing", "programs"] {
        site.install().plugin = site.at(bad);
        let error = Installer::new(&site.config).unwrap_err().to_string();
        assert!(error.contains(bad) && error.contains("install.plugin"), "{error}");
    }
}

#[test]
fn pain_21_whatever_is_done_to_a_file_is_put_right() {
    let site = Site::new();
    let installer = site.installer();
    installer.put().unwrap();
    for path in [site.plugin(), site.conflist()] {
        let right = (text(&path), mode(&path));
        let harm: [&dyn Fn(); 6] = [
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::write(&path, "").unwrap(),
            &|| fs::write(&path, "longer than it was and quite another thing ".repeat(99)).unwrap(),
            &|| fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap(),
            &|| std::os::unix::fs::chown(&path, Some(12345), None).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                symlink("/dev/null", &path).unwrap();
            },
        ];
        for (which, harm) in harm.iter().enumerate() {
            harm();
            let bad: Vec<_> = installer.check().into_iter().filter(|file| !file.ok).collect();
            assert_eq!(bad.len(), 1, "{which}: {bad:?}");
            assert_eq!(bad[0].path, path);
            let done = installer.put().unwrap();
            assert_eq!(done.len(), 1, "{which}: {done:?}");
            assert_eq!((text(&path), mode(&path)), right, "{which}");
            assert_eq!(fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
        }
    }
    fs::remove_dir_all(site.at("etc")).unwrap();
    fs::remove_dir_all(site.at("opt")).unwrap();
    assert_eq!(installer.put().unwrap().len(), 3);
    assert!(all_ok(&installer));
}

/// Starts a program that was just written. A test beside this one that starts a program, too, may hold the file open for
/// writing until its child has become another.
fn run(program: &Path) -> Child {
    for _ in 0..1000 {
        match Command::new(program).arg("600").stdin(Stdio::null()).spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            child => return child.unwrap(),
        }
    }
    panic!("{} stays busy", program.display())
}

#[test]
fn pain_21_a_plugin_that_runs_is_replaced() {
    let site = Site::new();
    fs::copy("/bin/sleep", site.at("programs/podwire-cni")).unwrap();
    site.installer().put().unwrap();
    let mut running = run(&site.plugin());
    assert!(fs::write(site.plugin(), "x").is_err(), "the text file is busy");
    site.upgrade("version 2");
    let done = site.installer().put();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(done.unwrap().len(), 2, "plugin and loopback");
    assert_eq!(
        (text(&site.plugin()), text(&site.loopback())),
        ("version 2".to_owned(), "version 2".to_owned())
    );
}

#[test]
fn an_upgrade_counts_from_the_agents_next_start_and_a_deleted_source_harms_nobody() {
    let site = Site::new();
    let installer = site.installer();
    installer.put().unwrap();
    site.upgrade("version 2");
    assert!(all_ok(&installer));
    fs::remove_file(site.at("programs/podwire-cni")).unwrap();
    fs::remove_file(site.plugin()).unwrap();
    installer.put().unwrap();
    assert_eq!(text(&site.plugin()), "version 1");
}

#[test]
fn a_loopback_plugin_of_somebody_else_stays() {
    for how in ["file", "link"] {
        let site = Site::new();
        fs::create_dir_all(site.at("opt/cni/bin")).unwrap();
        match how {
            "file" => fs::write(site.loopback(), "the reference's").unwrap(),
            _ => symlink("/nonexistent", site.loopback()).unwrap(),
        }
        let installer = site.installer();
        assert_eq!(installer.put().unwrap().len(), 2);
        assert_eq!(installer.check().len(), 2);
        let removal = installer.remove().unwrap();
        assert_eq!(removal.left, Vec::<String>::new());
        assert!(fs::symlink_metadata(site.loopback()).is_ok());
    }
}

#[test]
fn a_loopback_plugin_that_somebody_installs_later_is_theirs() {
    let site = Site::new();
    let installer = site.installer();
    installer.put().unwrap();
    fs::write(site.loopback(), "the reference's").unwrap();
    let done = installer.put().unwrap();
    assert!(done.len() == 1 && done[0].contains("loopback plugin") && done[0].contains("stays"), "{done:?}");
    assert_eq!(installer.put().unwrap(), Vec::<String>::new());
    assert!(installer.remove().unwrap().left.is_empty());
    assert_eq!(text(&site.loopback()), "the reference's");
}

#[test]
fn a_config_under_another_name_replaces_the_old_one() {
    let mut site = Site::new();
    site.installer().put().unwrap();
    site.install().config_name = "05-podwire.conflist".to_owned();
    let done = site.installer().put().unwrap();
    assert_eq!(done.len(), 2, "{done:?}");
    assert!(site.at("etc/cni/net.d/05-podwire.conflist").exists() && !site.conflist().exists());
    assert_eq!(site.installer().put().unwrap(), Vec::<String>::new());
}

#[test]
fn pain_22_a_reader_never_sees_half_a_config() {
    let site = Site::new();
    let installer = site.installer();
    installer.put().unwrap();
    let right = text(&site.conflist());
    let path = site.conflist();
    std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| (0..20_000).all(|_| fs::read_to_string(&path).is_ok_and(|text| text == right)));
        for _ in 0..20 {
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            assert_eq!(installer.put().unwrap().len(), 1);
        }
        assert!(reader.join().unwrap());
    });
}

#[test]
fn temporary_files_of_the_dead_go_and_those_of_the_living_stay() {
    let site = Site::new();
    let installer = site.installer();
    installer.put().unwrap();
    let temp = |name: &str| site.at(&format!("etc/cni/net.d/.10-podwire.conflist.{name}.podwire-tmp"));
    for name in ["old", "new"] {
        fs::write(temp(name), "{").unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(61);
    File::open(temp("old")).unwrap().set_modified(long_ago).unwrap();
    fs::remove_file(site.conflist()).unwrap();
    installer.put().unwrap();
    assert!(!temp("old").exists() && temp("new").exists());
}
