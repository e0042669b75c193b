//! The table with the DSCP of pods: elements only, listed by the nft program, and repaired.

use nft::{Dscp, Firewall};
use types::{IfName, NetworkName};

use crate::common::{in_netns, nft};

const TABLE: &str = "inet podwire-dscp-blue";

fn network() -> NetworkName {
    "blue".try_into().unwrap()
}

fn link(name: &str) -> IfName {
    name.try_into().unwrap()
}

fn listed() -> String {
    let listing = nft(&format!("list map {TABLE} links"));
    listing.split_once("elements = {").map_or_else(String::new, |(_, elements)| {
        let words: Vec<&str> =
            elements.split(['}', ',']).map(str::trim).filter(|word| !word.is_empty()).collect();
        words.join(", ")
    })
}

#[test]
fn the_dscp_of_a_pod_is_an_element_that_changes_in_place() {
    in_netns(|| {
        let (mut firewall, network) = (Firewall::open().unwrap(), network());
        let (a, b) = (link("pwa"), link("pwb"));
        let [low, high] = [8, 46].map(|value| Dscp::new(value).unwrap());
        assert_eq!(firewall.dscp_links(&network).unwrap(), []);
        assert!(!firewall.has_dscp(&network, &a, low).unwrap());
        // Only the reconciler applies the table and changes a DSCP: it may dump the table and run `nft`.
        firewall.add_dscp(&network, &a, low).unwrap_err();
        assert_eq!(nft("list tables"), "");
        firewall.keep_dscp(&network, &[(&a, low)]).unwrap();
        firewall.add_dscp(&network, &b, low).unwrap();
        firewall.add_dscp(&network, &a, high).unwrap_err();
        firewall.keep_dscp(&network, &[(&a, high)]).unwrap();
        let text = listed();
        assert!(
            text.contains(r#""pwa" : goto dscp-46"#) && text.contains(r#""pwb" : goto dscp-8"#),
            "{text}"
        );
        assert!(
            firewall.has_dscp(&network, &a, high).unwrap() && !firewall.has_dscp(&network, &a, low).unwrap()
        );
        assert_eq!(firewall.keep_dscp(&network, &[(&a, high)]).unwrap(), [""; 0]);
        assert_eq!(firewall.keep_dscp(&network, &[(&b, high)]).unwrap(), ["1 element changed"]);
        let mut links = firewall.dscp_links(&network).unwrap();
        links.sort();
        assert_eq!(links, [a.clone(), b.clone()]);
        firewall.remove_dscp(&network, &[&a, &link("pwother")]).unwrap();
        assert_eq!(firewall.dscp_links(&network).unwrap(), [b]);
        assert!(firewall.delete_dscp(&network).unwrap());
        assert!(!firewall.delete_dscp(&network).unwrap());
        assert_eq!(nft("list tables"), "");
    });
}

/// A listing with expressions that nft cannot print would stop at them.
#[test]
fn nft_prints_the_whole_table_and_drift_is_repaired() {
    in_netns(|| {
        let (mut firewall, network) = (Firewall::open().unwrap(), network());
        let (a, dscp) = (link("pwa"), Dscp::new(63).unwrap());
        firewall.keep_dscp(&network, &[(&a, dscp)]).unwrap();
        let text = nft("list ruleset");
        assert!(!text.contains("[invalid") && text.contains("iifname vmap @links"), "{text}");
        for value in ["ip dscp set cs1", "ip6 dscp set cs1", "ip dscp set 0x3f", "ip6 dscp set 0x3f"] {
            assert!(text.contains(value), "{value}: {text}");
        }
        assert_eq!(firewall.keep_dscp(&network, &[(&a, dscp)]).unwrap(), [""; 0]);
        for change in [
            format!("flush table {TABLE}"),
            format!("flush map {TABLE} links"),
            format!("flush chain {TABLE} dscp-63"),
            format!("delete table {TABLE}"),
        ] {
            nft(&change);
            assert_ne!(firewall.keep_dscp(&network, &[(&a, dscp)]).unwrap(), [""; 0], "{change}");
            assert_eq!(nft("list ruleset"), text, "{change}");
        }
    });
}
