//! The firewall without links and records: the time to add a pod among few and many pods, and to check and repair all pods.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netlink::NetNs;
use nft::{AttachMode, Firewall, FirewallPod, Guard, HostPort, NetworkChain, Protocol, Structure};
use types::{IfName, Mac};

use crate::options::Scale;
use crate::stats::Sample;

/// Number of check and repair rounds.
const ROUNDS: usize = 5;

/// Operations and their times.
pub(crate) type Timed = Vec<(String, Sample)>;

pub(crate) fn run(scale: &Scale) -> Result<Timed> {
    let mut all = Timed::new();
    for (mode, word) in [(AttachMode::Bridge, "bridge"), (AttachMode::Routed, "routed")] {
        for existing in [0, scale.running_pods] {
            let times = NetNs::create()?.run(|| membership(mode, existing, scale.pods))??;
            all.extend(
                times
                    .into_iter()
                    .map(|(what, times)| (format!("firewall, {word}, {existing} pods there: {what}"), times)),
            );
        }
        let times = NetNs::create()?.run(|| healing(mode, scale.running_pods))??;
        let named =
            |(what, times)| (format!("firewall, {word}, all {} pods: {what}", scale.running_pods), times);
        all.extend(times.into_iter().map(named));
    }
    Ok(all)
}

fn membership(mode: AttachMode, existing: usize, count: usize) -> Result<Timed> {
    let other_pods = samples(mode, 0..existing)?;
    let pods = samples(mode, existing..existing + count)?;
    let mut firewall = Firewall::open()?;
    // nft creates the tables once.
    let other_pods = borrowed(&other_pods);
    firewall.repair(&Structure::of(&other_pods), &other_pods)?;
    let mut times = Timed::new();
    let mut measure = |what: &str, act: &mut dyn FnMut(&Owned) -> Result<()>| {
        let mut sample = Sample::default();
        for pod in &pods {
            let begun = Instant::now();
            sample.note(act(pod).map(|()| begun.elapsed()));
        }
        times.push((what.to_owned(), sample));
    };
    measure("open, add pod", &mut |pod| Ok(Firewall::open()?.add_pod(&pod.pod())?));
    measure("check pod", &mut |pod| expect_whole(firewall.missing_of(&[pod.pod()])?.len()));
    measure("remove pod", &mut |pod| Ok(firewall.remove_pod(&pod.pod())?));
    measure("add pod", &mut |pod| Ok(firewall.add_pod(&pod.pod())?));
    measure("open, remove pod", &mut |pod| Ok(Firewall::open()?.remove_pod(&pod.pod())?));
    Ok(times)
}

fn healing(mode: AttachMode, count: usize) -> Result<Timed> {
    let pods = samples(mode, 0..count)?;
    let pods = borrowed(&pods);
    let structure = Structure::of(&pods);
    let mut firewall = Firewall::open()?;
    let mut times: Timed = Timed::new();
    for _ in 0..ROUNDS {
        nft("flush ruleset")?;
        measure(&mut times, "repair from nothing", || Ok(firewall.repair(&structure, &pods)?))?;
        measure(&mut times, "repair", || Ok(firewall.repair(&structure, &pods)?))?;
        measure(&mut times, "check elements", || expect_whole(firewall.missing_of(&pods)?.len()))?;
        measure(&mut times, "check structure", || expect_whole(firewall.drift(&structure)?.len()))?;
        measure(&mut times, "check other tables", || {
            nft::unmanaged_drops(&[]).map(drop).map_err(Into::into)
        })?;
        nft("flush set inet podwire pods4")?;
        measure(&mut times, "repair one set", || Ok(firewall.repair(&structure, &pods)?))?;
        nft("flush ruleset")?;
        measure(&mut times, "repair after a flush", || Ok(firewall.repair(&structure, &pods)?))?;
    }
    Ok(times)
}

fn measure(times: &mut Timed, what: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    act().with_context(|| what.to_owned())?;
    note(times, what, begun.elapsed());
    Ok(())
}

/// Adds a time to the samples of the same operation.
pub(crate) fn note(times: &mut Timed, what: &str, took: Duration) {
    match times.iter_mut().find(|(known, _)| known == what) {
        Some((_, sample)) => sample.note(Ok(took)),
        None => {
            let mut sample = Sample::default();
            sample.note(Ok(took));
            times.push((what.to_owned(), sample));
        }
    }
}

fn expect_whole(missing: usize) -> Result<()> {
    ensure!(missing == 0, "{missing} firewall objects are missing");
    Ok(())
}

fn nft(words: &str) -> Result<()> {
    let status = Command::new("nft").args(words.split(' ')).status().context("cannot run nft")?;
    ensure!(status.success(), "nft {words}: {status}");
    Ok(())
}

/// Owned data of a [`FirewallPod`].
struct Owned {
    link: IfName,
    mac: Mac,
    mode: AttachMode,
    addresses: Vec<IpAddr>,
    chain: NetworkChain,
    ports: Vec<HostPort>,
}

impl Owned {
    fn pod(&self) -> FirewallPod<'_> {
        FirewallPod {
            link: &self.link,
            mac: self.mac,
            mode: self.mode,
            bridge: None,
            addresses: &self.addresses,
            masquerade: Some(&self.chain),
            guard: Guard::On,
            ports: &self.ports,
        }
    }
}

fn borrowed(all: &[Owned]) -> Vec<FirewallPod<'_>> {
    all.iter().map(Owned::pod).collect()
}

/// Dual-stack pods with a host port each.
fn samples(mode: AttachMode, numbers: std::ops::Range<usize>) -> Result<Vec<Owned>> {
    let chain = NetworkChain::new(&"bench".try_into()?, &["10.77.0.0/16".parse()?, "fd77::/48".parse()?]);
    numbers
        .map(|n| {
            let n = u16::try_from(n + 2)?;
            let [high, low] = n.to_be_bytes();
            let addresses = [format!("10.77.{high}.{low}"), format!("fd77::{n:x}")];
            let addresses = addresses.iter().map(|text| text.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
            let port = |&pod| HostPort {
                host_ip: None,
                host_port: 8000 + n,
                protocol: Protocol::Tcp,
                pod,
                pod_port: 80,
            };
            Ok(Owned {
                link: format!("pwb{n}").try_into()?,
                mac: Mac::local([0, 0, 0, high, low]),
                mode,
                ports: addresses.iter().map(port).collect(),
                addresses,
                chain: chain.clone(),
            })
        })
        .collect()
}
