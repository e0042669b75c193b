use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Run load, faults and attacks at the same time, then audit for leftovers
#[derive(Debug, Parser)]
#[command(name = "podwire-soak", version)]
pub(crate) struct SoakOptions {
    /// Duration of the load in minutes [default: PODWIRE_SOAK_MINUTES, or 10]
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Duration of the load in seconds
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Number of workers that add and delete pods
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) workers: u8,
    /// Skip these faults and attacks
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    without: Vec<Attack>,
    /// Only these faults and attacks
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "without")]
    only: Vec<Attack>,
    /// Keep the lab's directory after a finding, and print where it is
    #[arg(long)]
    pub(crate) keep: bool,
    /// Plant a leftover of every kind; the audit must report all of them
    #[arg(long)]
    pub(crate) plant: bool,
    /// Set by the program when it runs inside its namespaces
    #[arg(long, hide = true)]
    pub(crate) inside: bool,
}

/// Faults and attacks that can be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Attack {
    /// kill -9 of agents
    AgentKills,
    /// kill -9 of plugins in the middle of a call
    PluginKills,
    /// etcd stops and starts
    Etcd,
    /// `nft flush ruleset`
    Flush,
    /// Deleted links, routes, neighbours and tunnels
    Drift,
    /// Frames with source addresses of other pods
    Spoof,
    /// Frames with source MACs of other pods, on a bridge
    Macs,
    /// The same in mode `routed`
    RoutedMacs,
    /// Frames to reserved multicast MACs, 01:80:c2:00:00:0X
    ReservedMacs,
    /// Neighbour entries for invented senders and unassigned addresses
    Neighbours,
    /// VXLAN packets from pods and from the underlay
    Vxlan,
    /// Router advertisements, redirects, advertisements for other addresses
    Adverts,
    /// Packets of the underlay with sources of local pods
    UnderlaySource,
    /// Host ports with a hostIP that is not an address of the node
    HostIp,
    /// IPAM delegation to the plugin itself
    SelfDelegation,
    /// IPAM plugins from the client's own CNI_PATH, through the agent
    CniPath,
    /// Mutated and invalid configs
    Configs,
    /// Pod subnets in loopback, link-local, multicast and other reserved ranges
    Subnets,
    /// Control characters in pod names
    ControlCharacters,
    /// Malformed requests on the agent's socket
    Requests,
    /// Records in the store that take another node's blocks, MACs or addresses
    Records,
    /// Unreadable records and records of a newer schema
    UnreadableRecords,
}

impl SoakOptions {
    pub(crate) fn has(&self, attack: Attack) -> bool {
        if self.only.is_empty() { !self.without.contains(&attack) } else { self.only.contains(&attack) }
    }

    pub(crate) fn lasting(&self) -> Duration {
        let from_env = || std::env::var("PODWIRE_SOAK_MINUTES").ok()?.parse().ok();
        let minutes = || self.minutes.or_else(from_env).unwrap_or(10);
        Duration::from_secs(self.seconds.unwrap_or_else(|| 60 * minutes()))
    }

    pub(crate) fn summary(&self) -> String {
        let name = |attack: &Attack| attack.to_possible_value().map(|value| value.get_name().to_owned());
        let out: Vec<String> =
            Attack::value_variants().iter().filter(|attack| !self.has(**attack)).filter_map(name).collect();
        let out = if out.is_empty() { "none".to_owned() } else { out.join(", ") };
        format!("{} s, {} workers, skipped: {out}", self.lasting().as_secs(), self.workers)
    }
}
