use types::Severity;

use super::*;

const DEBIAN: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
"#;

/// Detects runtimes with these files below the root.
fn detect(files: &[(&str, &str)]) -> Runtimes {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    Runtimes::detect(root.path())
}

fn chosen(files: &[(&str, &str)]) -> [String; 2] {
    let Directories { plugins, configs } = detect(files).choose();
    [plugins, configs].map(|path| path.display().to_string())
}

#[test]
fn b17_without_a_runtime_the_default_directories_are_chosen() {
    assert_eq!(detect(&[]), Runtimes::default());
    assert_eq!(detect(&[]).choose(), Directories::default());
    assert_eq!(chosen(&[(CONTAINERD, "version = 2\n")]), [PLUGIN_DIR, CONFIG_DIR]);
    assert_eq!(
        chosen(&[(CRIO, "[crio.network]\nnetwork_dir = \"/etc/cni/net.d/\"\n")]),
        [PLUGIN_DIR, CONFIG_DIR]
    );
}

#[test]
fn b17_all_versions_of_containerds_config_are_parsed() {
    assert_eq!(chosen(&[(CONTAINERD, DEBIAN)]), ["/usr/lib/cni", CONFIG_DIR]);
    let v1 = "[plugins.cri.cni]\nbin_dir = \"/b/\"\nconf_dir = \"/c\"\n";
    assert_eq!(chosen(&[(CONTAINERD, v1)]), ["/b", "/c"]);
    let v3 =
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = ''\nbin_dirs = ['/a', '/b']\n";
    assert_eq!(chosen(&[(CONTAINERD, v3)]), ["/a", CONFIG_DIR]);
}

#[test]
fn b17_imports_of_containerd_and_drop_ins_of_crio_have_priority() {
    let main = format!("imports = [\"conf.d/*.toml\"]\n{DEBIAN}");
    let import = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/imported\"\n";
    let files = [
        (CONTAINERD, main.as_str()),
        ("etc/containerd/conf.d/1.toml", import),
        ("etc/containerd/conf.d/1.bak", "]"),
    ];
    assert_eq!(chosen(&files), ["/imported", CONFIG_DIR]);
    let drop_in = "[crio.network]\nplugin_dirs = [\"/late\"]\n";
    let files =
        [(CRIO, "[crio.network]\nplugin_dirs = [\"/early\"]\n"), ("etc/crio/crio.conf.d/10.conf", drop_in)];
    assert_eq!(chosen(&files), ["/late", CONFIG_DIR]);
    assert_eq!(chosen(&files[1..]), ["/late", CONFIG_DIR]);
}

#[test]
fn b17_a_containerd_without_cri_is_ignored() {
    // Docker's package.
    let text = format!("disabled_plugins = [\"cri\"]\n{DEBIAN}");
    assert_eq!(detect(&[(CONTAINERD, &text)]), Runtimes::default());
}

#[test]
fn b17_two_runtimes_get_a_common_directory_or_a_warning() {
    let both = "[crio.network]\nplugin_dirs = [\"/opt/cni/bin\", \"/usr/lib/cni/\"]\n";
    assert_eq!(chosen(&[(CONTAINERD, DEBIAN), (CRIO, both)]), ["/usr/lib/cni", CONFIG_DIR]);

    let runtimes = detect(&[(CONTAINERD, DEBIAN), (CRIO, "[crio]\n")]);
    let directories = runtimes.choose();
    assert_eq!(directories.plugins, Path::new("/usr/lib/cni"));
    let mismatches = runtimes.mismatches(&directories);
    assert_eq!(mismatches.len(), 1, "{mismatches:?}");
    for part in ["CRI-O uses /opt/cni/bin", "plugin_dirs = [\"/usr/lib/cni\"]", "etc/crio/crio.conf"] {
        assert!(mismatches[0].contains(part), "{part}: {mismatches:?}");
    }
}

#[test]
fn b17_unused_directories_and_unreadable_files_are_reported() {
    let runtimes = detect(&[(CONTAINERD, DEBIAN)]);
    assert_eq!(runtimes.mismatches(&runtimes.choose()), Vec::<String>::new());
    let mismatches =
        runtimes.mismatches(&Directories { plugins: PLUGIN_DIR.into(), configs: "/elsewhere".into() });
    assert!(mismatches[0].contains("set bin_dir = \"/opt/cni/bin\" in "), "{mismatches:?}");
    assert!(mismatches[1].contains("set conf_dir = \"/elsewhere\" in "), "{mismatches:?}");

    let runtimes = detect(&[(CONTAINERD, "version = [")]);
    assert_eq!(runtimes.choose(), Directories::default());
    assert_eq!(runtimes.mismatches(&runtimes.choose()), Vec::<String>::new());
    let findings = runtimes.findings(Path::new(CONFIG_DIR), Path::new("/opt/cni/bin/podwire-cni"));
    assert_eq!((findings.len(), findings[0].severity), (1, Severity::Degraded), "{findings:?}");
    assert!(findings[0].message.contains("containerd/config.toml: "), "{findings:?}");
}

#[test]
fn b17_an_invalid_drop_in_does_not_hide_the_runtime() {
    let main = format!("imports = [\"conf.d/*.toml\"]\n{DEBIAN}");
    let runtimes = detect(&[(CONTAINERD, &main), ("etc/containerd/conf.d/1.toml", "version = [")]);
    assert_eq!(runtimes.choose().plugins, Path::new("/usr/lib/cni"));
    assert!(runtimes.unreadable.len() == 1 && runtimes.unreadable[0].file.ends_with("conf.d/1.toml"));
    let crio = "[crio.network]\nplugin_dirs = [\"/early\"]\n";
    let runtimes = detect(&[(CRIO, crio), ("etc/crio/crio.conf.d/10.conf", "]")]);
    assert_eq!((runtimes.choose().plugins.as_path(), runtimes.unreadable.len()), (Path::new("/early"), 1));
}

#[test]
fn b17_missing_plugins_of_a_runtime_are_a_condition_with_a_working_fix() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["installed", "net.d"] {
        fs::create_dir(at(name)).unwrap();
    }
    let plugin = at("installed/podwire-cni");
    for name in ["podwire-cni", "loopback", "chained"] {
        fs::write(at("installed").join(name), name).unwrap();
    }
    let list = r#"{"name": "n", "plugins": [{"type": "podwire-cni"}, {"type": "chained"}]}"#;
    fs::write(at("net.d/10-podwire.conflist"), list).unwrap();
    let config = |bin: &str| {
        let table = "[plugins.\"io.containerd.grpc.v1.cri\".cni]";
        format!("version = 2\n{table}\nbin_dir = {:?}\nconf_dir = {:?}\n", at(bin), at("net.d"))
    };
    let findings =
        |bin: &str, configs: &str| detect(&[(CONTAINERD, &config(bin))]).findings(&at(configs), &plugin);
    assert_eq!(findings("installed", "net.d"), []);
    // This runtime does not use the config, and reports that it has no network.
    assert_eq!(findings("elsewhere", "other.d"), []);
    let lacking = findings("elsewhere", "net.d");
    assert_eq!((lacking.len(), lacking[0].severity), (1, Severity::NotReady), "{lacking:?}");
    for part in [
        "does not find podwire-cni, chained, loopback in ".to_owned(),
        format!("set bin_dir = {:?} in ", at("installed")),
        "config.toml, table [plugins.\"io.containerd.grpc.v1.cri\".cni], and restart containerd".to_owned(),
    ] {
        assert!(lacking[0].message.contains(&part), "{part}: {lacking:?}");
    }
    // containerd can configure the loopback interface itself.
    let internal = format!("{}use_internal_loopback = true\n", config("elsewhere"));
    let without_loopback = detect(&[(CONTAINERD, &internal)]).findings(&at("net.d"), &plugin);
    assert!(
        without_loopback[0].message.contains("does not find podwire-cni, chained in "),
        "{without_loopback:?}"
    );
    // The other runtime has all plugins.
    let crio =
        format!("[crio.network]\nplugin_dirs = [{:?}]\nnetwork_dir = {:?}\n", at("installed"), at("net.d"));
    let both = detect(&[(CONTAINERD, &config("elsewhere")), (CRIO, &crio)]).findings(&at("net.d"), &plugin);
    assert_eq!((both.len(), both[0].severity), (1, Severity::Degraded), "{both:?}");
    let fix = lacking[0].fix.as_deref().unwrap();
    assert!(std::process::Command::new("sh").args(["-c", fix]).status().unwrap().success(), "{fix}");
    assert_eq!(findings("elsewhere", "net.d"), []);
    // An operator copied only the plugin.
    for name in ["loopback", "chained"] {
        fs::remove_file(at("elsewhere").join(name)).unwrap();
        let lacking = findings("elsewhere", "net.d");
        assert_eq!((lacking.len(), lacking[0].severity), (1, Severity::NotReady), "{lacking:?}");
        let fix = lacking[0].fix.as_deref().unwrap();
        assert!(std::process::Command::new("sh").args(["-c", fix]).status().unwrap().success(), "{fix}");
        assert_eq!(fs::read_to_string(at("elsewhere").join(name)).unwrap(), name);
    }
    // Without a file to copy there is no command, and no advice that would not help.
    let remove = |name: &str| {
        for dir in ["installed", "elsewhere"] {
            fs::remove_file(at(dir).join(name)).unwrap();
        }
    };
    remove("chained");
    let lacking = findings("elsewhere", "net.d");
    assert_eq!(lacking[0].fix, None, "{lacking:?}");
    assert!(lacking[0].message.ends_with("install chained there: this host has no copy"), "{lacking:?}");
    // Podwire's plugin works as `loopback`.
    fs::write(at("net.d/10-podwire.conflist"), list.replace("chained", "podwire-cni")).unwrap();
    remove("loopback");
    let lacking = findings("elsewhere", "net.d");
    assert!(!lacking[0].message.contains("set bin_dir"), "{lacking:?}");
    let fix = lacking[0].fix.as_deref().unwrap();
    assert!(std::process::Command::new("sh").args(["-c", fix]).status().unwrap().success(), "{fix}");
    assert_eq!(fs::read_to_string(at("elsewhere/loopback")).unwrap(), "podwire-cni");
    assert_eq!(findings("elsewhere", "net.d"), []);
}

#[test]
fn b17_the_name_of_containerds_table_depends_on_its_version() {
    for (text, table) in [
        ("", "plugins.\"cri\".cni"),
        ("version = 2\n", "plugins.\"io.containerd.grpc.v1.cri\".cni"),
        ("version = 3\n", "plugins.\"io.containerd.cri.v1.runtime\".cni"),
        (
            "version = 3\n[plugins.'io.containerd.grpc.v1.cri'.cni]\n",
            "plugins.\"io.containerd.grpc.v1.cri\".cni",
        ),
    ] {
        assert_eq!(detect(&[(CONTAINERD, text)]).found[0].table, table, "{text}");
    }
}
