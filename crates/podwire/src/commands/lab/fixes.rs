//! Fixes that are shown inside a node of a lab. Its agent is not a systemd service, and commands must not change the agent, etcd
//! and network of the host. They are replaced by commands of `podwire lab`.

use types::Fix;

use super::hint;

/// Programs that act on their network namespace or on the agent of the node.
const NODE_PROGRAMS: [&str; 6] = ["podwire", "ip", "nft", "sysctl", "ping", "ss"];

/// A node of a lab, from [`config::LAB_VARIABLE`].
struct LabLocation<'a> {
    lab: &'a str,
    node: &'a str,
}

/// Replaces commands in fixes. Outside of a lab it changes nothing.
pub(crate) fn adapt_fixes<'a>(fixes: impl IntoIterator<Item = &'a mut Option<String>>) {
    let Ok(location) = std::env::var(config::LAB_VARIABLE) else { return };
    let Some((lab, node)) = location.split_once('/') else { return };
    let location = LabLocation { lab, node };
    fixes.into_iter().flatten().for_each(|fix| *fix = location.adapt(fix));
}

impl LabLocation<'_> {
    /// The equivalent command. It works in a shell of the host and of the node.
    fn adapt(&self, fix: &str) -> String {
        let Self { lab, node } = self;
        // A health check of etcd: etcd does not run, or the node is disconnected from it.
        if fix.starts_with("curl ") {
            let heal = hint::command(lab, &format!("heal {node}"));
            return format!("{} && {heal}", hint::command(lab, "start etcd"));
        }
        let adapted = ["start", "restart"].iter().fold(fix.to_owned(), |fix, verb| {
            let replacement = hint::command(lab, &format!("{verb} agent {node}"));
            fix.replace(&format!("systemctl {verb} podwire"), &replacement)
        });
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
        let two = LabLocation { lab: "two", node: "n3" };
        assert_eq!(two.adapt("systemctl start podwire"), "podwire lab --name two start agent n3");
    }
}
