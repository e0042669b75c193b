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

/// The directories of a host, below a temporary directory.
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

    /// All files below the root, except the programs.
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
fn nothing_is_installed_by_default() {
    let mut site = Site::new();
    site.config.install = None;
    assert!(Installer::new(&site.config).unwrap().is_none());
}

#[test]
fn a7_plugin_and_config_are_installed_with_their_modes_and_not_rewritten() {
    let site = Site::new();
    let installer = site.installer();
    assert_eq!(installer.check().len(), 3);
    assert!(installer.check().iter().all(|file| !file.ok), "{:?}", installer.check());
    let done = installer.install().unwrap();
    assert_eq!(done.len(), 3, "{done:?}");
    assert!(
        done[0].starts_with("plugin ") && done[2].starts_with("config "),
        "the plugin must be first and the config last: {done:?}"
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
    assert_eq!(installer.install().unwrap(), Vec::<String>::new());
    assert_eq!(site.installer().install().unwrap(), Vec::<String>::new());
    assert_eq!(inodes(), before);
    assert!(!site.everything().iter().any(|name| name.contains("tmp")), "{:?}", site.everything());
}

#[test]
fn e20_the_conflist_supports_1_1_0_and_names_the_agent() {
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
fn a_standalone_config_describes_the_network() {
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
    installer.install().unwrap();
    assert!(all_ok(&installer));
}

#[test]
fn the_plugin_must_exist_and_must_not_be_the_installed_file() {
    let mut site = Site::new();
    site.installer().install().unwrap();
    site.install().plugin = site.plugin();
    let error = Installer::new(&site.config).unwrap_err().to_string();
    assert!(error.contains("the installed file itself"), "{error}");
    for bad in ["nothing", "programs"] {
        site.install().plugin = site.at(bad);
        let error = Installer::new(&site.config).unwrap_err().to_string();
        assert!(error.contains(bad) && error.contains("install.plugin"), "{error}");
    }
}

#[test]
fn pain_21_every_change_of_an_installed_file_is_repaired() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    for path in [site.plugin(), site.conflist()] {
        let expected = (text(&path), mode(&path));
        let changes: [&dyn Fn(); 6] = [
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::write(&path, "").unwrap(),
            &|| fs::write(&path, "longer and different content ".repeat(99)).unwrap(),
            &|| fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap(),
            &|| std::os::unix::fs::chown(&path, Some(12345), None).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                symlink("/dev/null", &path).unwrap();
            },
        ];
        for (which, change) in changes.iter().enumerate() {
            change();
            let bad: Vec<_> = installer.check().into_iter().filter(|file| !file.ok).collect();
            assert_eq!(bad.len(), 1, "{which}: {bad:?}");
            assert_eq!(bad[0].path, path);
            let done = installer.install().unwrap();
            assert_eq!(done.len(), 1, "{which}: {done:?}");
            assert_eq!((text(&path), mode(&path)), expected, "{which}");
            assert_eq!(fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
        }
    }
    fs::remove_dir_all(site.at("etc")).unwrap();
    fs::remove_dir_all(site.at("opt")).unwrap();
    assert_eq!(installer.install().unwrap().len(), 3);
    assert!(all_ok(&installer));
}

/// Starts a program that was just written. Another test that starts a program at the same time may hold the file open for
/// writing until its child has called exec.
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
fn pain_21_a_running_plugin_is_replaced() {
    let site = Site::new();
    fs::copy("/bin/sleep", site.at("programs/podwire-cni")).unwrap();
    site.installer().install().unwrap();
    let mut running = run(&site.plugin());
    assert!(fs::write(site.plugin(), "x").is_err(), "the file must be busy");
    site.upgrade("version 2");
    let done = site.installer().install();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(done.unwrap().len(), 2, "the plugin and loopback");
    assert_eq!(
        (text(&site.plugin()), text(&site.loopback())),
        ("version 2".to_owned(), "version 2".to_owned())
    );
}

#[test]
fn an_upgrade_takes_effect_at_the_next_start() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    site.upgrade("version 2");
    assert!(all_ok(&installer));
    fs::remove_file(site.at("programs/podwire-cni")).unwrap();
    fs::remove_file(site.plugin()).unwrap();
    installer.install().unwrap();
    assert_eq!(text(&site.plugin()), "version 1");
}

#[test]
fn an_unmanaged_loopback_plugin_is_not_replaced() {
    for kind in ["file", "link"] {
        let site = Site::new();
        fs::create_dir_all(site.at("opt/cni/bin")).unwrap();
        match kind {
            "file" => fs::write(site.loopback(), "reference plugin").unwrap(),
            _ => symlink("/nonexistent", site.loopback()).unwrap(),
        }
        let installer = site.installer();
        assert_eq!(installer.install().unwrap().len(), 2);
        assert_eq!(installer.check().len(), 2);
        let removal = installer.remove().unwrap();
        assert_eq!(removal.left, Vec::<String>::new());
        assert!(fs::symlink_metadata(site.loopback()).is_ok());
    }
}

#[test]
fn a_loopback_plugin_replaced_by_another_package_is_not_restored() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    fs::write(site.loopback(), "reference plugin").unwrap();
    let done = installer.install().unwrap();
    assert!(done.len() == 1 && done[0].contains("loopback plugin") && done[0].contains("stays"), "{done:?}");
    assert_eq!(installer.install().unwrap(), Vec::<String>::new());
    assert!(installer.remove().unwrap().left.is_empty());
    assert_eq!(text(&site.loopback()), "reference plugin");
}

#[test]
fn a_config_with_a_new_name_replaces_the_old_one() {
    let mut site = Site::new();
    site.installer().install().unwrap();
    site.install().config_name = "05-podwire.conflist".to_owned();
    let done = site.installer().install().unwrap();
    assert_eq!(done.len(), 2, "{done:?}");
    assert!(site.at("etc/cni/net.d/05-podwire.conflist").exists() && !site.conflist().exists());
    assert_eq!(site.installer().install().unwrap(), Vec::<String>::new());
}

#[test]
fn pain_22_a_reader_never_reads_an_incomplete_config() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    let expected = text(&site.conflist());
    let path = site.conflist();
    std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| (0..20_000).all(|_| fs::read_to_string(&path).is_ok_and(|text| text == expected)));
        for _ in 0..20 {
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            assert_eq!(installer.install().unwrap().len(), 1);
        }
        assert!(reader.join().unwrap());
    });
}

#[test]
fn only_old_temporary_files_are_removed() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    let temp = |name: &str| site.at(&format!("etc/cni/net.d/.10-podwire.conflist.{name}.podwire-tmp"));
    for name in ["old", "new"] {
        fs::write(temp(name), "{").unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(61);
    File::open(temp("old")).unwrap().set_modified(long_ago).unwrap();
    fs::remove_file(site.conflist()).unwrap();
    installer.install().unwrap();
    assert!(!temp("old").exists() && temp("new").exists());
}
