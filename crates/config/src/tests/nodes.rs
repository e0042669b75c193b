//! Keys for clusters: the store, the blocks and the transport.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// The etcd configuration from these flags, or the problems.
fn etcd(flags: &[&str]) -> Result<Etcd, Vec<String>> {
    match load("", &[], flags) {
        Ok(config) => match config.store {
            StoreChoice::Etcd(etcd) => Ok(etcd),
            StoreChoice::Embedded => Err(vec!["embedded".to_owned()]),
        },
        error => Err(problems(error)),
    }
}

/// Expects a single problem that contains all parts.
fn refused(flags: &[&str], parts: &[&str]) {
    let all = problems(load("", &[], flags));
    assert_eq!(all.len(), 1, "{flags:?}: {all:#?}");
    for part in parts {
        assert!(all[0].contains(part), "{flags:?}: {:?} lacks {part:?}", all[0]);
    }
}

#[test]
fn endpoints_are_normalised_once() {
    for (given, normal) in [
        ("etcd-1", "http://etcd-1:2379"),
        ("ETCD-1.Example", "http://etcd-1.example:2379"),
        ("etcd_1:4001", "http://etcd_1:4001"),
        ("192.0.2.1", "http://192.0.2.1:2379"),
        ("192.0.2.1:2380", "http://192.0.2.1:2380"),
        ("[2001:DB8:0::1]", "http://[2001:db8::1]:2379"),
        ("[::1]:23", "http://[::1]:23"),
        ("http://etcd-1", "http://etcd-1:2379"),
        ("HTTPS://etcd-1:65535/", "https://etcd-1:65535"),
        ("https://[2001:db8::1]", "https://[2001:db8::1]:2379"),
        ("a, b ,c:1", "http://a:2379,http://b:2379,http://c:1"),
        // An endpoint without a scheme gets the common one. Duplicates are removed.
        ("a,https://b", "https://a:2379,https://b:2379"),
        ("a,A:2379,http://a/", "http://a:2379"),
    ] {
        let all = etcd(&["--etcd-endpoints", given]).unwrap_or_else(|e| panic!("{given}: {e:?}")).endpoints;
        assert_eq!(all.join(","), normal, "{given}");
    }
    let several = etcd(&["--etcd-endpoints", "a", "--etcd-endpoints", "[::1]"]).unwrap();
    assert_eq!(several.endpoints, ["http://a:2379", "http://[::1]:2379"]);
    let file = load("[etcd]\nendpoints = [\"a\", \"b:1\"]\n", &[], &[]).unwrap();
    let StoreChoice::Etcd(file) = file.store else { panic!("{file:?}") };
    assert_eq!(file.endpoints, ["http://a:2379", "http://b:1"]);
}

#[test]
fn bad_endpoints_are_refused() {
    for bad in [
        "",
        "a,",
        ",a",
        "a b",
        "a:0",
        "a:65536",
        "a:+1",
        "a:",
        "a:b",
        ":2379",
        "ftp://a",
        "http://",
        "http://a/v3",
        "http://a//",
        "2001:db8::1",
        "[2001:db8::1",
        "[2001:db8::1]2379",
        "[fe80::1%eth0]:2379",
        "[192.0.2.1]",
        "256.1.1.1",
        "10.1",
        "-a",
        "a..b",
        "a?b",
    ] {
        let flag = format!("--etcd-endpoints={bad}");
        refused(&[&flag], &["flag --etcd-endpoints: etcd.endpoints", bad, "etcd-1"]);
    }
    refused(&["--etcd-endpoints", "http://a,https://b"], &["all http or all https"]);
}

#[test]
fn certificates_imply_https() {
    let tls = |flags: &[&str]| etcd(&[&["--etcd-endpoints", "a"], flags].concat());
    assert_eq!(tls(&["--etcd-ca", "/ca"]).unwrap().endpoints, ["https://a:2379"]);
    let both = tls(&["--etcd-cert", "/c", "--etcd-key", "/k"]).unwrap();
    assert_eq!(both.endpoints, ["https://a:2379"]);
    assert_eq!((both.cert, both.key), (Some("/c".into()), Some("/k".into())));
    refused(
        &["--etcd-endpoints", "http://a", "--etcd-ca", "/ca"],
        &["etcd.endpoints", "must be https with etcd.ca"],
    );
    refused(
        &["--etcd-endpoints", "a", "--etcd-cert", "/c"],
        &["flag --etcd-cert", "/c", "requires etcd.key"],
    );
    refused(&["--etcd-endpoints", "a", "--etcd-key", "/k"], &["flag --etcd-key", "/k", "requires etcd.cert"]);
    refused(&["--etcd-endpoints", "a", "--etcd-ca", "ca.pem"], &["flag --etcd-ca", "absolute"]);
}

#[test]
fn endpoints_select_etcd_and_contradict_an_embedded_store() {
    assert!(etcd(&["--etcd-endpoints", "a"]).is_ok());
    assert!(etcd(&["--store", "etcd", "--etcd-endpoints", "a"]).is_ok());
    refused(
        &["--store", "embedded", "--etcd-endpoints", "a"],
        &["flag --store", "contradicts etcd.endpoints \"a\""],
    );
    let all = problems(load("store = \"embedded\"", &[("ETCD_HOST", "a")], &[]));
    assert!(all[0].contains("agent.toml:1") && all[0].contains("variable ETCD_HOST"), "{all:?}");
    // `none` unsets the value of a lower layer.
    let config = load("[etcd]\nendpoints = [\"a\"]", &[], &["--etcd-endpoints", "none"]).unwrap();
    assert_eq!(config.store, StoreChoice::Embedded);
    // The other etcd keys do not select etcd.
    let config = load("", &[], &["--etcd-prefix", "/x", "--etcd-user", "me"]).unwrap();
    assert_eq!((config.store, config.layout.prefix()), (StoreChoice::Embedded, "/x"));
}

#[test]
fn a4_the_prefix_consists_of_complete_segments() {
    for good in ["/podwire", "/a/b/c", "/hosts2", "/ä"] {
        let config = load("", &[], &["--etcd-endpoints", "a", "--etcd-prefix", good]).unwrap();
        assert_eq!(config.layout, KeyLayout::new(good, None));
    }
    let long = format!("/{}", "x".repeat(600));
    for bad in ["", "/", "podwire", "/podwire/", "//a", "/a//b", "/a b", "/a\n", &long] {
        refused(&["--etcd-prefix", bad], &["etcd.prefix", "such as /podwire"]);
    }
}

#[test]
fn the_counter_key_is_not_an_object_key() {
    let counter = |flags: &[&str]| {
        let config = load("", &[], &[&["--etcd-endpoints", "a"], flags].concat()).unwrap();
        let StoreChoice::Etcd(etcd) = config.store else { panic!("{:?}", config.store) };
        (etcd.counter, config.layout.counter().to_owned())
    };
    assert_eq!(counter(&[]), (None, "/podwire/counter".to_owned()));
    assert_eq!(counter(&["--etcd-prefix", "/x"]), (None, "/x/counter".to_owned()));
    assert_eq!(counter(&["--etcd-counter-key", "/podwire/counter"]).0, None);
    assert_eq!(counter(&["--etcd-counter-key", "n"]), (Some("n".to_owned()), "n".to_owned()));
    for bad in
        ["", "a b", "a/", "/podwire/network", "/podwire/nodes/a", "/podwire/blocks/x", "/podwire/alive/a"]
    {
        refused(&["--etcd-counter-key", bad], &["flag --etcd-counter-key: etcd.counter_key", bad]);
    }
}

#[test]
fn a_password_is_never_printed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str, content: &str| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let good = at("good", "s3cr3t word\n");
    let with = |flags: &[&str]| {
        load("", &[], &[&["--etcd-endpoints", "https://a", "--etcd-user", "me"], flags].concat())
    };
    assert!(!format!("{:?}", parse(&["--etcd-password", "s3cr3t"]).unwrap()).contains("s3cr3t"));
    for flags in [["--etcd-password", "s3cr3t word"], ["--etcd-password-file", &good]] {
        let config = with(&flags).unwrap();
        let shown = format!("{config:?}{}", config.to_toml());
        assert!(!shown.contains("s3cr3t"), "{shown}");
        let StoreChoice::Etcd(etcd) = config.store else { panic!("{shown}") };
        assert_eq!((etcd.user.as_deref(), etcd.password.unwrap().reveal()), (Some("me"), "s3cr3t word"));
    }
    let by_file = with(&["--etcd-password-file", &good]).unwrap();
    assert_eq!(load(&by_file.to_toml(), &[], &[]).unwrap(), by_file, "{}", by_file.to_toml());
    let by_text = with(&["--etcd-password", "s3cr3t"]).unwrap().to_toml();
    assert!(by_text.contains("# password is set (not shown)"), "{by_text}");
    // An invalid password is not printed either.
    let two_lines = at("two", "s3cr3t\nmore\n");
    for (file, flags) in [
        ("", ["--etcd-password", "s3cr3t\nmore"]),
        ("", ["--etcd-password-file", &two_lines]),
        ("[etcd]\npassword = [\"s3cr3t\"]", ["--etcd-user", "me"]),
    ] {
        let text = problems(load(file, &[], &flags)).join("\n");
        assert!(text.contains("etcd.password") && !text.contains("s3cr3t"), "{text}");
    }
    let empty = at("empty", "\n");
    let missing = directory.path().join("missing").display().to_string();
    let file = "--etcd-password-file";
    refused(
        &["--etcd-endpoints", "a", "--etcd-user", "me"],
        &["flag --etcd-user", "requires etcd.password or"],
    );
    refused(&["--etcd-endpoints", "a", "--etcd-password", "x"], &["etcd.password", "requires etcd.user"]);
    refused(&["--etcd-endpoints", "a", file, &good], &["etcd.password_file", "requires etcd.user"]);
    refused(&["--etcd-password", "x", file, &good], &["etcd.password_file", "set only one of them"]);
    refused(&[file, &empty], &[&empty, "contains no valid password"]);
    refused(&[file, &missing], &[&missing, "cannot be read"]);
    refused(&["--etcd-user", "a:b"], &["etcd.user", "a:b", "without ':'"]);
}

/// http is the default without a scheme, also in the legacy variable.
#[test]
fn a12_a_password_over_http_is_refused_unless_allowed() {
    let secret = ["--etcd-user", "me", "--etcd-password", "s3cr3t"];
    for endpoints in ["etcd-1", "http://etcd-1", "a,http://b"] {
        let flags = [&["--etcd-endpoints", endpoints][..], &secret].concat();
        refused(&flags, &["flag --etcd-endpoints", endpoints, "must be https", "etcd.insecure = true"]);
        let allowed = etcd(&[&flags[..], &["--etcd-insecure"]].concat()).unwrap();
        assert!(allowed.insecure && allowed.endpoints[0].starts_with("http://"), "{allowed:?}");
        let all = problems(load("", &[("ETCD_HOST", endpoints)], &secret));
        assert!(
            all.len() == 1 && all[0].contains("variable ETCD_HOST") && !all[0].contains("s3cr3t"),
            "{all:?}"
        );
        assert!(load("", &[("ETCD_HOST", endpoints), ("PODWIRE_ETCD_INSECURE", "true")], &secret).is_ok());
    }
    for safe in [&["--etcd-endpoints", "https://a"][..], &["--etcd-endpoints", "a", "--etcd-ca", "/ca"]] {
        assert!(etcd(&[safe, &secret].concat()).is_ok(), "{safe:?}");
    }
    assert!(!etcd(&["--etcd-endpoints", "a"]).unwrap().insecure);
}

#[test]
fn a12_a_password_file_readable_by_other_users_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let (password, config) =
        (at("password", "s3cr3t\n"), at("agent.toml", "[etcd]\npassword = \"s3cr3t\"\n"));
    let plain = at("plain.toml", "workers = 3\n");
    let secret = ["--etcd-endpoints", "https://a", "--etcd-user", "me"];
    let by_password =
        || load("", &[], &[&secret[..], &["--etcd-password-file", password.to_str().unwrap()]].concat());
    let by_config = |path: &Path| {
        let mut flags = parse(&secret).unwrap();
        flags.config = Some(path.to_owned());
        Config::load(&flags, Vec::new())
    };
    let set = |mode: u32, owner: u32| {
        for path in [&password, &config, &plain] {
            std::os::unix::fs::chown(path, Some(owner), None).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    let own_uid = rustix::process::geteuid().as_raw();
    for (mode, owner, command) in [
        (0o644, own_uid, "chmod 600"),
        (0o640, own_uid, "chmod 600"),
        (0o604, own_uid, "chmod 600"),
        (0o600, 65534, "chown root"),
    ] {
        set(mode, owner);
        for (load, path) in [(by_password(), &password), (by_config(&config), &config)] {
            let all = problems(load);
            assert!(all.len() == 1 && !all[0].contains("s3cr3t"), "{all:?}");
            assert!(all[0].contains(&format!("{command} {}", path.display())), "{mode:o}: {all:?}");
        }
        // The file contains no secret, but another owner could change it.
        let all = problems(by_config(&plain)).join("\n");
        assert!(all.contains("requires etcd.password"), "{all}");
        assert_eq!(all.contains("chown root"), owner != own_uid, "{all}");
    }
    set(0o666, own_uid);
    assert!(problems(by_config(&plain)).join("\n").contains("chmod go-w"));
    for mode in [0o600, 0o400] {
        set(mode, own_uid);
        assert!(by_password().is_ok() && by_config(&config).is_ok());
    }
}

#[test]
fn a12_a_fifo_as_password_file_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    refused(&["--etcd-password-file", path.to_str().unwrap()], &["not a regular file"]);
}

#[test]
fn a12_a_private_key_readable_by_other_users_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key.pem");
    fs::write(&key, "key").unwrap();
    let flags = ["--etcd-endpoints", "a", "--etcd-cert", "/c", "--etcd-key", key.to_str().unwrap()];
    let reported = |mode| {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        load("", &[], &flags).unwrap().exposed_key()
    };
    let finding = reported(0o644).unwrap();
    assert!(!finding.message.contains("chmod"), "the command belongs into the fix: {}", finding.message);
    assert!(finding.fix.unwrap().starts_with("chmod 600 /"));
    assert_eq!(reported(0o600), None);
    std::os::unix::fs::chown(&key, Some(1234), None).unwrap();
    let fix = reported(0o600).unwrap().fix.unwrap();
    assert!(std::process::Command::new("sh").args(["-c", &fix]).status().unwrap().success());
    assert_eq!(load("", &[], &flags).unwrap().exposed_key(), None, "{fix}");
}

#[test]
fn a_password_in_an_endpoint_is_never_printed() {
    for given in ["http://u:hunter2@h", "a,http://u:hunter2@h", "u:hunter2,hunter2@h", "http://u:hunter2@x@h"]
    {
        for (file, env, flags) in [
            ("", vec![("ETCD_HOST", given)], vec![]),
            ("", vec![], vec!["--etcd-endpoints", given]),
            (&*format!("[etcd]\nendpoints = [1, {given:?}]"), vec![], vec![]),
        ] {
            let text = problems(load(file, &env, &flags)).join("\n");
            assert!(text.contains("etcd.endpoints \"(not shown)@h"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
            assert!(!file.is_empty() || text.contains("use etcd.user and etcd.password_file"), "{text}");
        }
    }
    let bytes = |text: &[u8]| OsString::from_vec([text, &[0xff]].concat());
    for (name, value) in
        [("PODWIRE_ETCD_PASSWORD", bytes(b"hunter2")), ("ETCD_HOST", bytes(b"http://u:hunter2@h"))]
    {
        let text = Config::load(&Flags::default(), [(name.into(), value)]).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("UTF-8") && text.contains("(not shown)"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn a2_the_margin_is_checked_against_every_subnet() {
    let margin = |flags: &[&str]| load("", &[], flags).unwrap().cluster.margin;
    assert_eq!(margin(&[]), 0);
    assert_eq!(margin(&["--etcd-endpoints", "a"]), 8);
    assert_eq!(margin(&["--network-margin", "8"]), 8);
    assert_eq!(margin(&["--etcd-endpoints", "a", "--network-margin", "0"]), 0);
    assert_eq!(margin(&["--network-subnet", "10.2.0.0/16", "--network-margin", "13"]), 13);
    assert_eq!(margin(&["--network-subnet", "fd00::/64", "--network-margin", "32"]), 32);
    // A single node uses the whole subnet, of any size.
    assert_eq!(margin(&["--network-subnet", "10.2.0.0/30"]), 0);
    for bad in ["-1", "33", "x", ""] {
        let flag = format!("--network-margin={bad}");
        refused(&[&flag], &["flag --network-margin: network.margin", bad, "0 to 32"]);
    }
    refused(&["--network-margin", "14"], &["network.margin", "14", "0 to 13", "10.83.0.0/16"]);
    let six = ["--network-subnet", "fd00::/120", "--network-margin", "6"];
    refused(&six, &["network.margin", "6", "0 to 5", "fd00::/120"]);
    let small = ["--etcd-endpoints", "a", "--network-subnet", "10.2.0.0/24"];
    refused(
        &small,
        &["flag --network-subnet: network.subnets", "10.2.0.0/24", "network.margin at most 5 (it is 8)"],
    );
    refused(&["--etcd-endpoints", "a", "--network-subnet", "10.2.0.0/30"], &["network.subnets", "larger"]);
}

#[test]
fn transport_settings_are_validated() {
    let config = load("", &[], &["--network-tunnel", "x", "--network-transport", "direct"]).unwrap();
    let names = (config.cluster.tunnel4().unwrap(), config.cluster.tunnel6().unwrap());
    assert_eq!((names.0.as_str(), names.1.as_str()), ("x4", "x6"));
    for (flag, bad, expect) in [
        ("--network-transport", "ipip", "auto, direct or vxlan"),
        ("--network-vni", "0", "1 to 16777215"),
        ("--network-vni", "16777216", "1 to 16777215"),
        ("--network-vxlan-port", "0", "1 to 65535"),
        ("--network-vxlan-port", "65536", "1 to 65535"),
        ("--network-tunnel", "", "1 to 14 bytes"),
        ("--network-tunnel", "fifteen-bytes-x", "1 to 14 bytes"),
        ("--network-tunnel", "a/b", "1 to 14 bytes"),
        ("--network-tunnel", "a b", "1 to 14 bytes"),
        ("--network-tunnel", "vx%d", "without '/', ':', '%'"),
        ("--network-tunnel-checksum", "true", "auto, on or off"),
        ("--network-accept-forward", "yes", "true or false"),
    ] {
        refused(&[&format!("{flag}={bad}")], &[&format!("flag {flag}"), bad, expect]);
    }
    refused(
        &["--network-tunnel", "br", "--network-bridge", "br6"],
        &["network.tunnel", "br6 is network.bridge"],
    );
}

#[test]
fn node_addresses_must_be_reachable_by_other_nodes() {
    for (given, normal) in [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        (" fd00::1 , 10.0.0.1 ", "fd00::1,10.0.0.1"),
    ] {
        let config = load("", &[], &["--node-addresses", given]).unwrap();
        assert_eq!(values::join(&config.node_addresses), normal);
    }
    for (bad, expect) in [
        ("", "such as 192.0.2.1"),
        ("192.0.2.1/24", "such as 192.0.2.1"),
        ("host", "such as 192.0.2.1"),
        ("192.0.2.1,192.0.2.2", "one IPv4 and one IPv6"),
        ("fd00::1,fd00::2", "one IPv4 and one IPv6"),
        ("127.0.0.1", "a loopback address"),
        ("::1", "a loopback address"),
        ("169.254.1.1", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "an unspecified address"),
        ("::", "an unspecified address"),
        ("255.255.255.255", "a broadcast address"),
        ("::ffff:192.0.2.1", "a mapped IPv4 address"),
    ] {
        refused(&["--node-addresses", bad], &["flag --node-addresses: node_addresses", bad, expect]);
    }
    refused(&["--node-interface", "a-name-that-is-too-long"], &["node_interface", "15 bytes"]);
    let config = load("node_interface = \"eth1\"", &[], &["--node-interface", "none"]).unwrap();
    assert_eq!(config.node_interface, None);
}
