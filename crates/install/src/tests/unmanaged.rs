//! Files of others where ours should be.

use super::*;
use config::PluginConfig;

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","bridge":"cni0"}]}"#;

/// A machine whose operator calls our plugin as others call theirs.
fn called(name: &str) -> Site {
    let mut site = Site::new();
    site.config.plugin = PluginConfig { name: name.to_owned(), ..PluginConfig::default() };
    for directory in ["opt/cni/bin", "etc/cni/net.d"] {
        fs::create_dir_all(site.at(directory)).unwrap();
    }
    site
}

/// Nothing is written, the file is named, and cleanup finds nothing of ours.
fn stops(site: &Site, path: &Path, key: &str) {
    let before = (site.everything(), fs::read(path).ok());
    let installer = site.installer();
    for error in [installer.put().unwrap_err().to_string(), {
        let bad = installer.check().into_iter().find(|file| file.path == path).unwrap();
        bad.message.unwrap()
    }] {
        assert!(error.starts_with(path.to_str().unwrap()) && error.contains(key), "{error}");
        assert!(error.contains("belongs to another program") && error.contains("move it away"), "{error}");
    }
    assert_eq!(installer.remove().unwrap(), RemovedFiles::default());
    assert_eq!((site.everything(), fs::read(path).ok()), before);
}

#[test]
fn a_plugin_of_somebody_else_is_never_overwritten() {
    for name in ["bridge", "podwire-cni"] {
        let site = called(name);
        let plugin = site.at("opt/cni/bin").join(name);
        let contents =
            [&b"the reference's"[..], b"\x7fELF the reference's", b"#!/bin/sh\n# not /run/podwire\n"];
        for content in contents {
            fs::write(&plugin, content).unwrap();
            stops(&site, &plugin, "install.type (CNI_TYPE)");
        }
        fs::remove_file(&plugin).unwrap();
        symlink("/nonexistent", &plugin).unwrap();
        stops(&site, &plugin, "install.type (CNI_TYPE)");
        fix(&site);
        assert!(plugin.with_extension("moved").is_symlink());
    }
}

/// The record of an installation may be lost. A power failure leaves files empty, and operators link to the plugin.
#[test]
fn a_link_to_the_plugin_and_an_empty_file_are_no_other_programs() {
    let site = called("podwire-cni");
    let plugin = site.at("opt/cni/bin/podwire-cni");
    fs::write(&plugin, "").unwrap();
    assert_eq!(site.installer().put().unwrap().len(), 3);
    let moved = site.at("podwire-cni");
    fs::write(&moved, b"\x7fELF of another version, with /run/podwire").unwrap();
    fs::remove_file(&plugin).unwrap();
    symlink(&moved, &plugin).unwrap();
    fs::remove_dir_all(&site.config.state_dir).unwrap();
    site.installer().put().unwrap();
    assert!(!plugin.is_symlink() && all_ok(&site.installer()), "{:?}", site.installer().check());
}

/// The condition has a command that lets the installation go on.
fn fix(site: &Site) {
    let installer = site.installer();
    let found = installer.incomplete(&installer.put().unwrap_err());
    let command = found.fix.unwrap();
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
    assert_eq!(installer.put().unwrap().len(), 3);
}

#[test]
fn a_config_of_somebody_else_is_never_overwritten() {
    for (name, content) in [("podwire-cni", BRIDGE), ("podwire-cni", "no JSON"), ("bridge", BRIDGE)] {
        let site = called(name);
        fs::write(site.conflist(), content).unwrap();
        stops(&site, &site.conflist(), "CNI_CONFIG_LOCATION");
        fix(&site);
        assert_eq!(text(&site.at("etc/cni/net.d/10-podwire.conflist.moved")), content);
    }
}

#[test]
fn what_was_ours_once_is_ours_also_without_a_record() {
    for name in ["podwire-cni", "blue-cni"] {
        let site = called(name);
        let old = [b"\x7fELF ", netconf::DEFAULT_RUN_DIR.as_bytes(), b" version 0"].concat();
        fs::write(site.at("programs/podwire-cni"), &old).unwrap();
        site.installer().put().unwrap();
        site.upgrade("version 2");
        // Another network's name makes another config.
        let text = text(&site.conflist()).replace("\"podwire\"", "\"earlier\"");
        fs::write(site.conflist(), text).unwrap();
        fs::remove_dir_all(site.at("var")).unwrap();
        let done = site.installer().put().unwrap();
        // Whose loopback plugin that is nobody knows any more.
        assert_eq!(done.len(), 2, "{done:?}");
        assert!(all_ok(&site.installer()));
    }
    let site = called("podwire-cni");
    fs::write(site.conflist(), r#"{"name":"x","type":"podwire-cni"}"#).unwrap();
    assert_eq!(site.installer().put().unwrap().len(), 3);
}
