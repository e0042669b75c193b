//! The interpreter: the order of the maps, and what it refuses.

use model::objects::{Direction, PortRange};
use policy::{ClassId, PolicyElement, PolicyVerdict, ProfileId, VerdictKey};
use policyproof::Flow;
use policyproof::build::range;
use policyproof::interpret::{Kernel, RefusedElement};
use types::Protocol::{Tcp, Udp};

const PROFILE: ProfileId = ProfileId(ProfileId::FIRST);
const CLASS: ClassId = ClassId(ClassId::FIRST);

fn verdict(key: VerdictKey, verdict: PolicyVerdict) -> PolicyElement {
    PolicyElement::Verdict { direction: Direction::Ingress, key, verdict }
}

/// From specific to general.
fn keys() -> [VerdictKey; 13] {
    let (profile, class, protocol, ports) = (PROFILE, CLASS, Tcp, PortRange::ALL);
    [
        VerdictKey::PeerPort { profile, class, protocol, port: 80 },
        VerdictKey::PeerRange { profile, class, protocol, ports },
        VerdictKey::PeerProtocol { profile, class, protocol: 6 },
        VerdictKey::Peer { profile, class },
        VerdictKey::AnyPodPort { class, protocol, port: 80 },
        VerdictKey::AnyPodRange { class, protocol, ports },
        VerdictKey::AnyPodProtocol { class, protocol: 6 },
        VerdictKey::AnyPod { class },
        VerdictKey::PeerClasses { profile, first: CLASS, last: CLASS },
        VerdictKey::AnyPeerPort { profile, protocol, port: 80 },
        VerdictKey::AnyPeerRange { profile, protocol, ports },
        VerdictKey::AnyPeerProtocol { profile, protocol: 6 },
        VerdictKey::Default { profile },
    ]
}

fn flow(port: u16) -> Flow {
    Flow { source: [10, 0, 0, 9].into(), destination: [10, 0, 0, 1].into(), protocol: 6, port: Some(port) }
}

fn address() -> PolicyElement {
    PolicyElement::Address { address: [10, 0, 0, 9].into(), class: CLASS }
}

#[test]
fn d_the_first_map_with_a_matching_element_decides() {
    let keys = keys();
    assert!(keys.is_sorted(), "the order of VerdictKey is the order of the lookups");
    for first in 0..keys.len() {
        // The more general elements have the opposite verdict.
        let general = keys[first + 1..].iter().map(|key| verdict(*key, PolicyVerdict::Drop));
        let elements = general.chain([address(), verdict(keys[first], PolicyVerdict::Accept)]);
        let kernel = Kernel::load(elements).unwrap();
        assert_eq!(kernel.judge(PROFILE, Direction::Ingress, &flow(80)), PolicyVerdict::Accept, "{first}");
        assert_eq!(kernel.judge(PROFILE, Direction::Egress, &flow(80)), PolicyVerdict::Drop);
        assert_eq!(kernel.judge(ProfileId::CLOSED, Direction::Ingress, &flow(80)), PolicyVerdict::Drop);
    }
}

#[test]
fn d_flows_without_ports_match_no_element_with_ports() {
    let elements = keys().map(|key| match key {
        VerdictKey::Default { .. } => verdict(key, PolicyVerdict::Accept),
        key => verdict(key, PolicyVerdict::Drop),
    });
    let kernel = Kernel::load([elements[9], elements[10], elements[12]]).unwrap();
    let icmp = Flow { protocol: 1, port: None, ..flow(0) };
    assert_eq!(kernel.judge(PROFILE, Direction::Ingress, &icmp), PolicyVerdict::Accept);
    assert_eq!(kernel.judge(PROFILE, Direction::Ingress, &flow(80)), PolicyVerdict::Drop);
    let udp = Flow { protocol: Udp.number(), ..flow(80) };
    assert_eq!(kernel.judge(PROFILE, Direction::Ingress, &udp), PolicyVerdict::Accept);
}

#[test]
fn d_class_self_comes_before_an_address_and_an_address_before_a_range() {
    let other = ClassId(ClassId::FIRST + 1);
    let elements = [
        address(),
        PolicyElement::Addresses { first: [10, 0, 0, 0].into(), last: [10, 0, 0, 255].into(), class: other },
        PolicyElement::OwnAddress { address: [10, 0, 0, 9].into() },
    ];
    let kernel = Kernel::load(elements).unwrap();
    let class = |source: [u8; 4], destination: [u8; 4]| {
        let flow = Flow { source: source.into(), destination: destination.into(), ..flow(1) };
        kernel.class(&flow, Direction::Ingress)
    };
    assert_eq!(class([10, 0, 0, 9], [10, 0, 0, 1]), CLASS);
    assert_eq!(class([10, 0, 0, 8], [10, 0, 0, 1]), other);
    assert_eq!(class([10, 0, 0, 8], [10, 0, 0, 8]), other);
    assert_eq!(class([10, 0, 0, 9], [10, 0, 0, 9]), ClassId::SELF);
    assert_eq!(class([10, 0, 1, 0], [10, 0, 0, 1]), ClassId::NONE);
}

#[test]
fn d_sets_that_the_kernel_refuses_are_refused() {
    let ranged = |text| VerdictKey::AnyPeerRange { profile: PROFILE, protocol: Tcp, ports: range(text) };
    let accept = |key| verdict(key, PolicyVerdict::Accept);
    let load = |elements: [PolicyElement; 2]| Kernel::load(elements).map(drop);
    let default = VerdictKey::Default { profile: PROFILE };
    let twice = verdict(default, PolicyVerdict::Drop);
    assert_eq!(load([accept(default), twice]), Err(RefusedElement::KeyExists(twice)));
    for overlapping in ["100-201", "150-160", "50-100", "1-1000", "200-300"] {
        let second = accept(ranged(overlapping));
        assert_eq!(load([accept(ranged("100-200")), second]), Err(RefusedElement::Overlap(second)));
    }
    assert_eq!(load([accept(ranged("100-200")), accept(ranged("201-300"))]), Ok(()));
    assert_eq!(load([accept(ranged("100-200")), accept(ranged("50-99"))]), Ok(()));
    let closed = accept(VerdictKey::Default { profile: ProfileId::CLOSED });
    let of_result = accept(VerdictKey::AnyPod { class: ClassId::DROPPED });
    let reversed =
        PolicyElement::Addresses { first: [10, 0, 0, 2].into(), last: [10, 0, 0, 1].into(), class: CLASS };
    for invalid in [closed, of_result, reversed] {
        assert_eq!(load([address(), invalid]), Err(RefusedElement::Invalid(invalid)));
    }
}

#[test]
fn d_a_transaction_deletes_first_and_refuses_missing_elements() {
    let mut kernel = Kernel::load([address()]).unwrap();
    let moved = PolicyElement::Address { address: [10, 0, 0, 9].into(), class: ClassId(99) };
    assert_eq!(kernel.clone().transaction([], [moved]), Err(RefusedElement::KeyExists(moved)));
    assert_eq!(kernel.clone().transaction([moved], []), Err(RefusedElement::Missing(moved)));
    assert_eq!(kernel.transaction([address()], [moved]), Ok(()));
    assert_eq!(kernel.class(&flow(1), Direction::Ingress), ClassId(99));
}
