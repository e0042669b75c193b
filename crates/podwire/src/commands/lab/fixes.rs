//! Fixes that are shown inside a node of a lab. Its agent is not a systemd service, and commands must not change the agent, etcd
//! and network of the host. They are replaced by commands of `podwire lab`.

use types::{Code, Fix};

use super::hint;

/// Programs that act on their network namespace or on the agent of the node.
const NODE_PROGRAMS: [&str; 6] = ["podwire", "ip", "nft", "sysctl", "ping", "ss"];

/// The fix of conditions whose cause is a missing address of the node.
const SHOW_ADDRESSES: &str = "ip address show";

/// A node of a lab, from [`config::LAB_VARIABLE`].
struct LabLocation<'a> {
    lab: &'a str,
    node: &'a str,
}

/// The commands of a condition, and the parts that they depend on.
pub(crate) struct FixableCondition<'a> {
    pub(crate) code: Option<String>,
    pub(crate) object: Option<&'a str>,
    pub(crate) message: &'a mut String,
    pub(crate) fix: &'a mut Option<String>,
}

impl<'a> From<&'a mut api::Condition> for FixableCondition<'a> {
    fn from(condition: &'a mut api::Condition) -> Self {
        let api::Condition { code, object, message, fix, .. } = condition;
        Self { code: Some(code.to_string()), object: Some(object.as_str()), message, fix }
    }
}

/// Whether this command runs in a node of a lab. The node shares files such as the configuration of runtimes with the machine.
pub(crate) fn is_lab_node() -> bool {
    std::env::var_os(config::LAB_VARIABLE).is_some()
}

/// Replaces commands in fixes and messages. Outside of a lab it changes nothing.
pub(crate) fn adapt_fixes<'a>(conditions: impl IntoIterator<Item = impl Into<FixableCondition<'a>>>) {
    let variable = std::env::var(config::LAB_VARIABLE).unwrap_or_default();
    let Some(location) = LabLocation::parse(&variable) else { return };
    conditions.into_iter().for_each(|condition| location.adapt_condition(condition.into()));
}

/// Replaces commands in a message about a node of a lab, for a command that runs on the machine.
pub(super) fn adapt_for_node(lab: &str, node: &str, message: &str) -> String {
    LabLocation { lab, node }.adapt_text(message)
}

/// Replaces commands in an error message. Outside of a lab it changes nothing.
pub(crate) fn adapt_message(message: String) -> String {
    let variable = std::env::var(config::LAB_VARIABLE).unwrap_or_default();
    match LabLocation::parse(&variable) {
        Some(location) => location.adapt_text(&message),
        None => message,
    }
}

impl<'a> LabLocation<'a> {
    fn parse(variable: &'a str) -> Option<Self> {
        variable.split_once('/').map(|(lab, node)| Self { lab, node })
    }

    fn adapt_condition(&self, condition: FixableCondition<'_>) {
        let FixableCondition { code, object, message, fix } = condition;
        *message = self.adapt_text(message);
        if fix.as_ref().is_some_and(|fix| fix.starts_with("curl ")) {
            // The command that replaces it starts etcd.
            *message = message.replace(" (the command checks them)", "");
        }
        let is_code = |wanted: Code| code.as_deref() == Some(wanted.as_str());
        let peer = object.filter(|_| is_code(Code::PeerAway)).and_then(|object| object.strip_prefix("node "));
        // The lab knows the addresses and routes of its nodes.
        if is_code(Code::NodeAddressMissing) || fix.as_deref() == Some(SHOW_ADDRESSES) {
            *fix = Some(hint::command(self.lab, &format!("heal {}", self.node)));
            return;
        }
        *fix = fix.as_deref().map(|fix| self.adapt(fix)).or_else(|| peer.map(|peer| self.start_peer(peer)));
    }

    /// Starts a node that is powered off. Otherwise the node may be disconnected, or its agent may not run.
    fn start_peer(&self, peer: &str) -> String {
        let command = |verb: &str| hint::command(self.lab, &format!("{verb} {peer}"));
        format!("{} || ({} && {})", command("start node"), command("heal"), command("restart agent"))
    }

    /// Replaces commands for the agent and its log.
    fn adapt_text(&self, text: &str) -> String {
        let Self { lab, node } = self;
        [
            ("systemctl start podwire", "start agent"),
            ("systemctl restart podwire", "restart agent"),
            ("systemctl disable --now podwire", "kill agent"),
            ("`podwire agent`", "start agent"),
            ("journalctl -u podwire", "logs"),
        ]
        .iter()
        .fold(text.to_owned(), |text, (command, verb)| {
            let replacement = hint::command(lab, &format!("{verb} {node}"));
            let quoted = if command.starts_with('`') { format!("`{replacement}`") } else { replacement };
            text.replace(command, &quoted)
        })
    }

    /// The equivalent command. It works in a shell of the host and of the node.
    fn adapt(&self, fix: &str) -> String {
        let Self { lab, node } = self;
        // A health check of etcd: etcd does not run, or the node is disconnected from it.
        if fix.starts_with("curl ") {
            let heal = hint::command(lab, &format!("heal {node}"));
            return format!("{} && {heal}", hint::command(lab, "start etcd"));
        }
        let adapted = self.adapt_text(fix);
        let program = adapted.split(' ').next().unwrap_or_default();
        if adapted.starts_with("podwire lab ") || !NODE_PROGRAMS.contains(&program) {
            return adapted;
        }
        let exec = hint::command(lab, &format!("exec {node}"));
        match adapted.contains(['&', ';', '|', '<', '>']) {
            true => format!("{exec} {}", Fix::words(["sh", "-c", &adapted])),
            false => format!("{exec} {adapted}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_in_a_lab_node_use_commands_of_the_lab() {
        let location = LabLocation { lab: "default", node: "n1" };
        for (fix, wanted) in [
            ("systemctl start podwire", "podwire lab start agent n1"),
            ("systemctl restart podwire", "podwire lab restart agent n1"),
            ("mv /a /b && systemctl restart podwire", "mv /a /b && podwire lab restart agent n1"),
            ("curl -m 3 http://192.0.2.1:2379/health", "podwire lab start etcd && podwire lab heal n1"),
            ("podwire agent --check-config", "podwire lab exec n1 podwire agent --check-config"),
            ("ip link set dev 'a b' up", "podwire lab exec n1 ip link set dev 'a b' up"),
            ("nft a; nft 'b c'", r"podwire lab exec n1 sh -c 'nft a; nft '\''b c'\'''"),
            ("apt install nftables", "apt install nftables"),
        ] {
            assert_eq!(location.adapt(fix), wanted);
        }
        let fix_of = |code: Code, fix: Option<&str>| {
            let (mut fix, mut message) = (fix.map(str::to_owned), String::new());
            let (code, object) = (Some(code.to_string()), Some("node n3"));
            location.adapt_condition(FixableCondition { code, object, message: &mut message, fix: &mut fix });
            fix
        };
        let start_n3 =
            "podwire lab start node n3 || (podwire lab heal n3 && podwire lab restart agent n3)".to_owned();
        assert_eq!(fix_of(Code::PeerAway, None), Some(start_n3));
        assert_eq!(fix_of(Code::PeerUnrouted, None), None);
        for (code, fix) in [
            (Code::NodeAddressMissing, "ip link set dev eth0 up"),
            (Code::NodeAddressMissing, "ip address show"),
            (Code::StoreUnreachable, "ip address show"),
        ] {
            assert_eq!(fix_of(code, Some(fix)).as_deref(), Some("podwire lab heal n1"), "{code} {fix}");
        }
        let ping = fix_of(Code::PeerUnreachable, Some("ping n3"));
        assert_eq!(ping.as_deref(), Some("podwire lab exec n1 ping n3"));
        let no_listener =
            api::ClientError::NoListener { socket: "/s".into(), source: std::io::Error::other("missing") };
        assert_eq!(
            location.adapt_text(&no_listener.to_string()),
            "no agent listens on /s (missing): start it with `podwire lab start agent n1`, or see `podwire lab logs n1`"
        );
        assert!(
            location.adapt_text("'systemctl disable --now podwire'").contains("'podwire lab kill agent n1'")
        );
        let two = LabLocation { lab: "two", node: "n3" };
        assert_eq!(two.adapt("systemctl start podwire"), "podwire lab --name two start agent n3");
    }
}
