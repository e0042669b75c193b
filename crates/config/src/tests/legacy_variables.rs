//! The eleven legacy variables.

use super::*;

const LEGACY: [(&str, &str); 11] = [
    ("ETCD_HOST", "etcd-1.example"),
    ("CNI_VERSION", "0.3.1"),
    ("CNI_NAME", "blue"),
    ("CNI_TYPE", "blue-cni"),
    ("BRIDGE_NAME", "br-blue"),
    ("IP_SUBNET", "10.2.0.0/16"),
    ("IP_SUBNET_MARGIN", "8"),
    ("ETCD_PREFIX", "hosts/"),
    ("ETCD_COUNTER_KEY", "counter"),
    ("CNI_CONFIG_LOCATION", "/srv/net.d/10-blue.conf"),
    ("CNI_PLUGIN_LOCATION", "/srv/bin/blue-cni"),
];

#[test]
fn a1_the_legacy_variables_configure_the_agent() {
    let defaults = load("", &[], &[]).unwrap();
    let expected = Config {
        store: StoreChoice::Etcd(Etcd {
            endpoints: vec!["http://etcd-1.example:2379".to_owned()],
            prefix: "/hosts".to_owned(),
            counter: Some("counter".to_owned()),
            ca: None,
            cert: None,
            key: None,
            user: None,
            password: None,
            insecure: false,
        }),
        layout: KeyLayout::new("/hosts", Some("counter")),
        network: NetworkSettings {
            name: "blue".try_into().unwrap(),
            bridge: "br-blue".try_into().unwrap(),
            subnets: vec!["10.2.0.0/16".parse().unwrap()],
            ..defaults.network
        },
        cluster: ClusterConfig { margin: 8, ..defaults.cluster },
        plugin: PluginConfig { name: "blue-cni".to_owned(), version: cni::Version::V0_3_1 },
        delegates: AllowedDelegates {
            directories: ["/srv/bin", "/usr/lib/cni", "/usr/libexec/cni"].map(Into::into).to_vec(),
            ..defaults.delegates
        },
        install: Some(InstallConfig {
            plugin: std::env::current_exe().unwrap().with_file_name("podwire-cni"),
            plugin_dir: "/srv/bin".into(),
            config_dir: "/srv/net.d".into(),
            config_name: "10-blue.conf".to_owned(),
            template: None,
        }),
        ..defaults
    };
    let config = load("", &LEGACY, &[]).unwrap();
    assert_eq!(config, expected);
    assert_eq!(load(&config.to_toml(), &[], &[]).unwrap(), expected, "{}", config.to_toml());
    // The aliases in the table are exactly these variables.
    let mut known: Vec<&str> = KEYS.iter().flat_map(|key| key.aliases).copied().collect();
    known.sort_unstable();
    known.dedup();
    let mut all = LEGACY.map(|(name, _)| name);
    all.sort_unstable();
    assert_eq!(known, all);
}

#[test]
fn a1_each_legacy_variable_is_optional() {
    for (name, value) in LEGACY {
        let env: Vec<_> = LEGACY.into_iter().filter(|(other, _)| *other != name).collect();
        // Without CNI_TYPE the file name in CNI_PLUGIN_LOCATION differs from the type, which is an error.
        assert_eq!(load("", &env, &[]).is_ok(), name != "CNI_TYPE", "without {name}");
        let alone = load("", &[(name, value)], &[]);
        assert_eq!(alone.is_ok(), name != "CNI_PLUGIN_LOCATION", "{name} alone: {alone:?}");
    }
}

#[test]
fn a1_a_bad_legacy_value_is_reported_with_its_variable() {
    for (name, bad, allowed) in [
        ("ETCD_HOST", "http://a b", "https://etcd-1.example:2379"),
        ("CNI_VERSION", "0.9", "1.1.0"),
        ("CNI_NAME", "a/b", "letters, digits"),
        ("CNI_TYPE", "../x", "letters, digits"),
        ("BRIDGE_NAME", "a-name-that-is-too-long", "1 to 15 bytes"),
        ("IP_SUBNET", "10.2.0.1/16", "10.2.0.0/16"),
        ("IP_SUBNET", "fd00::/127", "too small"),
        ("IP_SUBNET", "10.2.0.0/16,10.3.0.0/16", "one IPv4 and one IPv6"),
        ("IP_SUBNET_MARGIN", "-8", "0 to 32"),
        ("IP_SUBNET_MARGIN", "14", "0 to 13"),
        ("ETCD_PREFIX", "a//b", "such as /podwire"),
        ("ETCD_PREFIX", "/", "such as /podwire"),
        ("ETCD_COUNTER_KEY", "a b", "without white space"),
        ("CNI_CONFIG_LOCATION", "net.d/10-blue.conflist", "absolute path of a file"),
        (
            "CNI_CONFIG_LOCATION",
            "/srv/net.d/blue.json",
            "ends in .conf or .conflist, or of a directory with a trailing '/'",
        ),
        (
            "CNI_CONFIG_LOCATION",
            "/srv/net.d",
            "ends in .conf or .conflist, or of a directory with a trailing '/'",
        ),
        ("CNI_CONFIG_LOCATION", "/", "a directory with a trailing '/'"),
        ("CNI_CONFIG_LOCATION", "/srv/..", "a directory with a trailing '/'"),
        ("CNI_CONFIG_LOCATION", "/srv/../", "a directory with a trailing '/'"),
        ("CNI_CONFIG_LOCATION", "/srv/x.conf/.", "a directory with a trailing '/'"),
        ("CNI_PLUGIN_LOCATION", "/", "a directory with a trailing '/'"),
        ("CNI_PLUGIN_LOCATION", "/srv/..", "a directory with a trailing '/'"),
        ("CNI_PLUGIN_LOCATION", "/srv/bin", "the path of a directory must end with '/'"),
        ("CNI_PLUGIN_LOCATION", "bin/blue-cni", "absolute path of a file"),
        ("CNI_PLUGIN_LOCATION", "/srv/bin/red-cni", "both must be equal"),
    ] {
        let env = LEGACY.map(|(other, value)| if other == name { (other, bad) } else { (other, value) });
        let all = problems(load("", &env, &[]));
        assert_eq!(all.len(), 1, "{name} {bad}: {all:#?}");
        for part in [&format!("variable {name}: "), &format!("{bad:?}"), allowed] {
            assert!(all[0].contains(part), "{name} {bad}: {:?} lacks {part:?}", all[0]);
        }
    }
}

#[test]
fn a1_podwire_variables_override_legacy_ones_and_flags_override_both() {
    let env = [("IP_SUBNET", "10.1.0.0/16"), ("PODWIRE_NETWORK_SUBNETS", "10.2.0.0/16")];
    assert_eq!(load("", &env, &[]).unwrap().network.subnet_list(), "10.2.0.0/16");
    assert_eq!(
        load("", &env, &["--network-subnet", "10.3.0.0/16"]).unwrap().network.subnet_list(),
        "10.3.0.0/16"
    );
    let file = "[network]\nsubnets = [\"10.4.0.0/16\"]";
    assert_eq!(load(file, &env[..1], &[]).unwrap().network.subnet_list(), "10.1.0.0/16");
    let env = [("CNI_CONFIG_LOCATION", "/srv/a.conflist"), ("PODWIRE_INSTALL_CONFIG_NAME", "b.conflist")];
    let install = load("", &env, &[]).unwrap().install.unwrap();
    assert_eq!(
        (install.config_dir.as_path(), install.config_name.as_str()),
        (Path::new("/srv"), "b.conflist")
    );
}

#[test]
fn one_variable_can_hold_subnets_of_both_families() {
    let config =
        load("", &[("IP_SUBNET", "10.2.0.0/16, fd00:2::/64"), ("IP_SUBNET_MARGIN", "8")], &[]).unwrap();
    assert_eq!(config.network.subnet_list(), "10.2.0.0/16,fd00:2::/64");
}

#[test]
fn slashes_around_the_legacy_prefix_are_optional() {
    for given in ["hosts", "/hosts", "hosts/", "/hosts/"] {
        assert_eq!(load("", &[("ETCD_PREFIX", given)], &[]).unwrap().layout.prefix(), "/hosts", "{given}");
    }
}

#[test]
fn a_legacy_location_enables_the_installation_unless_disabled() {
    let directory = tempfile::tempdir().unwrap();
    let existing = format!("{}/", directory.path().display());
    for given in [existing.as_str(), "/nonexistent/cni/"] {
        let path = Path::new(given);
        let env = [("CNI_CONFIG_LOCATION", given), ("CNI_PLUGIN_LOCATION", given)];
        let install = load("", &env, &[]).unwrap().install.unwrap();
        assert_eq!((install.config_dir.as_path(), install.plugin_dir.as_path()), (path, path));
        assert_eq!(install.config_name, "10-podwire.conflist");
        for flag in ["--no-install", "--install=false"] {
            assert_eq!(load("", &env, &[flag]).unwrap().install, None);
        }
        assert_eq!(load("[install]\nenabled = false", &env, &[]).unwrap().install, None);
    }
    // The path means a file, even if a directory with this name exists.
    let path = directory.path().join("10-x.conflist");
    fs::create_dir(&path).unwrap();
    let install = load("", &[("CNI_CONFIG_LOCATION", path.to_str().unwrap())], &[]).unwrap().install.unwrap();
    assert_eq!((install.config_dir.as_path(), &*install.config_name), (directory.path(), "10-x.conflist"));
    let config = load("", &[("CNI_PLUGIN_LOCATION", "/srv/bin/podwire-cni")], &[]).unwrap();
    assert_eq!(config.install.unwrap().plugin_dir, Path::new("/srv/bin"));
}

/// Runtimes set these variables for plugins, and the agent may inherit them.
#[test]
fn variables_of_the_cni_protocol_are_ignored() {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_ARGS", "x"),
        ("CNI_PATH", "x"),
        ("CNI_IFNAME", "?"),
        ("ETCD_PORT", "tcp://1"),
    ];
    assert_eq!(load("", &env, &[]).unwrap(), load("", &[], &[]).unwrap());
}
