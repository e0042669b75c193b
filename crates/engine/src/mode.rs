//! Detects networks with pods in both attach modes. Bridged and routed pods of one network cannot reach each other.

use types::{AttachMode, Code, Finding, NetworkName};

use crate::state::Attachment;

/// At most this many pods are named in the message.
const MAX_NAMED_PODS: usize = 5;

/// The condition of a network with pods in another mode than new pods get. `configured` is the mode of the network's config.
/// If it is unknown, the mode of the newest pod is used.
pub(crate) fn mixed_modes(
    network: &NetworkName,
    configured: Option<AttachMode>,
    pods: &[&Attachment],
) -> Option<Finding> {
    let newest = || pods.iter().max_by_key(|pod| pod.created).map(|pod| pod.mode);
    let current = configured.or_else(newest)?;
    let mut names: Vec<String> = pods.iter().filter(|pod| pod.mode != current).map(|pod| name(pod)).collect();
    names.sort();
    let other = match current {
        AttachMode::Bridge => AttachMode::Routed,
        AttachMode::Routed => AttachMode::Bridge,
    };
    let (pods, them) = match names.len() {
        0 => return None,
        1 => ("1 pod is".to_owned(), "it"),
        count => (format!("{count} pods are"), "them"),
    };
    let more = names.len().saturating_sub(MAX_NAMED_PODS);
    names.truncate(MAX_NAMED_PODS);
    let names = match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    };
    let message = format!(
        "new pods of network {network} are attached in mode {current}, but {pods} in mode {other}: pods of the two modes do not \
         reach each other; restart {them}: {names}"
    );
    Some(Finding::new(Code::PodModeDiffers, format_args!("network {network}"), message))
}

/// The runtime's name of the pod, or its container ID.
fn name(attachment: &Attachment) -> String {
    match &attachment.pod {
        Some(pod) if pod.namespace.is_empty() => pod.name.clone(),
        Some(pod) => format!("{}/{}", pod.namespace, pod.name),
        None => attachment.key.container.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(id: &str, mode: &str, created: u64) -> Attachment {
        let mac = "02:00:00:00:00:01";
        let record = json!({
            "schema": 1, "network": "blue", "container": id, "ifname": "eth0", "netns": "", "mode": mode, "bridge": "pw0",
            "host_link": "pw1", "host_mac": mac, "pod_mac": mac, "mtu": 1500, "addresses": [], "spoof_check": true,
            "hairpin": false, "created": created,
        });
        serde_json::from_value(record).unwrap()
    }

    fn message(configured: Option<AttachMode>, pods: &[Attachment]) -> Option<String> {
        let network = "blue".try_into().unwrap();
        mixed_modes(&network, configured, &pods.iter().collect::<Vec<_>>()).map(|finding| finding.message)
    }

    #[test]
    fn f1_pods_in_another_mode_than_the_configured_or_newest_are_named() {
        let pods = [pod("a", "bridge", 1), pod("b", "bridge", 2), pod("c", "routed", 3)];
        let text = message(Some(AttachMode::Routed), &pods).unwrap();
        assert!(text.contains("mode routed, but 2 pods are in mode bridge"), "{text}");
        assert!(text.ends_with("restart them: a, b"), "{text}");
        assert_eq!(message(None, &pods), Some(text));
        let text = message(Some(AttachMode::Bridge), &pods).unwrap();
        assert!(text.ends_with("mode bridge, but 1 pod is in mode routed: pods of the two modes do not reach each other; restart it: c"), "{text}");
        for configured in [Some(AttachMode::Bridge), None] {
            assert_eq!(message(configured, &pods[..2]), None);
            assert_eq!(message(configured, &[]), None);
        }
    }

    #[test]
    fn f1_a_long_list_of_pods_is_shortened() {
        let pods: Vec<Attachment> = (0..7).map(|n| pod(&format!("p{n}"), "bridge", n)).collect();
        let text = message(Some(AttachMode::Routed), &pods).unwrap();
        assert!(text.ends_with("restart them: p0, p1, p2, p3, p4 and 2 more"), "{text}");
    }
}
