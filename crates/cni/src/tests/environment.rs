use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::json;

use super::{bytes, config, env, env_for};
use crate::{Args, Env, ErrorCode, Request, Var};

#[test]
fn e4_a_missing_command_is_detected() {
    for empty in [env(&[]), env(&[("CNI_COMMAND", "")])] {
        assert!(!empty.has_command());
        let error = Request::parse(&empty, b"").unwrap_err().error;
        assert_eq!(
            (error.code, error.msg.as_str()),
            (ErrorCode::InvalidEnvironment, "CNI_COMMAND is missing")
        );
    }
    assert!(env_for("ADD").has_command());
}

#[test]
fn e8_netns_override_accepts_1_and_true() {
    for (value, expected) in
        [("1", true), ("true", true), ("TRUE", true), ("0", false), ("", false), ("yes", false)]
    {
        let vars = Env::from_vars([("CNI_NETNS_OVERRIDE".into(), value.into())]);
        assert_eq!(vars.netns_override(), expected, "{value}");
    }
}

#[test]
fn e14_del_ignores_a_netns_that_is_not_utf8() {
    let invalid = OsString::from_vec(vec![b'/', 0xff]);
    let vars = |command: &str| {
        Env::from_vars([
            ("CNI_COMMAND".into(), command.into()),
            ("CNI_CONTAINERID".into(), "c1".into()),
            ("CNI_IFNAME".into(), "eth0".into()),
            ("CNI_NETNS".into(), invalid.clone()),
        ])
    };
    let stdin = bytes(&config(&json!({})));
    assert!(matches!(Request::parse(&vars("DEL"), &stdin), Ok(Request::Del(call)) if call.netns.is_none()));
    let error = Request::parse(&vars("ADD"), &stdin).unwrap_err().error;
    assert_eq!(
        (error.code, error.msg.as_str()),
        (ErrorCode::InvalidEnvironment, "CNI_NETNS is invalid: it is not UTF-8")
    );
}

#[test]
fn b1_all_variables_are_parsed() {
    let vars = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/proc/7/ns/net"),
        ("CNI_IFNAME", "eth1"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web"),
        ("CNI_PATH", "/a::/b"),
        ("CNI_NETNS_OVERRIDE", "true"),
        ("PATH", "/bin"),
        // The first value wins, as in getenv(3).
        ("CNI_IFNAME", "eth9"),
    ];
    let stdin = bytes(&config(&json!({})));
    let Ok(Request::Add(call)) = Request::parse(&env(&vars), &stdin) else { panic!("no ADD") };
    assert_eq!((call.container.as_str(), call.ifname.as_str()), ("c1", "eth1"));
    assert_eq!((call.netns.as_deref(), call.netns_override), (Some("/proc/7/ns/net"), true));
    assert_eq!(call.config.variables.path().unwrap(), ["/a", "/b"]);
    assert_eq!(call.args.pod_name.as_deref(), Some("web"));
    assert_eq!(call.config.raw, stdin);
}

#[test]
fn b1_errors_for_values_that_are_not_utf8_name_the_variable() {
    for var in Var::ALL {
        let vars = Env::from_vars([(var.name().into(), OsString::from_vec(vec![0xc3, 0x28]))]);
        let error = vars.get(var).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidEnvironment);
        assert!(error.msg.contains(var.name()), "{error}");
    }
    let command = Env::from_vars([("CNI_COMMAND".into(), OsString::from_vec(vec![0xff]))]);
    assert!(Request::parse(&command, b"").unwrap_err().error.msg.contains("CNI_COMMAND"));
}

#[test]
fn b1_known_args_are_parsed() {
    let kubelet = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u-1";
    let args = Args::parse(kubelet).unwrap();
    let expected = Args {
        ignore_unknown: true,
        pod_namespace: Some("ns".into()),
        pod_name: Some("web".into()),
        infra_container_id: Some("abc".into()),
        pod_uid: Some("u-1".into()),
        ..Args::default()
    };
    assert_eq!(args, expected);
    let args = Args::parse("IP=10.0.0.5;MAC=02:42:ac:11:00:02").unwrap();
    assert_eq!(args.ip.unwrap().to_string(), "10.0.0.5");
    assert_eq!(args.mac.unwrap().to_string(), "02:42:ac:11:00:02");
    assert_eq!(Args::parse("IP=fd00::5/64").unwrap().ip.unwrap().prefix, Some(64));
    assert_eq!(Args::parse(""), Ok(Args::default()));
    assert_eq!(Args::parse("IP=;MAC=;K8S_POD_NAME="), Ok(Args::default()));
}

#[test]
fn b1_overlong_names_in_args_are_refused_except_for_del() {
    for (key, max) in [("K8S_POD_NAMESPACE", 63), ("K8S_POD_NAME", 253), ("K8S_POD_UID", 128)] {
        let args = |length| format!("IgnoreUnknown=1;{key}={}", "a".repeat(length));
        assert!(Args::parse(&args(max)).is_ok(), "{key}");
        let error = Args::parse(&args(max + 1)).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidEnvironment, "{key}");
        assert!(error.msg.starts_with(&format!("CNI_ARGS: {key}: ")) && error.msg.len() < 100, "{error}");
        let request = |command| {
            let vars = [
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", "c1"),
                ("CNI_NETNS", "/run/netns/x"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/opt/cni/bin"),
                ("CNI_ARGS", &*args(100_000)),
            ];
            Request::parse(&env(&vars), &bytes(&config(&json!({}))))
        };
        assert_eq!(request("ADD").unwrap_err().error.code, ErrorCode::InvalidEnvironment, "{key}");
        assert!(request("DEL").is_ok(), "{key}");
    }
}

#[test]
fn b1_invalid_args_are_refused() {
    for (args, texts) in [
        ("FOO=1;BAR=2", &["unknown keys FOO, BAR", "IgnoreUnknown"][..]),
        ("IgnoreUnknown=0;FOO=1", &["FOO"]),
        ("IgnoreUnknown=1;FOO=1;IgnoreUnknown=false", &["FOO"]),
        ("k8s_pod_name=x", &["k8s_pod_name"]),
        ("K8S_POD_NAME", &["\"K8S_POD_NAME\" is not KEY=VALUE"]),
        ("IgnoreUnknown=1;A=B=C", &["\"A=B=C\""]),
        ("K8S_POD_NAME=a;", &["\"\" is not KEY=VALUE"]),
        ("=x", &["\"=x\""]),
        ("IgnoreUnknown=yes", &["IgnoreUnknown", "yes"]),
        ("IgnoreUnknown=", &["IgnoreUnknown"]),
        ("IP=10.0.0", &["IP", "10.0.0"]),
        ("IP=10.0.0.1/33", &["IP", "10.0.0.1/33"]),
        ("MAC=01:00:00:00:00:00", &["MAC", "01:00"]),
    ] {
        let error = Args::parse(args).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidEnvironment, "{args}");
        assert!(error.msg.starts_with("CNI_ARGS: "), "{error}");
        assert!(texts.iter().all(|text| error.msg.contains(text)), "{args}: {error}");
    }
    for good in ["IgnoreUnknown=1;FOO=1", "FOO=1;IgnoreUnknown=TRUE", "IgnoreUnknown=true;FOO="] {
        assert!(Args::parse(good).is_ok(), "{good}");
    }
}
