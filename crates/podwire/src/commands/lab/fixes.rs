//! Fixes that are shown inside a node of a lab. No systemd runs its agent, and the machine's own agent, etcd and network are not
//! meant: `podwire lab` has the commands that work.

use types::Fix;

use super::hint;

/// Programs that act on the network namespace in which they run, or on the agent of the node.
const OF_NODE: [&str; 6] = ["podwire", "ip", "nft", "sysctl", "ping", "ss"];

/// A node of a lab, as [`config::LAB_VARIABLE`] names it.
struct FixPlace<'a> {
    lab: &'a str,
    node: &'a str,
}

/// Outside of a lab they stay as they are.
pub(crate) fn adapt_fixes<'a>(fixes: impl IntoIterator<Item = &'a mut Option<String>>) {
    let Ok(place) = std::env::var(config::LAB_VARIABLE) else { return };
    let Some((lab, node)) = place.split_once('/') else { return };
    let here = FixPlace { lab, node };
    fixes.into_iter().flatten().for_each(|fix| *fix = here.adapt(fix));
}

impl FixPlace<'_> {
    /// The command for the same purpose, to be pasted on the machine or in a shell of the node.
    fn adapt(&self, fix: &str) -> String {
        let Self { lab, node } = self;
        // It asks etcd for its health: etcd does not run, or the node is cut off from it.
        if fix.starts_with("curl ") {
            let heal = hint::command(lab, &format!("heal {node}"));
            return format!("{} && {heal}", hint::command(lab, "start etcd"));
        }
        let adapted = ["start", "restart"].iter().fold(fix.to_owned(), |fix, verb| {
            let ours = hint::command(lab, &format!("{verb} agent {node}"));
            fix.replace(&format!("systemctl {verb} podwire"), &ours)
        });
        let program = adapted.split(' ').next().unwrap_or_default();
        if adapted.starts_with("podwire lab ") || !OF_NODE.contains(&program) {
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
    fn fixes_of_a_lab_node_address_the_lab_and_not_the_machine() {
        let here = FixPlace { lab: "default", node: "n1" };
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
            assert_eq!(here.adapt(fix), wanted);
        }
        let two = FixPlace { lab: "two", node: "n3" };
        assert_eq!(two.adapt("systemctl start podwire"), "podwire lab --name two start agent n3");
    }
}
