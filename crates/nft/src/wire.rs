//! Netlink messages of netfilter, as bytes. Written by hand: the few attributes we need are fewer than the types a
//! library would bring, and this is on the way of every pod.

/// Numbers of the kernel's interface (`linux/netfilter/nfnetlink.h`, `nf_tables.h`, `nfnetlink_conntrack.h`).
pub(crate) mod number {
    pub(crate) const BATCH_BEGIN: u16 = 0x10;
    pub(crate) const BATCH_END: u16 = 0x11;
    pub(crate) const BATCH_GENID: u16 = 1;

    pub(crate) const SUBSYS_CONNTRACK: u16 = 1 << 8;
    pub(crate) const SUBSYS_NFTABLES: u16 = 10 << 8;

    pub(crate) const DELTABLE: u16 = SUBSYS_NFTABLES | 2;
    pub(crate) const GETCHAIN: u16 = SUBSYS_NFTABLES | 4;
    pub(crate) const GETRULE: u16 = SUBSYS_NFTABLES | 7;
    pub(crate) const NEWSETELEM: u16 = SUBSYS_NFTABLES | 12;
    pub(crate) const GETSETELEM: u16 = SUBSYS_NFTABLES | 13;
    pub(crate) const DELSETELEM: u16 = SUBSYS_NFTABLES | 14;
    pub(crate) const GETGEN: u16 = SUBSYS_NFTABLES | 16;

    pub(crate) const TABLE_NAME: u16 = 1;
    pub(crate) const CHAIN_TABLE: u16 = 1;
    pub(crate) const CHAIN_NAME: u16 = 3;
    pub(crate) const RULE_TABLE: u16 = 1;
    pub(crate) const RULE_CHAIN: u16 = 2;
    pub(crate) const GEN_ID: u16 = 1;

    pub(crate) const LIST_TABLE: u16 = 1;
    pub(crate) const LIST_SET: u16 = 2;
    pub(crate) const LIST_ELEMENTS: u16 = 3;
    pub(crate) const LIST_ELEM: u16 = 1;
    pub(crate) const ELEM_KEY: u16 = 1;
    pub(crate) const ELEM_DATA: u16 = 2;
    pub(crate) const ELEM_TIMEOUT: u16 = 4;
    pub(crate) const DATA_VALUE: u16 = 1;

    pub(crate) const CT_GET: u16 = SUBSYS_CONNTRACK | 1;
    pub(crate) const CT_DELETE: u16 = SUBSYS_CONNTRACK | 2;
    pub(crate) const CTA_TUPLE_ORIG: u16 = 1;
    pub(crate) const CTA_TUPLE_REPLY: u16 = 2;
    pub(crate) const CTA_ID: u16 = 12;
    pub(crate) const CTA_ZONE: u16 = 18;
    pub(crate) const CTA_FILTER: u16 = 25;
    pub(crate) const CTA_FILTER_ORIG_FLAGS: u16 = 1;
    pub(crate) const CTA_FILTER_REPLY_FLAGS: u16 = 2;
    pub(crate) const CTA_TUPLE_IP: u16 = 1;
    pub(crate) const CTA_TUPLE_PROTO: u16 = 2;
    pub(crate) const CTA_IP_V4_SRC: u16 = 1;
    pub(crate) const CTA_IP_V4_DST: u16 = 2;
    pub(crate) const CTA_IP_V6_SRC: u16 = 3;
    pub(crate) const CTA_IP_V6_DST: u16 = 4;
    pub(crate) const CTA_PROTO_NUM: u16 = 1;
    pub(crate) const CTA_PROTO_DST_PORT: u16 = 3;
    pub(crate) const FILTER_IP_SRC: u32 = 1 << 0;
    pub(crate) const FILTER_IP_DST: u32 = 1 << 1;
    pub(crate) const FILTER_PROTO_NUM: u32 = 1 << 3;
    pub(crate) const FILTER_PROTO_DST_PORT: u32 = 1 << 5;

    /// `NLMSGERR_ATTR_MSG`: the sentence of an extended acknowledgement.
    pub(crate) const ERROR_TEXT: u16 = 1;
}

const NLA_F_NESTED: u16 = 1 << 15;
/// Without the flags for nesting and byte order.
const KIND_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
/// `struct nfgenmsg`: family, version, resource id (big endian).
const GENERAL: usize = 4;

/// The head of one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) family: u8,
    pub(crate) version: u8,
    pub(crate) resource: u16,
}

/// Attributes, or messages, appended to a buffer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn new(body: impl FnOnce(&mut Self)) -> Self {
        let mut new = Self(Vec::with_capacity(128));
        body(&mut new);
        new
    }

    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) {
        let start = self.open(kind);
        self.0.extend_from_slice(value);
        self.close(start);
    }

    /// A string ends with a zero byte.
    pub(crate) fn put_str(&mut self, kind: u16, value: &str) {
        let start = self.open(kind);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self.close(start);
    }

    /// Attributes inside one, as they were read.
    pub(crate) fn put_nested(&mut self, kind: u16, value: &[u8]) {
        self.put(kind | NLA_F_NESTED, value);
    }

    pub(crate) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.open(kind | NLA_F_NESTED);
        body(self);
        self.close(start);
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    /// The length counts the attribute without its padding. Ours are names, addresses and lists of them: far below
    /// the 64 KiB that the field can say.
    fn close(&mut self, start: usize) {
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Appends a whole message.
    pub(crate) fn message(&mut self, head: Head, attributes: &Self) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(&head.kind.to_ne_bytes());
        self.0.extend_from_slice(&head.flags.to_ne_bytes());
        self.0.extend_from_slice(&head.seq.to_ne_bytes());
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(&[head.family, head.version]);
        self.0.extend_from_slice(&head.resource.to_be_bytes());
        self.0.extend_from_slice(&attributes.0);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// One message that came from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes behind netfilter's general header.
    pub(crate) fn attributes(&self) -> &'a [u8] {
        self.payload.get(GENERAL..).unwrap_or_default()
    }

    /// Of an error message: the errno (0 is an acknowledgement) and the kernel's sentence, where it has one.
    pub(crate) fn error(&self) -> (i32, String) {
        let errno = self.payload.first_chunk().map_or(libc::EPROTO, |code| -i32::from_ne_bytes(*code));
        let echoed_length =
            self.payload.get(4..).and_then(<[u8]>::first_chunk).map(|b| u32::from_ne_bytes(*b));
        // With NETLINK_CAP_ACK (flag NLM_F_CAPPED) only the header of our request is echoed.
        let echoed = match (self.flags & 0x100, echoed_length) {
            (0, Some(length)) => length as usize,
            (_, _) => HEADER,
        };
        let rest = self.payload.get(4 + echoed.next_multiple_of(4)..).unwrap_or_default();
        (errno, find(rest, number::ERROR_TEXT).map(text).unwrap_or_default())
    }
}

/// The messages in one datagram; a broken one ends them.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let head: &[u8; HEADER] = rest.first_chunk()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *head;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags) = (u16::from_ne_bytes([k0, k1]), u16::from_ne_bytes([f0, f1]));
        Some(Message { kind, flags, seq: u32::from_ne_bytes([s0, s1, s2, s3]), payload })
    })
}

/// The attributes in a buffer, kind and value; a broken one ends them.
pub(crate) fn attributes(buffer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let [l0, l1, k0, k1] = *rest.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & KIND_MASK, value))
    })
}

/// The first attribute of a kind.
pub(crate) fn find(buffer: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(buffer).find_map(|(found, value)| (found == kind).then_some(value))
}

/// An attribute inside others, by the kinds on the way to it.
pub(crate) fn find_path<'a>(buffer: &'a [u8], path: &[u16]) -> Option<&'a [u8]> {
    path.iter().try_fold(buffer, |inner, kind| find(inner, *kind))
}

/// A string attribute without its final zero.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u32) -> Head {
        Head { kind: number::NEWSETELEM, flags: 5, seq, family: 1, version: 0, resource: 0x0a0b }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut out = Attributes::default();
        let attributes = Attributes::new(|a| {
            a.put_str(1, "abc");
            a.nest(3, |a| a.nest(1, |a| a.put(2, &[9, 8, 7, 6, 5])));
        });
        out.message(head(7), &attributes);
        out.message(head(8), &Attributes::default());
        let read: Vec<Message<'_>> = messages(out.bytes()).collect();
        assert_eq!(
            read.iter().map(|m| (m.kind, m.flags, m.seq)).collect::<Vec<_>>(),
            [(number::NEWSETELEM, 5, 7), (number::NEWSETELEM, 5, 8)]
        );
        assert_eq!(read[0].payload[..4], [1, 0, 0x0a, 0x0b]);
        assert_eq!(find(read[0].attributes(), 1).map(text).as_deref(), Some("abc"));
        assert_eq!(find_path(read[0].attributes(), &[3, 1, 2]), Some(&[9, 8, 7, 6, 5][..]));
        assert_eq!(read[1].attributes(), []);
    }

    #[test]
    fn broken_bytes_end_the_reading_and_nothing_else() {
        let mut out = Attributes::default();
        out.message(head(7), &Attributes::new(|a| a.put(1, &[1, 2, 3, 4])));
        for cut in 0..out.bytes().len() {
            assert_eq!(messages(&out.bytes()[..cut]).count(), 0);
        }
        for junk in [&[0xff; 40][..], &[0; 40], &[3, 0, 0, 0, 1], &[4]] {
            assert!(messages(junk).count() <= 10);
            assert!(attributes(junk).count() <= 10);
        }
    }
}
