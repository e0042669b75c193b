use super::*;

#[test]
fn cleanup_needs_no_flags_and_restores_the_initial_state() {
    let site = Site::new();
    fs::create_dir(site.at("etc")).unwrap();
    let before = site.everything();
    site.installer().install().unwrap();
    let state = site.config.state_dir.clone();
    // A temporary file of a killed writer.
    fs::write(site.at("etc/cni/net.d/.10-podwire.conflist.0123.podwire-tmp"), "{").unwrap();
    let removal = remove(&state).unwrap();
    assert_eq!(removal.left, Vec::<String>::new());
    assert!(removal.done[0].starts_with("config "), "{removal:?}");
    assert_eq!(site.everything(), before);
    assert_eq!(remove(&state).unwrap(), RemovedFiles::default());
}

#[test]
fn cleanup_keeps_and_reports_changed_files() {
    let site = Site::new();
    site.installer().install().unwrap();
    fs::write(site.plugin(), "changed by the operator").unwrap();
    fs::write(site.at("etc/cni/net.d/99-other.conf"), "{}").unwrap();
    fs::write(site.conflist(), r#"{ "name": "x", "plugins": [{ "type": "podwire-cni", "mtu": 1400 }] }"#)
        .unwrap();
    let removal = remove(&site.config.state_dir).unwrap();
    assert_eq!(removal.left.len(), 1, "{removal:?}");
    assert!(removal.left[0].contains("podwire-cni stays"), "{removal:?}");
    assert!(!site.conflist().exists(), "the config names the plugin");
    assert!(site.plugin().exists() && site.at("etc/cni/net.d/99-other.conf").exists());

    let site = Site::new();
    site.installer().install().unwrap();
    fs::write(site.conflist(), r#"{ "name": "x", "plugins": [{ "type": "bridge" }] }"#).unwrap();
    assert!(remove(&site.config.state_dir).unwrap().left[0].contains("10-podwire.conflist stays"));
    assert!(site.conflist().exists());
}

#[test]
fn cleanup_after_an_interrupted_upgrade_removes_the_old_plugin() {
    let site = Site::new();
    site.installer().install().unwrap();
    site.upgrade("version 2");
    let installer = site.installer();
    installer.install().unwrap();
    // As after a kill between record and rename.
    fs::write(site.plugin(), "version 1").unwrap();
    assert_eq!(remove(&site.config.state_dir).unwrap().left, Vec::<String>::new());
    assert!(!site.plugin().exists());
}

#[test]
fn a_corrupt_record_is_created_again() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    for content in ["", "{\"version\":1,", "{\"version\":99}"] {
        fs::write(site.at("var/lib/podwire/installed.json"), content).unwrap();
        let removal = remove(&site.config.state_dir).unwrap();
        assert!(removal.done.is_empty() && removal.left[0].contains("installed.json"), "{removal:?}");
        let done = installer.install().unwrap();
        assert!(done.len() == 1 && done[0].contains("installed.json"), "{done:?}");
    }
    assert_eq!(installer.remove().unwrap().left, Vec::<String>::new());
    assert!(!site.plugin().exists() && !site.conflist().exists());
}
