use types::TenantName;

/// Limits and marks of the traffic of a group's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficProfile {
    pub tenant: TenantName,
    pub name: String,
    /// Traffic to the pod.
    pub ingress: Option<TrafficLimit>,
    /// Traffic from the pod.
    pub egress: Option<TrafficLimit>,
    /// The DSCP of packets from the pod, 0 to 63. None: not changed.
    pub dscp: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrafficLimit {
    /// Bits per second.
    pub rate: u64,
    /// Bits.
    pub burst: u64,
}
