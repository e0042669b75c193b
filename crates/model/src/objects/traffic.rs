use std::fmt;

/// From the view of the pod to which a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Flows that a peer opens to the pod.
    #[serde(rename = "in")]
    Ingress,
    /// Flows that the pod opens.
    #[serde(rename = "out")]
    Egress,
}

/// `first <= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    pub const ALL: Self = Self { first: 0, last: u16::MAX };

    /// None if the range is empty.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    pub fn single(port: u16) -> Self {
        Self { first: port, last: port }
    }

    pub fn first(self) -> u16 {
        self.first
    }

    pub fn last(self) -> u16 {
        self.last
    }

    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Which destination ports of a protocol a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    All,
    Range(PortRange),
    /// A container port of the destination. It matches nothing if the destination has no port of this name and protocol.
    Named(String),
}
