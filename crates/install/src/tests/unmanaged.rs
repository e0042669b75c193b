//! Files of other programs at the paths of plugin and config.

use super::*;
use config::PluginConfig;

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","bridge":"cni0"}]}"#;

/// A host with this plugin name, which another program may also use.
fn site_with_type(name: &str) -> Site {
    let mut site = Site::new();
    site.config.plugin = PluginConfig { name: name.to_owned(), ..PluginConfig::default() };
    for directory in ["opt/cni/bin", "etc/cni/net.d"] {
        fs::create_dir_all(site.at(directory)).unwrap();
    }
    site
}

/// Expects that nothing is written, the file is reported, and cleanup removes nothing.
fn assert_refused(site: &Site, path: &Path, key: &str) {
    let before = (site.everything(), fs::read(path).ok());
    let installer = site.installer();
    for error in [installer.install().unwrap_err().to_string(), {
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
fn an_unmanaged_plugin_is_never_overwritten() {
    for name in ["bridge", "podwire-cni"] {
        let site = site_with_type(name);
        let plugin = site.at("opt/cni/bin").join(name);
        let contents =
            [&b"reference plugin"[..], b"\x7fELF reference plugin", b"#!/bin/sh\n# not /run/podwire\n"];
        for content in contents {
            fs::write(&plugin, content).unwrap();
            assert_refused(&site, &plugin, "install.type (CNI_TYPE)");
        }
        fs::remove_file(&plugin).unwrap();
        symlink("/nonexistent", &plugin).unwrap();
        assert_refused(&site, &plugin, "install.type (CNI_TYPE)");
        fix(&site);
        assert!(plugin.with_extension("moved").is_symlink());
    }
}

/// The record of an installation may be lost. A power failure leaves files empty, and operators link to the plugin.
#[test]
fn a_link_to_the_plugin_and_an_empty_file_are_replaced() {
    let site = site_with_type("podwire-cni");
    let plugin = site.at("opt/cni/bin/podwire-cni");
    fs::write(&plugin, "").unwrap();
    assert_eq!(site.installer().install().unwrap().len(), 3);
    let target = site.at("podwire-cni");
    fs::write(&target, b"\x7fELF of another version, with /run/podwire").unwrap();
    fs::remove_file(&plugin).unwrap();
    symlink(&target, &plugin).unwrap();
    fs::remove_dir_all(&site.config.state_dir).unwrap();
    site.installer().install().unwrap();
    assert!(!plugin.is_symlink() && all_ok(&site.installer()), "{:?}", site.installer().check());
}

/// Runs the fix of the condition, after which the installation succeeds.
fn fix(site: &Site) {
    let installer = site.installer();
    let finding = installer.incomplete(&installer.install().unwrap_err());
    let command = finding.fix.unwrap();
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
    assert_eq!(installer.install().unwrap().len(), 3);
}

#[test]
fn an_unmanaged_config_is_never_overwritten() {
    for (name, content) in [("podwire-cni", BRIDGE), ("podwire-cni", "no JSON"), ("bridge", BRIDGE)] {
        let site = site_with_type(name);
        fs::write(site.conflist(), content).unwrap();
        assert_refused(&site, &site.conflist(), "CNI_CONFIG_LOCATION");
        fix(&site);
        assert_eq!(text(&site.at("etc/cni/net.d/10-podwire.conflist.moved")), content);
    }
}

#[test]
fn files_of_podwire_are_recognised_without_a_record() {
    for name in ["podwire-cni", "blue-cni"] {
        let site = site_with_type(name);
        let old = [b"\x7fELF ", netconf::DEFAULT_RUN_DIR.as_bytes(), b" version 0"].concat();
        fs::write(site.at("programs/podwire-cni"), &old).unwrap();
        site.installer().install().unwrap();
        site.upgrade("version 2");
        // A different network name gives a different config.
        let text = text(&site.conflist()).replace("\"podwire\"", "\"earlier\"");
        fs::write(site.conflist(), text).unwrap();
        fs::remove_dir_all(site.at("var")).unwrap();
        let done = site.installer().install().unwrap();
        // The origin of the loopback plugin is unknown without a record.
        assert_eq!(done.len(), 2, "{done:?}");
        assert!(all_ok(&site.installer()));
    }
    let site = site_with_type("podwire-cni");
    fs::write(site.conflist(), r#"{"name":"x","type":"podwire-cni"}"#).unwrap();
    assert_eq!(site.installer().install().unwrap().len(), 3);
}
