use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use cni::{Env, Request};
use tempfile::TempDir;

use super::*;

/// Longer than any plugin of these tests runs, except for those that hang.
const LONG: Duration = Duration::from_secs(30);

/// A directory with IPAM plugins, and a request with it as CNI_PATH.
struct TestPlugins {
    dir: TempDir,
    config: NetworkConfig,
}

impl TestPlugins {
    fn new(padding: usize) -> Self {
        let dir = TempDir::new().unwrap();
        let vars = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_NETNS", "/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", dir.path().to_str().unwrap()),
        ];
        let env = Env::from_vars(vars.map(|(name, value)| (name.into(), value.into())));
        let text =
            format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"t","pad":"{}"}}"#, "x".repeat(padding));
        let Ok(Request::Add(request)) = Request::parse(&env, text.as_bytes()) else { panic!("no ADD") };
        Self { config: request.config, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, script: &str) -> PathBuf {
        let program = self.path(name);
        // Written by another process: a concurrent child could inherit the descriptor and prevent its execution (ETXTBSY).
        let write = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"])
            .args([program.as_os_str(), script.as_ref()])
            .status();
        assert!(write.unwrap().success());
        program
    }

    /// The delegate that an agent with this configuration finds.
    fn allowed(&self, directories: &[&Path], plugins: &[&str]) -> Result<Delegate<'_>, String> {
        let allowed = AllowedDelegates {
            directories: directories.iter().map(|dir| dir.to_path_buf()).collect(),
            plugins: plugins.iter().map(|&plugin| plugin.to_owned()).collect(),
        };
        Delegate::find("ipam", &self.config, Delegates::Allowed(&allowed)).map_err(|e| e.to_string())
    }
}

fn call(script: &str, timeout: Duration, padding: usize) -> Result<Vec<u8>, Error> {
    let plugins = TestPlugins::new(padding);
    plugins.write("ipam", script);
    let mut delegate = Delegate::find("ipam", &plugins.config, Delegates::InCniPath).unwrap();
    delegate.call_timeout = timeout;
    delegate.call("ADD")
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn an_answer_larger_than_a_pipe_is_read_completely() {
    let answer = call("cat", LONG, 300_000);
    assert!(answer.unwrap().len() > 300_000);
}

#[test]
fn a_plugin_that_does_not_read_its_config_can_answer() {
    let answer = call("exec <&-; echo '{}'", LONG, 300_000);
    assert_eq!(answer.unwrap(), b"{}\n");
}

#[test]
fn the_plugins_error_is_returned() {
    let answer = call(r#"cat >/dev/null; echo '{"code":123,"msg":"no lease"}'; exit 1"#, LONG, 0);
    let error: cni::Error = answer.unwrap_err().into();
    assert!(error.msg.contains("no lease"), "{error}");
}

#[test]
fn a_plugin_that_hangs_is_killed() {
    let answer = call("cat >/dev/null; exec sleep 600", Duration::from_millis(300), 0);
    let error: cni::Error = answer.unwrap_err().into();
    assert!(error.to_string().contains("did not exit within"), "{error}");
}

#[test]
fn a_cancelled_add_kills_the_plugin() {
    let (plugins, dir) = (TestPlugins::new(0), TempDir::new().unwrap());
    let pid = dir.path().join("pid");
    plugins.write("ipam", &format!("echo $$ >{}; exec sleep 600", pid.display()));
    let delegate = Delegate::find("ipam", &plugins.config, Delegates::InCniPath).unwrap();
    let written = || std::fs::read_to_string(&pid).ok().filter(|text| text.ends_with('\n'));
    let error: cni::Error = delegate.add(&|| written().is_some()).unwrap_err().into();
    assert!(error.to_string().contains("was cancelled"), "{error}");
    assert!(!is_alive(written().unwrap().trim()));
}

#[test]
fn a_plugin_that_answers_but_does_not_exit_is_killed() {
    let dir = TempDir::new().unwrap();
    let pid = dir.path().join("pid");
    let script = format!("echo $$ >{}; echo '{{}}'; exec >&-; exec sleep 600", pid.display());
    let answer = call(&script, Duration::from_secs(1), 0);
    let error: cni::Error = answer.unwrap_err().into();
    assert!(error.to_string().contains("did not exit within"), "{error}");
    assert!(!is_alive(std::fs::read_to_string(pid).unwrap().trim()));
}

#[test]
fn a_daemon_that_keeps_stdout_open_does_not_delay_the_answer() {
    // stderr is redirected because it is the test's own.
    let answer = call("sleep 20 2>/dev/null & echo '{}'", LONG, 0);
    assert_eq!(answer.unwrap(), b"{}\n");
}

#[test]
fn a_plugin_with_an_endless_answer_is_killed() {
    let answer = call("exec yes", LONG, 0);
    let error: cni::Error = answer.unwrap_err().into();
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[test]
fn a_plugin_that_times_out_is_killed_with_its_children() {
    let dir = TempDir::new().unwrap();
    let pids = dir.path().join("pids");
    // The second child has closed all pipes. It can only be killed through the process group.
    let script = format!(
        "sleep 60 & echo $! >{0}; sh -c 'exec </dev/null >/dev/null 2>&1; sleep 60 & echo $! >>{0}; wait' & wait",
        pids.display()
    );
    let answer = call(&script, Duration::from_secs(1), 0);
    let error: cni::Error = answer.unwrap_err().into();
    assert!(error.to_string().contains("did not exit within"), "{error}");
    let pids = std::fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 2, "{pids}");
    let end = Instant::now() + KILL_TIMEOUT;
    while pids.lines().any(is_alive) {
        assert!(Instant::now() < end, "still alive: {pids}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_delegate_gets_only_the_cni_variables_and_path() {
    let plugins = TestPlugins::new(0);
    plugins.write("ipam", r"tr '\0' '\n' </proc/$$/environ");
    let environment = |delegate: &Delegate<'_>| -> BTreeMap<String, String> {
        let text = String::from_utf8(delegate.call("DEL").unwrap()).unwrap();
        let pairs = text.lines().map(|line| line.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let dir = plugins.dir.path().to_str().unwrap();
    let mut expected: BTreeMap<String, String> = [
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", "a"),
        ("CNI_NETNS", "/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", dir),
        ("CNI_PODWIRE_DELEGATED", "1"),
        ("PATH", DELEGATE_PATH),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    assert!(std::env::vars_os().any(|(name, _)| name == "CARGO_MANIFEST_DIR"), "nothing to inherit");
    let delegate = Delegate::find("ipam", &plugins.config, Delegates::InCniPath).unwrap();
    assert_eq!(environment(&delegate), expected);
    let delegate = plugins.allowed(&[Path::new("/nonexistent"), plugins.dir.path()], &["ipam"]).unwrap();
    expected.insert("CNI_PATH".to_owned(), format!("/nonexistent:{dir}"));
    assert_eq!(environment(&delegate), expected);
}

#[test]
fn podwire_itself_is_refused_as_a_delegate() {
    let plugins = TestPlugins::new(0);
    // The config's type is t.
    let own = plugins.write("t", "echo '{}'");
    symlink(&own, plugins.path("symlink")).unwrap();
    std::fs::hard_link(&own, plugins.path("hardlink")).unwrap();
    symlink("/proc/self/exe", plugins.path("running")).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), plugins.path("copy")).unwrap();
    let find = |name| Delegate::find(name, &plugins.config, Delegates::InCniPath);
    for name in ["t", "symlink", "hardlink", "running"] {
        let error: cni::Error = find(name).err().unwrap().into();
        assert_eq!(error.code, cni::ErrorCode::InvalidConfig, "{name}: {error}");
        assert!(error.msg.contains("leads back to Podwire") && error.msg.contains(name), "{error}");
        assert!(Delegate::find_for_removal(name, &plugins.config, Delegates::InCniPath).unwrap().is_none());
    }
    // A copy has another inode. It is refused by the variable CNI_PODWIRE_DELEGATED.
    assert!(find("copy").is_ok());
    assert!(Delegate::find_for_removal("missing", &plugins.config, Delegates::InCniPath).is_err());
}

#[test]
fn the_agent_uses_only_its_configured_delegates() {
    let (plugins, other) = (TestPlugins::new(0), TestPlugins::new(0));
    plugins.write("ipam", "exit 1");
    assert!(Delegate::find("ipam", &plugins.config, Delegates::InCniPath).is_ok());
    for (directories, allowed, expected) in [
        (vec![other.dir.path()], vec!["ipam"], "not found in delegate.directories"),
        (vec![], vec!["ipam"], "not found in delegate.directories"),
        (
            vec![plugins.dir.path()],
            vec!["host-local", "dhcp"],
            "delegate.plugins of the agent (host-local, dhcp)",
        ),
        (vec![plugins.dir.path()], vec![], "delegate.plugins"),
    ] {
        let error = plugins.allowed(&directories, &allowed).err().unwrap();
        assert!(error.contains("ipam") && error.contains(expected), "{error}");
    }
    assert_eq!(plugins.allowed(&[plugins.dir.path()], &["ipam"]).unwrap().program, plugins.path("ipam"));
}

#[test]
fn the_agent_refuses_programs_that_every_user_can_change() {
    let plugins = TestPlugins::new(0);
    let (program, dir) = (plugins.write("ipam", "exit 1"), plugins.dir.path());
    let outside = TempDir::new().unwrap();
    let target = outside.path().join("target");
    std::fs::copy(&program, &target).unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let expect_refused = |text: &str, path: &Path| {
        let error = plugins.allowed(&[dir], &["ipam"]).err().unwrap();
        assert!(error.contains(text) && error.contains(path.to_str().unwrap()), "{error}");
    };
    let expect_allowed = || plugins.allowed(&[dir], &["ipam"]).unwrap();
    expect_allowed();
    for (path, bad, good) in [(program.as_path(), 0o757, 0o755), (dir, 0o757, 0o755), (dir, 0o1777, 0o755)] {
        mode(path, bad);
        expect_refused("chmod o-w", path);
        mode(path, good);
        // Plugin archives are unpacked with another owner.
        chown(path, Some(1000), None).unwrap();
        expect_allowed();
        chown(path, Some(0), None).unwrap();
    }
    // A symlink into a directory that every user can change.
    std::fs::remove_file(&program).unwrap();
    symlink(&target, &program).unwrap();
    expect_allowed();
    mode(outside.path(), 0o777);
    expect_refused("chmod o-w", outside.path());
}

#[test]
fn a_client_of_the_agent_cannot_name_arbitrary_files() {
    for text in [
        r#"{"ipam":{"resolvConf":"/etc/shadow"}}"#,
        r#"{"ipam":{"RESOLVCONF":"/etc/shadow","resolvConf":"/etc/resolv.conf"}}"#,
        r#"{"ipam":{},"IPAM":{"resolvConf":"/etc/shadow"}}"#,
        r#"{"ipam":{"reſolvConf":"/etc/shadow"}}"#,
        r#"{"ipam":{"resolvConf":["/etc/shadow"]}}"#,
    ] {
        let error = without_other_files(text.as_bytes(), DelegatePurpose::Use).unwrap_err();
        assert!(error.contains("/etc/shadow") && error.contains("/etc/resolv.conf"), "{text}: {error}");
        let removal = without_other_files(text.as_bytes(), DelegatePurpose::Removal).unwrap();
        assert!(!String::from_utf8(removal).unwrap().contains("shadow"), "{text}");
    }
    // Go merges both objects.
    let twice = br#"{"ipam":{"resolvConf":"/etc/shadow"},"ipam":{"type":"host-local"}}"#;
    assert_eq!(
        without_other_files(twice, DelegatePurpose::Use).unwrap(),
        br#"{"ipam":{"type":"host-local"}}"#
    );
    for file in ["null", r#""""#, r#""/etc/resolv.conf""#] {
        let text = format!(r#"{{"ipam":{{"resolvConf":{file}}}}}"#);
        assert_eq!(without_other_files(text.as_bytes(), DelegatePurpose::Use).unwrap(), text.as_bytes());
    }
}
