//! Output on a terminal: colours of states, and width. `Host::on_terminal` measures every line.

use serde_json::Value;

use crate::common::{Host, has, without_colours};

const GREEN_READY: &str = "\x1b[32mready\x1b[0m";
const GREEN_OK: &str = "\x1b[32mok\x1b[0m";
const RED_NOT_INSTALLED: &str = "\x1b[31mnot\x1b[0m \x1b[31minstalled\x1b[0m";

#[test]
fn states_are_coloured_on_a_terminal_only() {
    let host = Host::new("colours");
    has(
        &host.on_terminal(80, "", &["status"]),
        &[RED_NOT_INSTALLED, "\x1b[31mNOT\x1b[0m \x1b[31mREADY\x1b[0m\n"],
    );
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let show = ["attachment", "show", pod.id()];
    has(&host.on_terminal(80, "", &["status"]), &[&format!(": {GREEN_READY}\n")]);
    has(&host.on_terminal(80, "", &["pods"]), &[GREEN_READY]);
    has(&host.on_terminal(80, "", &["doctor"]), &[GREEN_OK]);
    pod.sh(&["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"]).unwrap();
    pod.sh(&["ip", "addr", "flush", "dev", "eth0"]).unwrap();
    has(&host.on_terminal(80, "", &["status"]), &["\x1b[33mDEGRADED\x1b[0m\n"]);
    has(&host.on_terminal(80, "", &["doctor"]), &["\x1b[31mPROBLEM\x1b[0m"]);
    has(&host.on_terminal(80, "", &show), &[GREEN_OK, "\x1b[31mMISSING\x1b[0m"]);
    // An empty value counts as unset.
    has(&host.on_terminal(80, "NO_COLOR=", &["pods"]), &[GREEN_READY]);
    for args in [&["status"][..], &["pods"], &["doctor"], &show, &["status", "--help"]] {
        let plain = host.on_terminal(80, "NO_COLOR=1", args);
        assert!(!plain.is_empty() && !plain.contains('\x1b'), "{args:?}: {plain:?}");
        let piped = host.ask(args).stdout;
        assert!(!piped.is_empty() && !piped.contains('\x1b'), "{args:?}: {piped:?}");
    }
    let json = host.on_terminal(80, "", &["pods", "-o", "json"]);
    serde_json::from_str::<Value>(&json).unwrap_or_else(|error| panic!("{error}: {json:?}"));
}

#[test]
fn colours_do_not_change_the_layout() {
    let host = Host::new("layout");
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    for args in [&["attachment", "show", pod.id()][..], &["status"]] {
        let coloured = host.on_terminal(80, "", args);
        assert!(coloured.contains('\x1b'), "{args:?}");
        let without_ages =
            |text: &str| text.lines().filter(|line| !line.contains(" ago")).collect::<String>();
        let plain = host.ask(args).stdout;
        assert_eq!(without_ages(&without_colours(&coloured)), without_ages(&plain), "{args:?}");
    }
}

#[test]
fn output_and_help_shrink_to_narrow_terminals() {
    let host = Host::new("narrow");
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    pod.sh(&["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"]).unwrap();
    for columns in [60, 45] {
        for args in [&["status"][..], &["pods"], &["doctor"], &["attachment", "show", pod.id()]] {
            let shown = host.on_terminal(columns, "", args);
            assert!(shown.lines().count() > 2, "{args:?}: {shown}");
        }
    }
    let help = host.on_terminal(60, "", &["doctor", "--help"]);
    has(&help, &["Examples:", "podwire doctor"]);
}
