//! The inspection of pods runs on a thread of its own: while it is blocked, drift of the node is repaired.

use testkit::inspect::{self, Family};
use testkit::trace::HeldThread;
use testkit::wait_until;

use crate::common::ips;
use crate::scene::{BRIDGE, Scene, TIMEOUT, in_both_modes, run};

#[test]
fn a_blocked_inspection_of_pods_delays_no_repair_of_the_node() {
    in_both_modes(|mode| {
        let scene = Scene::new("held-pods", mode);
        let before = scene.settled();
        let held = HeldThread::stop(scene.host.agent.pid().unwrap(), "podwire-inspect").unwrap();
        // The inspection begins, and stops where it is about to enter a pod.
        run(&scene.b.0, "ip route del default");
        held.run_to_setns().unwrap();

        let wait = |what: &str, is_repaired: &dyn Fn() -> bool| {
            wait_until(what, TIMEOUT, || Ok(is_repaired())).unwrap();
        };
        let tables = || scene.node().sh(&["nft", "-s", "-t", "list", "ruleset"]).unwrap();
        let (sound, is_in_force) = (tables(), || scene.run_quietly("nft list chain inet podwire guard"));
        scene.run("nft flush ruleset");
        assert_ne!(tables(), sound);
        wait("all tables", &|| tables() == sound);
        scene.run("nft flush chain inet podwire guard");
        wait("all rules", &|| is_in_force() && tables() == sound);
        scene.run(&format!("ip addr flush dev {BRIDGE} scope global"));
        wait("the gateways", &|| {
            let addresses = inspect::addresses(scene.node(), BRIDGE).unwrap();
            addresses.iter().filter(|address| address.net.addr().to_string().ends_with('1')).count() >= 2
        });
        if mode == "routed" {
            let address = ips(&scene.a.1)[0];
            scene.run(&format!("ip route del {address}"));
            let routes = || inspect::routes(scene.node(), Family::V4).unwrap();
            wait("the host route", &|| routes().iter().any(|route| route.dst == address.to_string()));
        }
        let lacks_route = || !scene.b.0.sh(&["ip", "route"]).unwrap().contains("default");
        assert!(lacks_route(), "the inspection was not held");

        drop(held);
        wait("the pod's route", &|| !lacks_route());
        wait("everything", &|| scene.difference(&before).is_empty());
        scene.expect_works("after the inspection");
    });
}
