use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::{Args, Command, FromArgMatches};
use types::AttachMode;

use super::*;

mod legacy_variables;
mod nodes;
mod reference;

/// Loads a configuration from a file, variables and flags. The file is always named, so the host's config file is not read.
fn load(file: &str, env: &[(&str, &str)], flags: &[&str]) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.toml");
    fs::write(&path, file).unwrap();
    let mut flags = parse(flags).unwrap();
    flags.config = Some(path);
    Config::load(&flags, variables(env))
}

fn parse(flags: &[&str]) -> Result<Flags, clap::Error> {
    let command = Flags::augment_args(Command::new("agent").no_binary_name(true));
    Flags::from_arg_matches(&command.try_get_matches_from(flags)?)
}

fn variables(env: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    env.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn problems(result: Result<Config, ConfigError>) -> Vec<String> {
    result.unwrap_err().problems.iter().map(ToString::to_string).collect()
}

#[test]
fn paths_of_an_invalid_configuration_are_known_if_they_can_be_read() {
    let paths = |text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.toml");
        fs::write(&path, text).unwrap();
        let flags = Flags { config: Some(path), ..Flags::default() };
        Config::paths(&flags, Vec::new()).map(|paths| (paths.run_dir, paths.socket))
    };
    let wanted = ("/run/other".into(), "/run/other/agent.sock".into());
    assert_eq!(paths("run_dir = '/run/other'\nworkers = 'many'\n"), Some(wanted));
    let default = ("/run/podwire".into(), "/run/podwire/agent.sock".into());
    assert_eq!(paths("workers = 'many'\n"), Some(default));
    assert_eq!(
        (paths("run_dir = 'relative'\n"), paths("run_dir = '/run/other'\nworkers = \n")),
        (None, None)
    );
}

#[test]
fn defaults_are_a_complete_configuration() {
    let config = load("", &[], &[]).unwrap();
    assert!(!config.node.is_empty());
    assert_eq!(config.run_dir, Path::new("/run/podwire"));
    assert_eq!(config.state_dir, Path::new("/var/lib/podwire"));
    assert_eq!(config.socket, Path::new("/run/podwire/agent.sock"));
    assert_eq!(config.store, StoreChoice::Embedded);
    assert_eq!((config.log_format, config.log_level), (LogFormat::Text, LogLevel::Info));
    assert_eq!(config.metrics, None);
    assert_eq!((config.workers, config.reconcile), (16, Duration::from_secs(30)));
    assert_eq!(config.network.name.as_str(), "podwire");
    assert_eq!(config.network.mode, AttachMode::Routed);
    assert_eq!(config.network.bridge.as_str(), "podwire0");
    assert_eq!(config.network.subnet_list(), "10.83.0.0/16,fd00:88::/64");
    assert_eq!((config.network.mtu, config.network.masquerade), (None, true));
    assert_eq!(config.install, None);
    assert_eq!(
        config.delegates.directories,
        ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"].map(Path::new)
    );
    assert_eq!(config.delegates.plugins, ["dhcp", "host-local", "static"]);
    assert_eq!(config.plugin, PluginConfig::default());
    assert_eq!((config.node_interface, config.node_addresses), (None, Vec::new()));
    assert_eq!(config.layout, KeyLayout::new("/podwire", None));
    let cluster = ClusterConfig {
        margin: 0,
        transport: Transport::Auto,
        vni: 4077,
        vxlan_port: 4789,
        tunnel: "pwvx".to_owned(),
        tunnel_checksum: TunnelChecksum::Auto,
        path_check: PathCheck::Auto,
        accept_forward: false,
    };
    assert_eq!(config.cluster, cluster);
}

#[test]
fn an_explicitly_named_file_must_exist() {
    let flags = Flags { config: Some("/nonexistent/agent.toml".into()), ..Flags::default() };
    let text = Config::load(&flags, []).unwrap_err().to_string();
    assert!(text.contains("flag --config") && text.contains("/nonexistent/agent.toml"), "{text}");
    let text = Config::load(&Flags::default(), variables(&[("PODWIRE_CONFIG", "/nonexistent/b.toml")]));
    let text = text.unwrap_err().to_string();
    assert!(text.contains("variable PODWIRE_CONFIG") && text.contains("/nonexistent/b.toml"), "{text}");
}

#[test]
fn a1_flag_over_variable_over_file_over_default() {
    let file = "workers = 2\nlog_level = \"warn\"\nreconcile_seconds = 5\n[network]\nmtu = 1400\n";
    let env = [("PODWIRE_WORKERS", "3"), ("PODWIRE_LOG_LEVEL", "error"), ("PODWIRE_NETWORK_MTU", "none")];
    let config = load(file, &env, &["--workers", "4"]).unwrap();
    assert_eq!(config.workers, 4);
    assert_eq!(config.log_level, LogLevel::Error);
    assert_eq!(config.reconcile, Duration::from_secs(5));
    assert_eq!(config.network.mtu, None);
    assert_eq!(config.log_format, LogFormat::Text);
}

/// For each key a value that differs from its default, in its normal form.
const NON_DEFAULT: &[(&str, &str)] = &[
    ("node", "n-1.example"),
    ("run_dir", "/tmp/r"),
    ("state_dir", "/tmp/s"),
    ("socket", "/tmp/x.sock"),
    ("store", "etcd"),
    ("store_dir", "/tmp/st"),
    ("node_interface", "eth7"),
    ("node_addresses", "192.0.2.7,2001:db8::7"),
    ("log_format", "json"),
    ("log_level", "debug"),
    ("metrics", "[::1]:9100"),
    ("workers", "256"),
    ("reconcile_seconds", "3600"),
    ("etcd.endpoints", "https://etcd-1:2379,https://[2001:db8::1]:4001"),
    ("etcd.prefix", "/a/b"),
    ("etcd.counter_key", "elsewhere"),
    ("etcd.ca", "/tmp/ca.pem"),
    ("etcd.cert", "/tmp/cert.pem"),
    ("etcd.key", "/tmp/key.pem"),
    ("etcd.insecure", "true"),
    ("network.name", "blue"),
    ("network.mode", "bridge"),
    ("network.bridge", "br-blue"),
    ("network.subnets", "10.1.0.0/24,fd01::/64"),
    ("network.mtu", "1280"),
    ("network.connections_per_pod", "4096"),
    ("network.masquerade", "false"),
    ("network.margin", "4"),
    ("network.transport", "vxlan"),
    ("network.vni", "16777215"),
    ("network.vxlan_port", "8472"),
    ("network.tunnel", "fourteen-bytes"),
    ("network.tunnel_checksum", "off"),
    ("network.path_check", "off"),
    ("network.accept_forward", "true"),
    ("delegate.directories", "/tmp/d1,/tmp/d2"),
    ("delegate.plugins", "whereabouts"),
    ("install.enabled", "true"),
    ("install.plugin", "/tmp/p/podwire-cni"),
    ("install.plugin_dir", "/tmp/bin"),
    ("install.type", "blue-cni"),
    ("install.cni_version", "0.4.0"),
    ("install.config_dir", "/tmp/net.d"),
    ("install.config_name", "05-blue.conflist"),
    ("install.template", "/tmp/t.json"),
];

/// Keys that are secret or contradict other keys. They have separate tests.
const EXCLUDED: &[&str] = &["etcd.user", "etcd.password", "etcd.password_file"];

#[test]
fn a1_every_key_can_be_set_in_every_layer() {
    assert_eq!(
        NON_DEFAULT.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        KEYS.iter().map(|k| k.name).filter(|name| !EXCLUDED.contains(name)).collect::<Vec<_>>()
    );
    let key = |name: &str| Key::find(name).unwrap();
    let env: Vec<(String, &str)> =
        NON_DEFAULT.iter().map(|(name, value)| (key(name).variable(), *value)).collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let by_env = load("", &env, &[]).unwrap();
    let flags: Vec<String> =
        NON_DEFAULT.iter().map(|(name, value)| format!("--{}={value}", key(name).flag)).collect();
    let by_flags = load("", &[], &flags.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    assert_eq!(by_env, by_flags);
    let by_file = load(&by_env.to_toml(), &[], &[]).unwrap();
    assert_eq!(by_env, by_file, "{}", by_env.to_toml());
    for (name, value) in NON_DEFAULT {
        assert_eq!((key(name).show)(&by_env).as_deref(), Some(*value), "{name}");
    }
}

#[test]
fn printed_defaults_parse_to_the_same_configuration() {
    let config = load("", &[], &[]).unwrap();
    assert_eq!(load(&config.to_toml(), &[], &[]).unwrap(), config);
}

#[test]
fn list_flags_repeat_and_install_needs_no_value() {
    let config =
        load("", &[], &["--network-subnet", "10.1.0.0/24", "--network-subnet", "fd01::/64", "--install"]);
    let config = config.unwrap();
    assert_eq!(config.network.subnet_list(), "10.1.0.0/24,fd01::/64");
    let install = config.install.unwrap();
    assert_eq!(install.plugin, std::env::current_exe().unwrap().with_file_name("podwire-cni"));
    let file = "[install]\nenabled = true";
    assert!(load(file, &[], &[]).unwrap().install.is_some());
    assert!(load(file, &[], &["--no-install"]).unwrap().install.is_none());
    assert!(load(file, &[], &["--install=false"]).unwrap().install.is_none());
    assert!(parse(&["--install", "--no-install"]).is_err());
    assert!(parse(&["--nonsense"]).is_err());
    Flags::augment_args(Command::new("agent")).debug_assert();
}

#[test]
fn a1_a_bad_value_is_reported_with_origin_and_allowed_values() {
    let long = format!("/{}", "x".repeat(120));
    for (key, value, expect) in [
        ("node", "", "1 to 253"),
        ("node", "a b", "1 to 253"),
        ("run_dir", "run", "absolute"),
        ("state_dir", "/run/podwire/", "must not be run_dir"),
        ("socket", long.as_str(), "107"),
        ("run_dir", long.as_str(), "107"),
        ("store", "etcd", "requires etcd.endpoints (ETCD_HOST)"),
        ("store", "file", "must be embedded or etcd"),
        ("log_format", "xml", "text or json"),
        ("log_level", "trace", "error, warn, info or debug"),
        ("metrics", "9100", "127.0.0.1:9100"),
        ("metrics", "127.0.0.1:0", "127.0.0.1:9100"),
        ("workers", "0", "1 to 256"),
        ("workers", "257", "1 to 256"),
        ("workers", "many", "1 to 256"),
        ("reconcile_seconds", "0", "1 to 3600"),
        ("network.name", "a/b", "letters, digits"),
        ("network.mode", "vlan", "routed or bridge"),
        ("network.bridge", "a-name-that-is-too-long", "15 bytes"),
        ("network.bridge", "br%d", "'%'"),
        ("network.bridge", "all", "settings for all links"),
        ("network.bridge", "default", "settings for all links"),
        ("network.bridge", "lo", "not a bridge"),
        ("network.subnets", "", "CIDRs"),
        ("network.subnets", "10.83.0.1/16", "10.83.0.0/16"),
        ("network.subnets", "10.83.0.0/31", "too small"),
        ("network.subnets", "fd00::/127", "too small"),
        ("network.subnets", "10.1.0.0/24,10.2.0.0/24", "one IPv4 and one IPv6"),
        ("network.subnets", "127.0.0.0/8", "loopback"),
        ("network.subnets", "fe80::/64", "link-local"),
        ("network.subnets", "ff00::/64", "multicast"),
        ("network.subnets", "169.254.0.0/17", "link-local"),
        ("network.subnets", "239.1.0.0/16", "multicast"),
        ("network.subnets", "240.0.0.0/16", "a reserved address"),
        ("network.subnets", "255.255.0.0/16", "a broadcast address"),
        ("network.subnets", "192.0.0.0/2", "a multicast address"),
        ("network.subnets", "0.0.0.0/8", "an unspecified address"),
        ("network.subnets", "::ffff:10.2.0.0/112", "a mapped IPv4 address"),
        ("network.subnets", "::/64", "an unspecified address"),
        ("network.subnets", "fe00::/8", "a link-local address"),
        ("network.mtu", "67", "68 to 65535"),
        ("network.connections_per_pod", "0", "1 to 4294967295"),
        ("network.mtu", "70000", "68 to 65535"),
        ("network.mtu", "1279", "1280"),
        ("network.masquerade", "maybe", "true or false"),
        ("delegate.directories", "/opt/cni/bin,cni", "absolute paths"),
        ("delegate.directories", "/a:/b", "without ':'"),
        ("delegate.plugins", "../host-local", "a file name"),
        ("delegate.plugins", "host-local,", "a file name"),
        ("delegate.plugins", "host-local,podwire-cni", "install.type"),
        ("install.enabled", "1", "true or false"),
        ("install.plugin", "podwire-cni", "absolute"),
        ("install.config_name", "../x.conflist", ".conflist"),
        ("install.config_name", "10-podwire.json", ".conflist or .conf"),
        ("install.type", "", "1 to 100 letters"),
        ("install.type", "a/b", "1 to 100 letters"),
        ("install.type", "loopback", "another plugin"),
        ("install.cni_version", "1.2.0", "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"),
        ("install.config_name", ".conflist", ".conflist"),
    ] {
        let entry = Key::find(key).unwrap();
        let all = problems(load("", &[(&entry.variable(), value)], &[]));
        let text = all.join("\n");
        assert_eq!(all.len(), 1, "{key} {value}: {text}");
        for part in [&format!("variable {}", entry.variable()), key, value, expect] {
            assert!(text.contains(part), "{key} {value:?}: {text:?} lacks {part:?}");
        }
    }
}

#[test]
fn delegates_default_to_the_plugin_directory() {
    let delegates = |env: &[(&str, &str)]| load("", env, &[]).unwrap().delegates;
    let location = [("CNI_PLUGIN_LOCATION", "/host/bin/podwire-cni")];
    assert_eq!(delegates(&location).directories[0], Path::new("/host/bin"));
    let none = [("PODWIRE_DELEGATE_PLUGINS", "none"), ("PODWIRE_DELEGATE_DIRECTORIES", "none")];
    assert_eq!(delegates(&none).plugins, Vec::<String>::new());
    assert_eq!(delegates(&none).directories[0], Path::new("/opt/cni/bin"));
}

#[test]
fn an_mtu_below_1280_is_valid_without_ipv6() {
    let flags = ["--network-subnet", "10.1.0.0/24", "--network-mtu", "600"];
    assert_eq!(load("", &[], &flags).unwrap().network.mtu, Some(600));
}

#[test]
fn all_problems_are_reported_together_with_their_lines() {
    let file = "workers = \"x\"\nnode = 5\nwrokers = 1\n\n[network]\nmtu = true\nsubnets = [1]\nvlan = 3\n[netwrok]\n";
    let error = load(file, &[("PODWIRE_WORKER", "1"), ("PODWIRE_LOG_FORMAT", "xml")], &["--store", "disk"])
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(error.problems.len(), 10, "{text}");
    for part in [
        "agent.toml:1: workers \"x\" must be a number from 1 to 256",
        "agent.toml:2: node \"5\" must be a string",
        "agent.toml:3: unknown key \"wrokers\"; did you mean \"workers\"?",
        "agent.toml:6: network.mtu \"true\" must be a whole number",
        "agent.toml:7: network.subnets \"[1]\" must be a list of strings",
        "agent.toml:8: unknown key \"network.vlan\"; `podwire agent --print-config-sample` lists all keys",
        "agent.toml:9: unknown key \"netwrok\"; did you mean \"network\"?",
        "unknown variable PODWIRE_WORKER; did you mean PODWIRE_WORKERS?",
        "variable PODWIRE_LOG_FORMAT: log_format \"xml\" must be text or json",
        "flag --store: store \"disk\" must be embedded or etcd",
    ] {
        assert!(text.contains(part), "lacks {part:?}:\n{text}");
    }
}

#[test]
fn a_misspelt_key_in_the_wrong_table_is_recognized() {
    for (file, hint) in [
        ("[install]\nmargn = 6", "unknown key \"install.margn\"; did you mean \"network.margin\"?"),
        ("[install]\nmargin = 6", "unknown key \"install.margin\"; did you mean \"network.margin\"?"),
        ("[network]\nmargn = 6", "unknown key \"network.margn\"; did you mean \"network.margin\"?"),
    ] {
        let text = problems(load(file, &[], &[])).join("\n");
        assert!(text.contains(hint), "lacks {hint:?}:\n{text}");
    }
}

#[test]
fn a_bad_value_is_reported_even_if_overridden() {
    let all = problems(load("workers = 0", &[], &["--workers", "4"]));
    assert_eq!(all.len(), 1);
    assert!(all[0].contains("agent.toml:1"), "{all:?}");
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let text = problems(load("workers = 4\nnode = \n", &[], &[])).join("\n");
    assert!(text.contains("agent.toml:2: invalid TOML: "), "{text}");
    let text = problems(load("workers = 4\nworkers = 5\n", &[], &[])).join("\n");
    assert!(text.contains("agent.toml:2") && text.contains("duplicate"), "{text}");
}

#[test]
fn unrelated_variables_are_ignored() {
    let env =
        [("PATH", "/bin"), ("PODWIRE_CNI", "/x"), ("PODWIRE_LAB_NODE", "default/n1"), ("XPODWIRE_A", "1")];
    assert!(load("", &env, &[]).is_ok());
    let bytes = OsString::from_vec(vec![b'/', 0xff]);
    let error = Config::load(&Flags::default(), [("PODWIRE_RUN_DIR".into(), bytes)]).unwrap_err();
    assert!(error.to_string().contains("variable PODWIRE_RUN_DIR"), "{error}");
}

#[test]
fn the_network_of_a_request_has_the_configured_settings() {
    let flags = ["--network-mode", "bridge", "--network-mtu", "1300", "--network-masquerade=false"];
    let config = load("", &[], &flags).unwrap();
    let network = netconf::Network::whole(&config.network).unwrap();
    let conf = network.conf();
    assert_eq!(conf.mode, AttachMode::Bridge);
    assert_eq!(conf.bridge, config.network.bridge);
    assert_eq!((conf.mtu, conf.ip_masq), (Some(1300), false));
    assert_eq!(conf.cluster, config.network.subnets);
    assert_eq!(netconf::Network::whole(&load("", &[], &[]).unwrap().network).unwrap().mtu(), None);
}

#[test]
fn names_flags_and_variables_of_keys_are_unique() {
    let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
    let flags: BTreeSet<_> = KEYS.iter().map(|key| key.flag).collect();
    let variables: BTreeSet<_> = KEYS.iter().map(Key::variable).collect();
    assert_eq!((names.len(), flags.len(), variables.len()), (KEYS.len(), KEYS.len(), KEYS.len()));
    let aliases = KEYS.iter().flat_map(|key| key.aliases);
    assert!(aliases.into_iter().all(|alias| !variables.contains(*alias)));
    for key in KEYS {
        // Two flags are shorter than this rule.
        let rule = key.name.replace(['.', '_'], "-");
        assert!(key.flag == rule || ["network-subnet", "install"].contains(&key.flag), "{}", key.flag);
    }
    let reference = reference();
    for key in KEYS {
        let row = reference.lines().find(|line| line.contains(&format!("| `{}` |", key.name))).unwrap();
        assert!(row.contains(&key.variable()) && row.contains(&format!("--{}", key.flag)), "{row}");
    }
}

#[test]
fn recorded_sample_in_deploy_matches_the_keys() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agent.toml");
    if std::env::var_os("PODWIRE_RECORD").is_some() {
        fs::write(&path, sample()).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, sample(), "PODWIRE_RECORD=1 cargo test -p config recorded");
    let config = load(&text, &[], &[]).unwrap();
    let installing = load("", &[], &["--install"]).unwrap();
    assert_eq!(config, installing, "only install.enabled may differ from the defaults");
    // The file must also be valid without comment marks, except for described defaults.
    let bare: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("# ") && !line.contains('…'))
        .map(|line| line.trim_start_matches('#'))
        .collect();
    assert_eq!(load(&bare.join("\n"), &[], &[]).unwrap(), config, "{bare:#?}");
}

#[test]
fn b17_the_configuration_does_not_depend_on_installed_runtimes() {
    let env = || variables(&[("PODWIRE_INSTALL_ENABLED", "true"), ("PODWIRE_INSTALL_CONFIG_DIR", "/set")]);
    let default = Config::load(&Flags::default(), env()).unwrap().install.unwrap();
    assert_eq!(default.plugin_dir, Path::new(PLUGIN_DIR));
    let detect = || Directories { plugins: "/detected".into(), configs: "/detected".into() };
    let config = Config::load_with(&Flags::default(), env(), detect).unwrap();
    let install = config.install.unwrap();
    assert_eq!(
        [install.plugin_dir, install.config_dir].map(|dir| dir.display().to_string()),
        ["/detected", "/set"]
    );
    // If nothing is installed, runtime configurations are not read.
    let must_not_run = || panic!("the configuration of a runtime was read");
    assert!(Config::load_with(&Flags::default(), variables(&[]), must_not_run).unwrap().install.is_none());
}
