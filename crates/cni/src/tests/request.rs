use serde_json::{Value, json};

use super::{add, assert_refused, bytes, config, env, env_for, request};
use crate::{Args, Command, Error, ErrorCode, MAX_STDIN, Request, Version, version_answer};

fn minimal(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "net", "prevResult": {}, "cni.dev/valid-attachments": [] })
}

fn failed(command: &str, stdin: &[u8]) -> (Error, Version) {
    let failure = Request::parse(&env_for(command), stdin).unwrap_err();
    (failure.error, failure.version)
}

#[test]
fn e2_one_error_names_all_missing_variables() {
    let table: [(&str, &[&str], &[&str]); 6] = [
        ("ADD", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"], &["CNI_PATH", "CNI_ARGS"]),
        ("CHECK", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"], &["CNI_PATH"]),
        ("DEL", &["CNI_CONTAINERID", "CNI_IFNAME"], &["CNI_NETNS", "CNI_PATH"]),
        ("GC", &["CNI_PATH"], &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]),
        ("STATUS", &[], &[]),
        ("VERSION", &[], &[]),
    ];
    for (command, required, optional) in table {
        // An empty variable counts as missing.
        for vars in [vec![("CNI_COMMAND", command)], vec![("CNI_COMMAND", command), ("CNI_CONTAINERID", "")]]
        {
            let outcome = Request::parse(&env(&vars), &bytes(&minimal("1.1.0")));
            if required.is_empty() {
                outcome.unwrap();
                continue;
            }
            let error = outcome.unwrap_err().error;
            assert_eq!(error.code, ErrorCode::InvalidEnvironment, "{command}");
            assert!(required.iter().all(|var| error.msg.contains(var)), "{command}: {error}");
            assert!(!optional.iter().any(|var| error.msg.contains(var)), "{command}: {error}");
        }
    }
}

#[test]
fn e2_commands_need_only_their_required_variables() {
    let stdin = bytes(&minimal("1.1.0"));
    let attachment = [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
    let with = |command, vars: &[(&'static str, &'static str)]| {
        let vars: Vec<_> = [("CNI_COMMAND", command)].into_iter().chain(vars.to_vec()).collect();
        Request::parse(&env(&vars), &stdin)
    };
    let netns = [&attachment[..], &[("CNI_NETNS", "/run/netns/x")]].concat();
    assert!(
        matches!(with("ADD", &netns), Ok(Request::Add(call)) if call.netns.as_deref() == Some("/run/netns/x"))
    );
    assert!(matches!(with("CHECK", &netns), Ok(Request::Check(_))));
    assert!(matches!(with("DEL", &attachment), Ok(Request::Del(call)) if call.netns.is_none()));
    assert!(matches!(with("DEL", &netns), Ok(Request::Del(call)) if call.netns.is_some()));
    assert!(matches!(with("GC", &[("CNI_PATH", "/a:/b")]), Ok(Request::Gc(_))));
    assert!(matches!(with("STATUS", &[]), Ok(Request::Status(_))));
}

#[test]
fn e2_e3_one_error_names_invalid_and_missing_variables() {
    let vars = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "../x"),
        ("CNI_IFNAME", "a/b"),
        ("CNI_ARGS", "nonsense"),
    ];
    let error = Request::parse(&env(&vars), &bytes(&minimal("1.1.0"))).unwrap_err().error;
    assert_eq!(error.code, ErrorCode::InvalidEnvironment);
    for var in ["CNI_CONTAINERID", "CNI_NETNS is missing", "CNI_IFNAME", "CNI_ARGS"] {
        assert!(error.msg.contains(var), "{var}: {error}");
    }
}

#[test]
fn e3_add_check_and_del_validate_ids_and_names() {
    for command in ["ADD", "CHECK", "DEL"] {
        for (id, ifname, var) in [(".a", "eth0", "CNI_CONTAINERID"), ("c1", "sixteen-bytes-xx", "CNI_IFNAME")]
        {
            let vars = [
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", id),
                ("CNI_IFNAME", ifname),
                ("CNI_NETNS", "/n"),
            ];
            let error = Request::parse(&env(&vars), &bytes(&minimal("1.1.0"))).unwrap_err().error;
            assert_eq!(
                (error.code, error.msg.contains(var)),
                (ErrorCode::InvalidEnvironment, true),
                "{command}: {error}"
            );
        }
        for name in [json!(null), json!(""), json!("a/b"), json!(".x"), json!("a b")] {
            let mut stdin = minimal("1.1.0");
            stdin["name"] = name.clone();
            assert_eq!(
                request(command, &stdin).unwrap_err().error.code,
                ErrorCode::InvalidConfig,
                "{command} {name}"
            );
        }
        let mut stdin = minimal("1.1.0");
        stdin["name"] = json!(7);
        assert_eq!(request(command, &stdin).unwrap_err().error.code, ErrorCode::Decode);
    }
}

#[test]
fn e4_unknown_and_lower_case_commands_are_refused() {
    for command in ["add", "Add", "FOO", "ADD ", "del"] {
        // The command is checked before variables and stdin.
        let error = Request::parse(&env(&[("CNI_COMMAND", command)]), b"").unwrap_err().error;
        assert_eq!(error.code, ErrorCode::InvalidEnvironment);
        assert_eq!(error.to_string(), format!("unknown CNI_COMMAND: {command}"));
    }
    for command in Command::ALL {
        assert_eq!(Command::parse(command.as_str()), Ok(command));
    }
}

#[test]
fn e5_stdin_that_is_not_a_json_object_is_refused() {
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        for (stdin, text) in [
            (&b""[..], "empty"),
            (b" \n\t", "empty"),
            (b"{", "line 1 column 1"),
            (b"{\"name\": \"x\",\n oops}", "line 2 column 2"),
            (b"[1]", "a list at line 1 column 1"),
            (b"\n  \"x\"", "\"x\" at line 2 column 3"),
            (b"{} {}", "trailing characters at line 1 column 4"),
            (b"{\"name\": \"\xff\"}", "line 1 column"),
        ] {
            let (error, version) = failed(command, stdin);
            assert_eq!((error.code, version), (ErrorCode::Decode, Version::LATEST), "{command}: {error}");
            assert!(error.msg.contains(text), "{command}: {text} is not in: {error}");
        }
    }
}

#[test]
fn e5_stdin_that_is_too_large_or_too_deep_is_refused() {
    let mut stdin = bytes(&minimal("1.1.0"));
    stdin.resize(MAX_STDIN, b' ');
    Request::parse(&env_for("ADD"), &stdin).unwrap();
    stdin.push(b' ');
    let (error, _) = failed("ADD", &stdin);
    assert_eq!(error.code, ErrorCode::Decode);
    assert!(error.msg.contains("larger than 1048576 bytes"), "{error}");
    assert_eq!(failed("ADD", &b"[".repeat(MAX_STDIN)).0.code, ErrorCode::Decode);
}

#[test]
fn e5_unsupported_versions_are_refused() {
    for version in Version::ALL {
        assert!(request("ADD", &minimal(version.as_str())).is_ok(), "{version}");
        assert!(request("DEL", &minimal(version.as_str())).is_ok(), "{version}");
    }
    for absent in [
        json!({ "name": "n" }),
        json!({ "name": "n", "cniVersion": null }),
        json!({ "name": "n", "cniVersion": "" }),
    ] {
        assert!(
            matches!(request("ADD", &absent), Ok(Request::Add(call)) if call.config.version == Version::V0_1_0)
        );
    }
    for unsupported in ["9.9.9", "1.2.0", "0.3", "1.1.0 ", "v1.0.0", "0.0.0"] {
        for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let (error, version) = failed(command, &bytes(&minimal(unsupported)));
            assert_eq!(
                (error.code, version),
                (ErrorCode::IncompatibleVersion, Version::LATEST),
                "{unsupported}: {error}"
            );
            assert!(Version::ALL.iter().all(|v| error.msg.contains(v.as_str())), "{error}");
        }
    }
    for other_type in [json!(1), json!(1.1), json!(["1.1.0"]), json!({}), json!(true)] {
        let (error, _) = failed("ADD", &bytes(&json!({ "name": "n", "cniVersion": other_type })));
        assert_eq!(error.code, ErrorCode::Decode);
        assert!(error.msg.starts_with("cniVersion: expected a string, found "), "{error}");
    }
}

#[test]
fn e5_commands_need_a_version_that_defines_them() {
    for version in Version::ALL {
        for (command, since) in
            [("CHECK", Version::V0_4_0), ("GC", Version::V1_1_0), ("STATUS", Version::V1_1_0)]
        {
            let outcome = request(command, &minimal(version.as_str()));
            if version >= since {
                assert!(outcome.is_ok(), "{command} {version}: {outcome:?}");
            } else {
                let failure = outcome.unwrap_err();
                assert_eq!((failure.error.code, failure.version), (ErrorCode::IncompatibleVersion, version));
                assert!(failure.to_string().contains(since.as_str()), "{failure}");
            }
        }
    }
}

#[test]
fn e12_del_accepts_configs_that_add_refuses() {
    for extra in [
        json!({ "runtimeConfig": 7 }),
        json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 70000 }] } }),
        json!({ "runtimeConfig": { "mac": "no" } }),
        json!({ "args": { "cni": { "ips": ["no"] } } }),
        json!({ "prevResult": { "ips": "no" } }),
        json!({ "dns": [] }),
        json!({ "ipam": { "type": 7 } }),
        json!({ "type": 7 }),
    ] {
        assert!(add(&extra).is_err(), "{extra}");
        assert!(matches!(request("DEL", &config(&extra)), Ok(Request::Del(_))), "{extra}");
    }
    let vars =
        [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/n"), ("CNI_ARGS", "FOO=1")];
    let with = |command| env(&[&[("CNI_COMMAND", command)], &vars[..]].concat());
    let stdin = bytes(&config(&json!({})));
    assert_eq!(Request::parse(&with("ADD"), &stdin).unwrap_err().error.code, ErrorCode::InvalidEnvironment);
    assert!(
        matches!(Request::parse(&with("DEL"), &stdin), Ok(Request::Del(call)) if call.args == Args::default())
    );
}

#[test]
fn e15_check_needs_a_prev_result() {
    for absent in [json!({}), json!({ "prevResult": null })] {
        let error = request("CHECK", &config(&absent)).unwrap_err().error;
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        assert!(error.msg.contains("prevResult is missing"), "{error}");
    }
    assert!(request("CHECK", &config(&json!({ "prevResult": { "dns": {} } }))).is_ok());
}

fn gc(extra: &Value) -> Result<Vec<String>, Error> {
    match request("GC", &config(extra)) {
        Ok(Request::Gc(gc)) => Ok(gc.valid.iter().map(|(id, ifname)| format!("{id}/{ifname}")).collect()),
        Ok(other) => panic!("GC was parsed as {other:?}"),
        Err(failure) => Err(failure.error),
    }
}

#[test]
fn e16_gc_uses_the_union_of_all_valid_lists() {
    let (new, old) = ("cni.dev/valid-attachments", "cni.dev/attachments");
    let a = json!([{ "containerID": "a", "ifname": "eth0" }]);
    let b = json!([{ "containerID": "b", "ifname": "eth1", "more": 1 }, { "containerid": "a", "IfName": "eth0" }]);
    assert_eq!(gc(&json!({ new: a })).unwrap(), ["a/eth0"]);
    assert_eq!(gc(&json!({ old: b })).unwrap(), ["a/eth0", "b/eth1"]);
    assert_eq!(gc(&json!({ new: a, old: b })).unwrap(), ["a/eth0", "b/eth1"]);
    assert_eq!(gc(&json!({ new: null, old: a })).unwrap(), ["a/eth0"]);
    assert_eq!(
        gc(&json!({ new: b, "CNI.dev/Valid-Attachments": [{ "containerID": "z", "ifname": "e" }] }))
            .unwrap()
            .len(),
        3
    );
    assert_eq!(gc(&json!({ new: null })).unwrap().len(), 0);
    assert_eq!(gc(&json!({ new: [] })).unwrap().len(), 0);
    assert_eq!(gc(&json!({})).unwrap_err().code, ErrorCode::InvalidConfig);
    assert_eq!(gc(&json!({ new: {} })).unwrap_err().code, ErrorCode::Decode);
}

#[test]
fn e16_gc_refuses_a_list_with_an_invalid_element() {
    for (element, path) in [
        (json!(null), "cni.dev/valid-attachments[1]"),
        (json!("a"), "cni.dev/valid-attachments[1]"),
        (json!({}), "[1].containerID"),
        (json!({ "containerID": "a" }), "[1].ifname"),
        (json!({ "containerID": 7, "ifname": "eth0" }), "[1].containerID"),
        (json!({ "containerID": "a", "ifname": "a/b" }), "[1].ifname"),
        (json!({ "containerID": "/", "ifname": "eth0" }), "[1].containerID"),
    ] {
        let list = json!([{ "containerID": "good", "ifname": "eth0" }, element]);
        let error = gc(&json!({ "cni.dev/valid-attachments": list })).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig, "{error}");
        assert!(error.msg.contains(path), "{path} is not in: {error}");
    }
}

#[test]
fn e17_version_is_answered_with_any_stdin() {
    let table: [(&[u8], Version); 8] = [
        (b"", Version::LATEST),
        (b"{\"cniVersion\":\"0.3.1\"}", Version::V0_3_1),
        (b"{\"cniVersion\":\"1.0.0\", \"name\": 7}", Version::V1_0_0),
        (b"{\"cniVersion\":\"9.9.9\"}", Version::LATEST),
        (b"{\"cniVersion\":7}", Version::LATEST),
        (b"{}", Version::LATEST),
        (b"nonsense", Version::LATEST),
        (b"[]", Version::LATEST),
    ];
    for (stdin, version) in table {
        assert_eq!(Request::parse(&env(&[("CNI_COMMAND", "VERSION")]), stdin), Ok(Request::Version(version)));
    }
    // Values that libcni sends.
    let dummies = [
        ("CNI_COMMAND", "VERSION"),
        ("CNI_NETNS", "dummy"),
        ("CNI_IFNAME", "dummy"),
        ("CNI_CONTAINERID", "dummy"),
    ];
    assert!(Request::parse(&env(&dummies), b"").is_ok());
    let answer = version_answer(Version::V0_3_1);
    assert_eq!(answer["cniVersion"], "0.3.1");
    assert_eq!(
        answer["supportedVersions"],
        json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
    );
}

#[test]
fn b5_failures_are_error_objects_in_the_requests_version() {
    let error = Error::new(ErrorCode::TryAgainLater, "the agent is starting").with_details("socket refused");
    assert_eq!(
        error.to_json(Version::V0_4_0),
        json!({ "cniVersion": "0.4.0", "code": 11, "msg": "the agent is starting", "details": "socket refused" })
    );
    assert_eq!(error.to_string(), "the agent is starting: socket refused");
    let short = Error::new(ErrorCode::Io, "x");
    assert_eq!(short.to_json(Version::V1_1_0), json!({ "cniVersion": "1.1.0", "code": 5, "msg": "x" }));
    assert_eq!(short.to_string(), "x");
    // Errors in variables also have the version of the config.
    let failure = Request::parse(&env(&[("CNI_COMMAND", "ADD")]), br#"{"cniVersion":"0.3.1"}"#).unwrap_err();
    assert_eq!(
        (failure.to_json()["cniVersion"].as_str(), failure.to_json()["code"].as_u64()),
        (Some("0.3.1"), Some(4))
    );
}

#[test]
fn e7_error_objects_of_delegates_are_parsed() {
    let numbers: Vec<u32> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 11, 50, 51, 100, 101, 102, 103, 104, 105, 106, 199]);
    for code in ErrorCode::ALL {
        let error = Error::new(code, "m").with_details("d");
        assert_eq!(Error::from_json(&error.to_json(Version::LATEST)), Some(error));
    }
    let unknown = Error::from_json(&json!({ "code": 999, "msg": "no", "details": "why" })).unwrap();
    assert_eq!((unknown.code, unknown.to_string().as_str()), (ErrorCode::Delegate, "no: code 999 why"));
    for none in [json!({}), json!([]), json!({ "msg": "x" }), json!({ "code": "7" })] {
        assert_eq!(Error::from_json(&none), None);
    }
}

#[test]
fn e18_addresses_and_macs_are_requested_through_three_sources() {
    let stdin = config(&json!({
        "args": { "cni": { "ips": ["10.0.0.6", "10.0.0.5"], "mac": "02:00:00:00:00:02" } },
        "runtimeConfig": { "ips": ["10.0.0.7/24", "::ffff:10.0.0.6"], "mac": "02:00:00:00:00:03" },
    }));
    let vars = env(&[
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/n"),
        ("CNI_IFNAME", "e"),
        ("CNI_ARGS", "IP=10.0.0.5;MAC=02:00:00:00:00:01"),
    ]);
    let Ok(Request::Add(mut call)) = Request::parse(&vars, &bytes(&stdin)) else { panic!("no ADD") };
    let ips: Vec<_> = call.requested_ips().iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.0.0.5", "10.0.0.6", "10.0.0.7/24"]);
    assert_eq!(call.requested_mac().unwrap().to_string(), "02:00:00:00:00:03");
    call.config.runtime.mac = None;
    assert_eq!(call.requested_mac().unwrap().to_string(), "02:00:00:00:00:02");
    call.config.args_cni_mac = None;
    assert_eq!(call.requested_mac().unwrap().to_string(), "02:00:00:00:00:01");
    assert_refused(
        &json!({ "args": { "cni": { "ips": ["x"] } } }),
        ErrorCode::InvalidConfig,
        &["args.cni.ips[0]", "\"x\""],
    );
    assert_refused(
        &json!({ "args": { "cni": { "mac": "x" } } }),
        ErrorCode::InvalidConfig,
        &["args.cni.mac", "\"x\""],
    );
}

#[test]
fn a_request_with_the_delegated_variable_is_refused() {
    let stdin = bytes(&config(&json!({ "prevResult": {}, "cni.dev/valid-attachments": [] })));
    for command in Command::ALL {
        let vars = [
            ("CNI_COMMAND", command.as_str()),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/a"),
        ];
        let delegated = [&vars[..], &[("CNI_PODWIRE_DELEGATED", "1")]].concat();
        assert!(Request::parse(&env(&vars), &stdin).is_ok(), "{command}");
        match Request::parse(&env(&delegated), &stdin) {
            Ok(request) => {
                assert_eq!((command, request), (Command::Version, Request::Version(Version::V1_1_0)));
            }
            Err(failure) => {
                assert_eq!(
                    (failure.error.code, failure.version),
                    (ErrorCode::InvalidConfig, Version::V1_1_0)
                );
                assert!(failure.error.msg.contains("ipam.type leads back to Podwire"), "{failure}");
            }
        }
    }
}
