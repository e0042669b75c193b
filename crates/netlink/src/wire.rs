//! The netlink wire format: writes requests into one reused buffer, and iterates over attributes of answers.

use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NetlinkBuffer, NlasIterator};
pub use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST};

use crate::header::Header;

const HEADER: usize = 16;

/// The header of a request: message type, `NLM_F_*` flags, sequence number.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
}

/// The request has an attribute of more than 64 KiB, which netlink does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an attribute is longer than netlink's limit of 65535 bytes")]
pub struct Oversize;

/// Requests for one send. Reused, so that the memory is allocated once.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    oversize: bool,
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends one request. If it cannot be written, the batch is unchanged.
    pub fn message(&mut self, head: Head, body: impl FnOnce(&mut Body<'_>)) -> Result<(), Oversize> {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER, 0);
        self.oversize = false;
        body(&mut Body { batch: self });
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        if self.oversize || length == u32::MAX {
            self.bytes.truncate(start);
            return Err(Oversize);
        }
        let mut header = NetlinkBuffer::new(&mut self.bytes[start..]);
        header.set_length(length);
        header.set_message_type(head.kind);
        header.set_flags(head.flags);
        header.set_sequence_number(head.sequence);
        // Port 0: the kernel fills in the socket's port.
        header.set_port_number(0);
        Ok(())
    }
}

/// Writes the family header and the attributes of one request.
#[derive(Debug)]
pub struct Body<'a> {
    batch: &'a mut Batch,
}

impl Body<'_> {
    /// A family header: `ifinfomsg`, `rtmsg`, …
    pub(crate) fn header(&mut self, header: &impl Header) {
        header.write(&mut self.batch.bytes);
    }

    /// Appends bytes, padded to a multiple of four.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.batch.bytes.extend_from_slice(bytes);
        self.pad();
    }

    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |body| body.batch.bytes.extend_from_slice(value));
    }

    /// A string with a terminating NUL, as the kernel's `NLA_NUL_STRING` requires.
    pub fn str(&mut self, kind: u16, value: &str) {
        self.nested(kind, |body| {
            body.batch.bytes.extend_from_slice(value.as_bytes());
            body.batch.bytes.push(0);
        });
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    pub fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// A nested attribute.
    pub fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Body<'_>)) {
        self.nested(kind | NLA_F_NESTED, inner);
    }

    fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut Body<'_>)) {
        let start = self.batch.bytes.len();
        self.batch.bytes.resize(start + NLA_HEADER_SIZE, 0);
        inner(&mut Body { batch: self.batch });
        match u16::try_from(self.batch.bytes.len() - start) {
            Ok(length) => {
                self.batch.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
                self.batch.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
            }
            Err(_) => self.batch.oversize = true,
        }
        self.pad();
    }

    fn pad(&mut self) {
        let aligned = self.batch.bytes.len().next_multiple_of(4);
        self.batch.bytes.resize(aligned, 0);
    }
}

/// The attributes in `bytes` as (type without flags, value). Invalid bytes end the iteration: newer kernels may append
/// unknown data, but only after the known attributes.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).filter_map(|nla| {
        let (kind, length) = (nla.kind(), usize::from(nla.length()));
        nla.into_inner().get(NLA_HEADER_SIZE..length).map(|value| (kind, value))
    })
}

/// The first attribute of this type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// A nested attribute, by the types on its path.
pub fn attribute_at<'a>(bytes: &'a [u8], path: &[u16]) -> Option<&'a [u8]> {
    path.iter().try_fold(bytes, |inner, kind| attribute(inner, *kind))
}

pub fn read_u32(value: &[u8]) -> Option<u32> {
    value.first_chunk().copied().map(u32::from_ne_bytes)
}

pub fn read_u64(value: &[u8]) -> Option<u64> {
    value.first_chunk().copied().map(u64::from_ne_bytes)
}

/// Text up to its NUL. Invalid UTF-8 is replaced, because names of unmanaged links may contain any bytes.
pub fn read_text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: Head = Head { kind: 16, flags: 5, sequence: 7 };

    #[test]
    fn attributes_round_trip() {
        let mut batch = Batch::new();
        batch
            .message(HEAD, |body| {
                body.str(3, "eth0");
                body.nest(18, |inner| {
                    inner.u8(1, 9);
                    inner.u64(2, u64::MAX);
                });
                body.u32(4, 1500);
            })
            .unwrap();
        let bytes = batch.as_bytes();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(u32::from_ne_bytes(*bytes.first_chunk().unwrap()) as usize, bytes.len());
        let body = &bytes[HEADER..];
        assert_eq!(attribute(body, 3).map(read_text).as_deref(), Some("eth0"));
        assert_eq!(attribute(body, 4).and_then(read_u32), Some(1500));
        assert_eq!(attribute_at(body, &[18, 1]), Some(&[9][..]));
        assert_eq!(attribute_at(body, &[18, 2]).and_then(read_u64), Some(u64::MAX));
        assert_eq!(attribute(body, 99), None);
        assert_eq!(attribute_at(body, &[99, 1]), None);
    }

    #[test]
    fn an_oversized_attribute_leaves_the_batch_unchanged() {
        let mut batch = Batch::new();
        batch.message(HEAD, |body| body.u8(1, 1)).unwrap();
        let before = batch.as_bytes().to_vec();
        assert_eq!(batch.message(HEAD, |body| body.bytes(1, &[0; 70_000])), Err(Oversize));
        assert_eq!(batch.as_bytes(), before);
        batch.message(HEAD, |body| body.u8(1, 1)).unwrap();
        assert_eq!(batch.as_bytes().len(), 2 * before.len());
    }

    proptest! {
        #[test]
        fn arbitrary_attributes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for (_, value) in attributes(&bytes) {
                let _ = (read_u32(value), read_u64(value), read_text(value), attributes(value).count());
            }
        }
    }
}
