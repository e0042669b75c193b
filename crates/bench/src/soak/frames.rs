//! Hostile frames from raw sockets in pods and on the underlay, in bounded amounts, and legal datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::Scope;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::{Call, PacketSocket, Pod, Random, Verb, inspect};

use crate::Soak;
use crate::options::Attack;
use crate::packets::{ARP, VLAN, arp_request, ethernet, group_mac, icmp, solicitation, udp, vxlan};
use crate::site::{CLUSTER, PermanentPod, PodRole, SoakMode, SoakNetwork, SoakNode, SoakSite, mac_of};
use crate::victims::{HOSTILE, LEGAL, MARK, PORT, VictimListener, payload};

/// The agents' defaults.
const VNI: u32 = 4077;
const VXLAN_PORT: u16 = 4789;
/// Consecutive frames of one kind.
const BURST: u64 = 8;
/// Addresses that no pod and no node uses.
pub(crate) const INVENTED_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 0);
pub(crate) const INVENTED_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0xdead, 0, 0, 0, 0, 0, 0);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

pub(crate) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    soak: &'scope Soak,
    site: &'scope SoakSite,
) -> Result<()> {
    for victim in site.with_role(PodRole::Victim) {
        VictimListener::open(&victim.pod, &name_of(site, victim))?.start(scope, soak);
    }
    for machine in &site.machines {
        VictimListener::open(&machine.node, machine.name)?.start(scope, soak);
    }
    for (number, mallory) in site.with_role(PodRole::Mallory).enumerate() {
        let mut attacker = Attacker::new(soak, site, mallory, soak.random(400 + number as u64))?;
        scope.spawn(move || attacker.run());
    }
    let socket = PacketSocket::open(&site.external_host, "eth0")?;
    let mac = mac_of(&inspect::link(&site.external_host, "eth0")?)?;
    scope.spawn(move || outside(soak, site, (&socket, mac), soak.random(420)));
    scope.spawn(move || legal(soak, site));
    if soak.has(Attack::HostIp) {
        let pod = site.networks[0].node.pod("capture")?;
        scope.spawn(move || capture(soak, site, &pod));
    }
    Ok(())
}

/// Name of a permanent pod in counts and findings.
pub(crate) fn name_of(site: &SoakSite, permanent: &PermanentPod) -> String {
    format!("{:?} of {}", permanent.role, site.networks[permanent.network].name)
}

/// A pod that sends hostile frames.
struct Attacker<'a> {
    soak: &'a Soak,
    site: &'a SoakSite,
    own: &'a PermanentPod,
    network: &'a SoakNetwork,
    socket: PacketSocket,
    random: Random,
    attacks: Vec<Attack>,
}

impl<'a> Attacker<'a> {
    fn new(soak: &'a Soak, site: &'a SoakSite, own: &'a PermanentPod, random: Random) -> Result<Self> {
        let network = &site.networks[own.network];
        let of_mode = match network.mode {
            SoakMode::Bridge => [Attack::Macs, Attack::ReservedMacs],
            SoakMode::Routed => [Attack::RoutedMacs, Attack::Neighbours],
        };
        let all =
            [Attack::Spoof, Attack::Vxlan, Attack::Adverts, Attack::Neighbours].into_iter().chain(of_mode);
        let attacks = all.filter(|attack| soak.has(*attack)).collect();
        let socket = PacketSocket::open(&own.pod, "eth0")?;
        Ok(Self { soak, site, own, network, socket, random, attacks })
    }

    fn run(&mut self) {
        while !self.soak.is_over() && !self.attacks.is_empty() {
            self.soak.pause(&mut self.random, 20, 120);
            let attack = self.random.pick(&self.attacks);
            let soak = self.soak;
            let _intact = soak.while_firewall_is_intact();
            for _ in 0..BURST {
                let frame = match attack {
                    Attack::Macs | Attack::RoutedMacs => self.with_other_mac(attack),
                    Attack::ReservedMacs => self.reserved(),
                    Attack::Neighbours => self.neighbours(),
                    Attack::Vxlan => self.tunnelled(),
                    Attack::Adverts => self.adverts(),
                    _ => self.spoofed(),
                };
                // A frame that the kernel rejects is not delivered.
                if frame.is_some_and(|frame| self.socket.send(&frame).is_ok()) {
                    soak.ledger.count(&format!("hostile frames: {attack:?}"));
                }
            }
        }
    }

    fn family(&mut self) -> usize {
        self.random.below(2) as usize
    }

    /// Target of hostile datagrams: a listener of the same family and the destination MAC.
    fn target(&mut self, family: usize) -> (IpAddr, [u8; 6]) {
        let (own, network) = (self.own, self.network);
        let victims: Vec<&PermanentPod> = self.site.with_role(PodRole::Victim).collect();
        let machine = self.site.machines.iter().find(|machine| machine.name == network.node_name);
        let index = self.random.below(victims.len() as u64 + 1) as usize;
        match (victims.get(index), machine) {
            // On a bridge frames go from port to port.
            (Some(victim), _) if victim.network == own.network && network.mode == SoakMode::Bridge => {
                (victim.ips[family], victim.mac)
            }
            (Some(victim), _) => (victim.ips[family], own.gateway_mac),
            (None, Some(machine)) => (machine.addresses[family], own.gateway_mac),
            (None, None) => (own.ips[family], own.gateway_mac),
        }
    }

    /// An address that the pod does not have: of a node, an external host or another pod, or invented.
    fn other_address(&mut self, family: usize) -> IpAddr {
        let permanent_pods: Vec<IpAddr> = self
            .site
            .permanent_pods
            .iter()
            .map(|permanent| permanent.ips[family])
            .filter(|ip| *ip != self.own.ips[family])
            .collect();
        let machines: Vec<IpAddr> =
            self.site.machines.iter().map(|machine| machine.addresses[family]).collect();
        match self.random.below(4) {
            0 => machines[self.random.below(machines.len() as u64) as usize],
            1 if family == 0 => IpAddr::from([8, 8, 8, 8]),
            1 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 8).into(),
            2 => self.invented(family),
            _ => permanent_pods[self.random.below(permanent_pods.len() as u64) as usize],
        }
    }

    fn invented(&mut self, family: usize) -> IpAddr {
        let low = self.random.below(2000) as u32 + 1;
        match family {
            0 => Ipv4Addr::from_bits(INVENTED_V4.to_bits() + low).into(),
            _ => Ipv6Addr::from_bits(INVENTED_V6.to_bits() + u128::from(low)).into(),
        }
    }

    fn other_mac(&mut self) -> [u8; 6] {
        let permanent_pods: Vec<[u8; 6]> =
            self.site.with_role(PodRole::Honest).map(|permanent| permanent.mac).collect();
        if self.random.coin() {
            return self.random.pick(&permanent_pods);
        }
        let low = (self.random.below(1 << 16) as u16).to_be_bytes();
        [0x02, 0xba, 0xd0, 0, low[0], low[1]]
    }

    fn spoofed(&mut self) -> Option<Vec<u8>> {
        let family = self.family();
        let (mut to, mac) = self.target(family);
        let mut from = self.other_address(family);
        if family == 0 && self.random.below(6) == 0 {
            // The node's loopback, with the right source.
            (from, to) = (self.own.ips[0], Ipv4Addr::LOCALHOST.into());
        }
        let what = format!("{from} to {to} by {}", name_of(self.site, self.own));
        let (kind, packet) = udp(from, to, (PORT, PORT), &payload(Attack::Spoof, &what))?;
        if self.network.mode == SoakMode::Bridge && self.random.below(5) == 0 {
            // With a VLAN tag, which the bridge does not strip.
            let tagged = [&[0, 0][..], &kind.to_be_bytes(), &packet].concat();
            return Some(ethernet(mac, self.own.mac, (VLAN, &tagged)));
        }
        Some(ethernet(mac, self.own.mac, (kind, &packet)))
    }

    fn with_other_mac(&mut self, attack: Attack) -> Option<Vec<u8>> {
        let family = self.family();
        let (to, mac) = self.target(family);
        let from = self.own.ips[family];
        let what = format!("{from} to {to} by {}", name_of(self.site, self.own));
        let (kind, packet) = udp(from, to, (PORT, PORT), &payload(attack, &what))?;
        Some(ethernet(mac, self.other_mac(), (kind, &packet)))
    }

    /// Frames to the reserved MACs of bridge protocols.
    fn reserved(&mut self) -> Option<Vec<u8>> {
        let family = self.family();
        let (to, _) = self.target(family);
        let from = self.other_address(family);
        let last = self.random.below(16) as u8;
        let what = format!("01:80:c2:00:00:{last:02x}, {from} to {to} by {}", name_of(self.site, self.own));
        let (kind, packet) = udp(from, to, (PORT, PORT), &payload(Attack::ReservedMacs, &what))?;
        Some(ethernet([0x01, 0x80, 0xc2, 0, 0, last], self.own.mac, (kind, &packet)))
    }

    /// Invented senders, and unused addresses of the node's block.
    fn neighbours(&mut self) -> Option<Vec<u8>> {
        let own = self.own;
        let family = self.family();
        if self.network.mode == SoakMode::Routed && self.random.coin() {
            let to = unassigned(own.ips[family], self.random.below(200));
            let (kind, packet) = udp(own.ips[family], to, (PORT, 9), b"unassigned")?;
            return Some(ethernet(own.gateway_mac, own.mac, (kind, &packet)));
        }
        match (self.invented(family), own.ips[family]) {
            (IpAddr::V4(sender), IpAddr::V4(own_ip)) => {
                Some(ethernet([0xff; 6], own.mac, (ARP, &arp_request((own.mac, sender), first_of(own_ip)))))
            }
            (IpAddr::V6(sender), IpAddr::V6(own_ip)) => {
                let (kind, packet) =
                    solicitation((own.mac, sender), Ipv6Addr::from_bits(own_ip.to_bits() & !0xff | 1))?;
                let group = Ipv6Addr::from(<[u8; 16]>::try_from(&packet[24..40]).ok()?);
                Some(ethernet(group_mac(group), own.mac, (kind, &packet)))
            }
            _ => None,
        }
    }

    /// A VXLAN packet to a node with an inner packet for a victim.
    fn tunnelled(&mut self) -> Option<Vec<u8>> {
        let family = self.family();
        let machines = &self.site.machines;
        let machine = &machines[self.random.below(machines.len() as u64) as usize];
        let inner = inner_frame(self.site, machine, (&mut self.random, &name_of(self.site, self.own)))?;
        let (kind, packet) =
            udp(self.own.ips[family], machine.addresses[family], (4000, VXLAN_PORT), &vxlan(VNI, &inner))?;
        Some(ethernet(self.own.gateway_mac, self.own.mac, (kind, &packet)))
    }

    /// Router advertisements and redirects; on a bridge also advertisements for other pods' addresses.
    fn adverts(&mut self) -> Option<Vec<u8>> {
        let own = self.own;
        let option = [&[250, 2][..], MARK].concat();
        let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xbad);
        let from: IpAddr = if self.random.coin() { local.into() } else { own.ips[1] };
        let victims: Vec<&PermanentPod> =
            self.site.with_role(PodRole::Victim).filter(|v| v.network == own.network).collect();
        let victim = victims.first()?;
        let (packet, to) = match self.random.below(if self.network.mode == SoakMode::Bridge { 4 } else { 3 })
        {
            // Router lifetime 1800 s, and a prefix for address configuration.
            0 => {
                let prefix = [
                    &[3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0][..],
                    &Ipv6Addr::new(0x2001, 0xdb8, 0xdead, 0, 0, 0, 0, 0).octets(),
                ]
                .concat();
                let body = [&[64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &prefix, &option].concat();
                (icmp(from, ALL_NODES.into(), (134, 0), &body)?, group_mac(ALL_NODES))
            }
            1 => {
                let (target, about) =
                    (local.octets(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 8).octets());
                let body = [&[0; 4][..], &target, &about, &option].concat();
                let (to, mac) = self.victim_or_node(victim, 1);
                (icmp(from, to, (137, 0), &body)?, mac)
            }
            // A redirect in the name of the gateway.
            2 => {
                let IpAddr::V4(own_ip) = own.ips[0] else { return None };
                let (to, mac) = self.victim_or_node(victim, 0);
                let body = [&own_ip.octets()[..], MARK, &[0; 14]].concat();
                (icmp(first_of(own_ip).into(), to, (5, 1), &body)?, mac)
            }
            _ => {
                let IpAddr::V6(foreign) = victim.ips[1] else { return None };
                let body = [&[0x20, 0, 0, 0][..], &foreign.octets(), &[2, 1], &own.mac, &option].concat();
                (icmp(own.ips[1], ALL_NODES.into(), (136, 0), &body)?, group_mac(ALL_NODES))
            }
        };
        Some(ethernet(to, own.mac, (packet.0, &packet.1)))
    }

    fn victim_or_node(&mut self, victim: &PermanentPod, family: usize) -> (IpAddr, [u8; 6]) {
        match self.network.mode {
            SoakMode::Bridge => (victim.ips[family], victim.mac),
            SoakMode::Routed => (victim.ips[family], self.own.gateway_mac),
        }
    }
}

/// The first address of the /24 of an address.
fn first_of(ip: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(ip.to_bits() & !0xff | 1)
}

/// An address of the same block that is allocated late.
fn unassigned(own: IpAddr, number: u64) -> IpAddr {
    match own {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & !0xff | 0xf0 | (number % 15) as u32).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !0xffff | 0xf000 | u128::from(number)).into(),
    }
}

/// The frame inside a tunnel packet: from a pod of another node or from an invented address, to a victim on the node.
fn inner_frame(site: &SoakSite, machine: &SoakNode, (random, by): (&mut Random, &str)) -> Option<Vec<u8>> {
    let family = random.below(2) as usize;
    let on = |permanent: &&PermanentPod| site.networks[permanent.network].node_name == machine.name;
    let victims: Vec<&PermanentPod> = site.with_role(PodRole::Victim).filter(on).collect();
    let remote_pods: Vec<&PermanentPod> = site
        .with_role(PodRole::Honest)
        .filter(|permanent| site.networks[permanent.network].scope == CLUSTER)
        .collect();
    let victim = victims[random.below(victims.len() as u64) as usize];
    let from = match random.below(4) {
        0 if family == 0 => IpAddr::V4(INVENTED_V4),
        0 => IpAddr::V6(INVENTED_V6),
        _ => remote_pods[random.below(remote_pods.len() as u64) as usize].ips[family],
    };
    let to = if random.below(4) == 0 { machine.addresses[family] } else { victim.ips[family] };
    let links = inspect::links(&machine.node).ok()?;
    let tunnel = links.iter().find(|link| link.kind() == Some("vxlan"))?;
    let mac = if random.below(4) == 0 { [0xff; 6] } else { mac_of(tunnel).ok()? };
    let what = format!("{from} to {to} through {}, by {by}", machine.name);
    let (kind, packet) = udp(from, to, (PORT, PORT), &payload(Attack::Vxlan, &what))?;
    Some(ethernet(mac, [0x02, 0xba, 0xd0, 0, 0, 1], (kind, &packet)))
}

/// The external host on the underlay: tunnel packets, and packets with sources of local pods.
fn outside(soak: &Soak, site: &SoakSite, (socket, mac): (&PacketSocket, [u8; 6]), mut random: Random) {
    let plain = site.external_host.enter(|| UdpSocket::bind("[::]:0"));
    let Ok(Ok(plain)) = plain else {
        soak.ledger.find("the external host on the underlay cannot send", "no socket");
        return;
    };
    while !soak.is_over() {
        soak.pause(&mut random, 50, 200);
        let _intact = soak.while_firewall_is_intact();
        for _ in 0..BURST {
            let machine = &site.machines[random.below(site.machines.len() as u64) as usize];
            if soak.has(Attack::Vxlan)
                && let Some(inner) = inner_frame(site, machine, (&mut random, "the underlay"))
            {
                let to = machine.addresses[random.below(2) as usize];
                if plain.send_to(&vxlan(VNI, &inner), dual(to, VXLAN_PORT)).is_ok() {
                    soak.ledger.count("hostile packets of the underlay: Vxlan");
                }
            }
            if soak.has(Attack::UnderlaySource)
                && let Some(frame) = from_local_pod(site, (machine, mac), &mut random)
                && socket.send(&frame).is_ok()
            {
                soak.ledger.count("hostile packets of the underlay: UnderlaySource");
            }
        }
    }
}

/// A packet on the underlay link to a victim with the source of a pod of the same node.
fn from_local_pod(
    site: &SoakSite,
    (machine, mac): (&SoakNode, [u8; 6]),
    random: &mut Random,
) -> Option<Vec<u8>> {
    let family = random.below(2) as usize;
    let on = |role| {
        let mut all = site
            .with_role(role)
            .filter(|permanent| site.networks[permanent.network].node_name == machine.name);
        all.next()
    };
    let (from, to) = (on(PodRole::Honest)?.ips[family], on(PodRole::Victim)?.ips[family]);
    let what = format!("{from} to {to} on {}", machine.name);
    let (kind, packet) = udp(from, to, (PORT, PORT), &payload(Attack::UnderlaySource, &what))?;
    Some(ethernet(machine.mac, mac, (kind, &packet)))
}

/// The address for a dual-stack socket.
fn dual(ip: IpAddr, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), port),
        IpAddr::V6(_) => SocketAddr::new(ip, port),
    }
}

/// Honest pods send to every listener that they may reach.
fn legal(soak: &Soak, site: &SoakSite) {
    let mut random = soak.random(430);
    let text =
        if soak.options.plant { format!("{HOSTILE} Planted datagram") } else { format!("{LEGAL} datagram") };
    while !soak.is_over() {
        soak.pause(&mut random, 100, 300);
        for from in site.with_role(PodRole::Honest) {
            let scope = site.networks[from.network].scope;
            let node = site.networks[from.network].node_name;
            let victims =
                site.with_role(PodRole::Victim).filter(|to| site.networks[to.network].scope == scope);
            let own_node = site.machines.iter().filter(|machine| machine.name == node);
            let targets = victims
                .flat_map(|to| to.ips.clone())
                .chain(own_node.flat_map(|machine| machine.addresses.clone()));
            let targets: Vec<IpAddr> = targets.collect();
            let sent = from.pod.enter(|| -> std::io::Result<u64> {
                let socket = UdpSocket::bind("[::]:0")?;
                // Routes may be deleted at the moment; the next round sends again.
                let sent = |to: &&IpAddr| socket.send_to(text.as_bytes(), dual(**to, PORT)).is_ok();
                Ok(targets.iter().filter(sent).count() as u64)
            });
            match sent {
                Ok(Ok(sent)) => soak.ledger.count_by("legal datagrams sent", sent),
                Ok(Err(error)) => soak.ledger.find("an honest pod cannot send", error.to_string()),
                Err(error) => soak.ledger.find("an honest pod cannot send", format!("{error:#}")),
            }
        }
    }
}

/// A pod with a host port at an address that is not the node's. Packets of other hosts to this address must not reach it.
fn capture(soak: &Soak, site: &SoakSite, pod: &Pod) {
    let mut random = soak.random(440);
    let network = &site.networks[0];
    let victims: Vec<&PermanentPod> = site.with_role(PodRole::Victim).collect();
    while !soak.is_over() {
        soak.pause(&mut random, 500, 2000);
        let family = random.below(2) as usize;
        let unowned = match random.below(4) {
            0 => victims[1].ips[family],
            1 => site.machines[1].addresses[family],
            2 if family == 0 => IpAddr::from([198, 51, 100, 7]),
            2 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(),
            _ => victims[0].ips[family],
        };
        let done = capture_once(soak, site, (network, pod), unowned);
        soak.step("a host port cannot be tried", done);
    }
    let removed = pod.destroy();
    soak.step("a sandbox cannot be removed", removed);
}

fn capture_once(
    soak: &Soak,
    site: &SoakSite,
    (network, pod): (&SoakNetwork, &Pod),
    unowned: IpAddr,
) -> Result<()> {
    let mut config = network.config.clone();
    config["runtimeConfig"] = json!({"portMappings": [
        {"hostPort": PORT, "containerPort": PORT, "protocol": "udp", "hostIP": unowned.to_string()}]});
    let call =
        |verb| -> Call { Call { container: Some(pod.id().to_owned()), ..Call::pod(verb, pod, &config) } };
    network.register(pod.id());
    let added = site.plugin.call(&network.node, &call(Verb::Add))?;
    let result: Option<Value> = added.success().then(|| added.ok()).transpose()?;
    if result.is_some() {
        let _intact = soak.while_firewall_is_intact();
        let listener = pod.enter(|| UdpSocket::bind(("::", PORT)))?.context("the pod cannot listen")?;
        listener.set_nonblocking(true)?;
        for from in site.with_role(PodRole::Honest).filter(|permanent| permanent.network == 0) {
            for ns in [&*from.pod, &*network.node] {
                let sent = ns.enter(|| {
                    UdpSocket::bind("[::]:0").map(|socket| socket.send_to(b"captured", dual(unowned, PORT)))
                })?;
                // A missing route is not an error.
                if sent.is_ok_and(|sent| sent.is_ok()) {
                    soak.ledger.count("datagrams to host ports at other addresses");
                }
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut buffer = [0; 64];
        while let Ok((length, from)) = listener.recv_from(&mut buffer) {
            if &buffer[..length] == b"captured" {
                soak.ledger.find(
                    "a host port captured packets of another address",
                    format!("{unowned}, sent by {from}"),
                );
            }
        }
    } else {
        soak.ledger.count("host ports at other addresses refused");
    }
    for _ in 0..20 {
        if site.plugin.call(&network.node, &call(Verb::Del))?.success() {
            network.unregister(pod.id());
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    anyhow::bail!("DEL of the capturing pod fails repeatedly")
}
