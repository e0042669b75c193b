//! A containerd whose directories are not the usual ones, as Debian's, which looks for plugins in /usr/lib/cni.

use crate::common::{Traces, World};
use crate::site::{CONFIG, PLUGIN, Programs, Site};

const DIRECTORIES: &str = r#"[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/distribution/cni"
conf_dir = "/etc/distribution/net.d"
"#;
const PLACED: [&str; 2] =
    ["/opt/distribution/cni/podwire-cni", "/etc/distribution/net.d/10-podwire.conflist"];

fn expect_placed(world: &World) {
    for (path, is_there) in [(PLACED[0], true), (PLACED[1], true), (PLUGIN, false), (CONFIG, false)] {
        assert_eq!(world.machine.path(path).exists(), is_there, "{path}");
    }
}

#[test]
fn b17_the_agent_installs_where_containerd_is_configured_to_look() {
    let world = World::configured("dirs-agent", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&world.lab);
    let site = Site::in_world(world, programs);
    expect_placed(&site.world);
    let before = Traces::before_pods(&site.world);
    let (a, b) = (site.world.run("a"), site.world.run("b"));
    site.world.expect_pings([&a, &b]);
    site.world.remove(&a);
    site.world.remove(&b);
    site.expect_nothing_left(&before);
}

#[test]
fn b17_install_standalone_finds_containerds_directories_and_says_what_others_need() {
    let world = World::configured("dirs-alone", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&world.lab);
    let [podwire, plugin] = [&programs.podwire, &programs.plugin].map(|path| path.to_str().unwrap());
    let install = |more: &[&str]| {
        let argv = [podwire, "install", "--standalone", "--plugin", plugin];
        let outcome = world.machine.run(&[argv.as_slice(), more].concat()).unwrap();
        assert!(outcome.success(), "{}", outcome.stderr);
        outcome.stderr
    };
    assert_eq!(install(&[]), "");
    expect_placed(&world);
    world.wait_until_ready();
    let (a, b) = (world.run("a"), world.run("b"));
    world.expect_pings([&a, &b]);
    world.remove(&a);
    world.remove(&b);

    let warning = install(&["--plugin-dir", "/opt/other"]);
    for words in ["containerd uses /opt/distribution/cni", "set bin_dir = \"/opt/other\"", "config.toml"] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
}
