//! Transmit checksum offload of links, by generic netlink (`ethtool` family, Linux 5.7). Some lower devices compute wrong
//! checksums for tunnelled packets. Then the offload must be disabled on the tunnel device.

use std::fmt;
use std::ops::ControlFlow;

use rustix::io::Errno;

use crate::error::Error;
use crate::kernel::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, ETHTOOL_A_BITSET_BIT_NAME,
    ETHTOOL_A_BITSET_BIT_VALUE, ETHTOOL_A_BITSET_BITS, ETHTOOL_A_BITSET_BITS_BIT, ETHTOOL_A_BITSET_NOMASK,
    ETHTOOL_A_FEATURES_ACTIVE, ETHTOOL_A_FEATURES_HEADER, ETHTOOL_A_FEATURES_HW, ETHTOOL_A_FEATURES_WANTED,
    ETHTOOL_A_HEADER_DEV_INDEX, ETHTOOL_MSG_FEATURES_GET, ETHTOOL_MSG_FEATURES_SET, GENL_ID_CTRL,
};
use crate::lookup::oversize;
use crate::netns::NetNs;
use crate::socket::{Content, NetlinkProtocol, Refusal, Socket};
use crate::wire::{
    Batch, Body, Head, NLM_F_ACK, NLM_F_REQUEST, attribute, attribute_at, attributes, read_text,
};

/// A link has the first feature, or one for each family.
const CHECKSUMS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];

/// `struct genlmsghdr`: command, version, two reserved bytes.
const GENL_HEADER: usize = 4;

/// A socket for link features in the namespace in which it was opened.
pub struct Ethtool {
    socket: Socket,
    batch: Batch,
    family: u16,
}

/// The operation for error messages, and the command.
struct EthtoolCommand<'a>(&'a str, u8);

/// The checksum features of a link.
struct Features {
    /// Features that can be changed.
    changeable: Vec<&'static str>,
    active: Vec<&'static str>,
}

impl Ethtool {
    /// Opens a socket in the namespace of the calling thread. On a kernel without the family, `Error::is_unsupported`.
    pub fn open() -> Result<Self, Error> {
        let mut ethtool = Self {
            socket: Socket::open(NetlinkProtocol::Generic)?,
            batch: Batch::new(),
            family: GENL_ID_CTRL,
        };
        let operation = "find the kernel's ethtool family";
        let encode = |body: &mut Body<'_>| body.str(CTRL_ATTR_FAMILY_NAME, "ethtool");
        let mut family = None;
        let answer = ethtool.request(EthtoolCommand(operation, CTRL_CMD_GETFAMILY), encode, |list| {
            family = attribute(list, CTRL_ATTR_FAMILY_ID).and_then(|id| id.first_chunk().copied());
        });
        match answer {
            Err(Error::Refused { operation, refusal }) if refusal.errno == Errno::NOENT => {
                return Err(Error::Lacking { operation, refusal });
            }
            other => other?,
        }
        ethtool.family = family.map(u16::from_ne_bytes).ok_or_else(|| Error::Malformed {
            operation: operation.to_owned(),
            what: "the family has no ID",
        })?;
        Ok(ethtool)
    }

    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Whether checksums of sent packets are left to this link.
    pub fn tx_checksum(&mut self, link: u32) -> Result<bool, Error> {
        let features = self.features(link, &format!("read the features of link {link}"))?;
        Ok(!features.active.is_empty())
    }

    /// Enables or disables the offload. If the link's setting is fixed, `Error::is_unsupported`.
    pub fn set_tx_checksum(&mut self, link: u32, on: bool) -> Result<(), Error> {
        let operation = format!("switch checksum offload of link {link} {}", if on { "on" } else { "off" });
        let before = self.features(link, &operation)?;
        if before.active.is_empty() != on {
            return Ok(());
        }
        let encode = |body: &mut Body<'_>| {
            write_device(body, link);
            body.nest(ETHTOOL_A_FEATURES_WANTED, |set| {
                set.nest(ETHTOOL_A_BITSET_BITS, |bits| {
                    for name in &before.changeable {
                        bits.nest(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                            bit.str(ETHTOOL_A_BITSET_BIT_NAME, name);
                            if on {
                                bit.bytes(ETHTOOL_A_BITSET_BIT_VALUE, &[]);
                            }
                        });
                    }
                });
            });
        };
        self.request(EthtoolCommand(&operation, ETHTOOL_MSG_FEATURES_SET), encode, |_| {})?;
        // The kernel also acknowledges requests that it did not carry out.
        let after = self.features(link, &operation)?;
        if after.active.is_empty() == on {
            let message = Some("the checksum offload of the link is fixed".to_owned());
            return Err(Refusal { errno: Errno::OPNOTSUPP, message }.during(operation));
        }
        Ok(())
    }

    fn features(&mut self, link: u32, operation: &str) -> Result<Features, Error> {
        let mut features = None;
        let encode = |body: &mut Body<'_>| write_device(body, link);
        self.request(EthtoolCommand(operation, ETHTOOL_MSG_FEATURES_GET), encode, |list| {
            features = Some(Features {
                changeable: active_checksums(list, ETHTOOL_A_FEATURES_HW),
                active: active_checksums(list, ETHTOOL_A_FEATURES_ACTIVE),
            });
        })?;
        features
            .ok_or_else(|| Error::Malformed { operation: operation.to_owned(), what: "it has no features" })
    }

    /// Sends one request and passes the attributes of all answers to `each`, until the request is acknowledged.
    fn request(
        &mut self,
        EthtoolCommand(operation, command): EthtoolCommand<'_>,
        encode: impl Fn(&mut Body<'_>),
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let sequences = self.socket.take_sequences(1);
        let head = Head { kind: self.family, flags: NLM_F_REQUEST | NLM_F_ACK, sequence: sequences.start };
        self.batch.clear();
        let written = self.batch.message(head, |body| {
            body.raw(&[command, 1, 0, 0]);
            encode(body);
        });
        written.map_err(oversize(operation))?;
        let mut refused = None;
        let answered = self.socket.exchange(&self.batch, sequences, |_, reply| {
            match reply.content {
                Content::Data(message) => {
                    each(message.get(GENL_HEADER..).unwrap_or_default());
                    return ControlFlow::Continue(());
                }
                Content::Refused(refusal) => refused = Some(refusal.during(operation)),
                Content::Ack | Content::Done => {}
            }
            ControlFlow::Break(())
        });
        answered.map_err(|e| e.during(operation))?;
        refused.map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Ethtool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ethtool").field("family", &self.family).finish_non_exhaustive()
    }
}

fn write_device(body: &mut Body<'_>, link: u32) {
    body.nest(ETHTOOL_A_FEATURES_HEADER, |header| header.u32(ETHTOOL_A_HEADER_DEV_INDEX, link));
}

/// The checksum features that are set in a bitset.
fn active_checksums(list: &[u8], kind: u16) -> Vec<&'static str> {
    let bits = attribute_at(list, &[kind, ETHTOOL_A_BITSET_BITS]).unwrap_or_default();
    let checksum = |bit: &[u8]| {
        let name = attribute(bit, ETHTOOL_A_BITSET_BIT_NAME).map(read_text)?;
        // A bitset with a mask also lists bits that are not set.
        let is_on = attribute(bit, ETHTOOL_A_BITSET_BIT_VALUE).is_some()
            || attribute_at(list, &[kind, ETHTOOL_A_BITSET_NOMASK]).is_some();
        CHECKSUMS.into_iter().find(|known| is_on && *known == name)
    };
    attributes(bits).filter_map(|(_, bit)| checksum(bit)).collect()
}
