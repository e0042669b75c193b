//! Parses the kernel's answers. Unknown attributes are skipped, because newer kernels add some.

mod ip;
mod link;
mod tc;

pub use ip::{Address, Neighbour, RouteLookup, RouteMatch};
pub(crate) use link::snooping_of;
pub use link::{Link, Vxlan};
pub use tc::Qdisc;

pub(crate) use tc::redirect_target;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::op::{Fdb, Route};
    use crate::wire::{Batch, Head};

    fn parse_all(message: &[u8]) {
        let _ = Link::parse(message);
        let _ = Address::parse(message);
        let _ = Neighbour::parse(message);
        let _ = Fdb::parse(message);
        let _ = Route::parse(message);
        let _ = RouteLookup::parse(message);
        let _ = RouteMatch::parse(message);
        let _ = Qdisc::parse(message);
        let _ = redirect_target(message);
    }

    proptest! {
        #[test]
        fn arbitrary_messages_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_all(&bytes);
        }

        /// Well-formed attributes of wrong sizes, in messages of a valid family, reach more of the parser than random bytes.
        #[test]
        fn arbitrary_attributes_never_panic(
            family in prop_oneof![Just(0u8), Just(2u8), Just(10u8), any::<u8>()],
            header in proptest::collection::vec(any::<u8>(), 7..23),
            list in proptest::collection::vec((0u16..70, proptest::collection::vec(any::<u8>(), 0..40)), 0..12),
        ) {
            let mut batch = Batch::new();
            batch.message(Head { kind: 16, flags: 0, sequence: 1 }, |body| {
                body.raw(&[&[family], &header[..]].concat());
                for (kind, value) in &list {
                    body.bytes(*kind, value);
                }
            }).unwrap();
            parse_all(&batch.as_bytes()[16..]);
        }
    }
}
