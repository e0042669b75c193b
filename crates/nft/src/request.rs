//! Requests to nf_tables about elements, chains and tables, and how its answers are read.

use std::net::IpAddr;

use netlink::wire::{Body, NLM_F_CREATE, attribute, attribute_at, attributes, read_text};

use crate::desired::{TableFamily, TableId};
use crate::element::{Data, Element, StoredKey, bytes, verdict_bytes};
use crate::number;
use crate::socket::{MessageHeader, NftRequest};

fn verb(family: TableFamily, kind: u16) -> MessageHeader {
    let family = match family {
        TableFamily::Inet => libc::NFPROTO_INET,
        TableFamily::Bridge => libc::NFPROTO_BRIDGE,
    };
    MessageHeader { kind, flags: 0, family: u8::try_from(family).unwrap_or_default(), version: 0 }
}

/// Adds an element. If it exists with the same data, nothing changes; with other data the kernel answers EEXIST.
pub(crate) fn add<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(element.table.family, number::NEWSETELEM) };
    NftRequest::new(verb, move |body| write(body, element, ElementPart::KeyAndData))
}

/// Lets an element expire at once. Since Linux 6.12 this changes an existing element; earlier kernels ignore it. An element that
/// does not exist is added and expires.
///
/// Why not delete: the kernel frees deleted elements after a grace period of about 16 ms. A process that closes a netfilter
/// socket before that waits for it with all tables locked. So a plugin that deletes elements and exits would delay all other
/// processes. Expired elements are collected later, and no process waits.
pub(crate) fn expire<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(element.table.family, number::NEWSETELEM) };
    NftRequest::new(verb, move |body| write(body, element, ElementPart::KeyAndDataExpiring))
}

/// Whether the element in the answer expires.
pub(crate) fn expires(answer: &[u8]) -> bool {
    elements(answer).next().is_some_and(|element| element.expires)
}

/// Deletes an element. The kernel compares only the key, not the data.
pub(crate) fn delete<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    NftRequest::new(verb(element.table.family, number::DELSETELEM), move |body| {
        write(body, element, ElementPart::Key);
    })
}

/// Adds several elements of one set in one message.
pub(crate) fn add_group<'e>(elements: &'e [&'e Element<'e>]) -> NftRequest<'e> {
    let family = elements.first().map_or(TableFamily::Inet, |first| first.table.family);
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(family, number::NEWSETELEM) };
    NftRequest::new(verb, move |body| {
        let Some(first) = elements.first() else { return };
        write_elements(body, (first.table, &first.set), |list| {
            elements.iter().for_each(|element| write_one(list, element, ElementPart::KeyAndData));
        });
    })
}

/// Deletes several elements of one set in one message.
pub(crate) fn delete_group<'a>(table: TableId<'a>, keys: &'a [(String, StoredKey)]) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::DELSETELEM), move |body| {
        let Some((set, _)) = keys.first() else { return };
        write_elements(body, (table, set), |list| {
            keys.iter().for_each(|(_, key)| write_key(list, key, |_| {}));
        });
    })
}

pub(crate) fn get<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    NftRequest::new(verb(element.table.family, number::GETSETELEM), move |body| {
        write(body, element, ElementPart::Key);
    })
}

pub(crate) fn get_sets(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::GETSET), move |body| body.str(number::SET_TABLE, table.name))
}

/// All elements of a set.
pub(crate) fn get_elements<'a>(table: TableId<'a>, set: &'a str) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::GETSETELEM), move |body| write_set(body, table, set))
}

/// An element of an answer.
pub(crate) struct ReadElement<'a> {
    pub(crate) key: &'a [u8],
    /// The last key of an interval of a concatenation.
    last: Option<&'a [u8]>,
    is_interval_end: bool,
    /// The data of a map's element, as [`Element::value`] returns it.
    pub(crate) value: Option<Vec<u8>>,
    /// Its pod was removed.
    pub(crate) expires: bool,
}

impl ReadElement<'_> {
    /// None for the element that nft adds before the first interval of a set: an interval that ends at 0 is empty.
    pub(crate) fn stored(&self) -> Option<StoredKey> {
        let is_padding = self.is_interval_end && self.key.iter().all(|byte| *byte == 0);
        let (key, last) = (self.key.to_vec(), self.last.map(<[u8]>::to_vec));
        (!is_padding).then_some(StoredKey { key, last, is_interval_end: self.is_interval_end })
    }
}

pub(crate) fn elements(answer: &[u8]) -> impl Iterator<Item = ReadElement<'_>> {
    raw_elements(answer).filter_map(|element| {
        let flags = attribute(element, number::ELEM_FLAGS).and_then(|flags| flags.first_chunk());
        let flags = flags.copied().map_or(0, u32::from_be_bytes);
        Some(ReadElement {
            key: attribute_at(element, &[number::ELEM_KEY, number::DATA_VALUE])?,
            last: attribute_at(element, &[number::ELEM_KEY_END, number::DATA_VALUE]),
            is_interval_end: flags & number::ELEM_INTERVAL_END != 0,
            value: attribute(element, number::ELEM_DATA).and_then(read_data),
            expires: attribute(element, number::ELEM_TIMEOUT).is_some(),
        })
    })
}

fn read_data(data: &[u8]) -> Option<Vec<u8>> {
    if let Some(value) = attribute(data, number::DATA_VALUE) {
        return Some(value.to_vec());
    }
    let verdict = attribute(data, number::DATA_VERDICT)?;
    let code = attribute(verdict, number::VERDICT_CODE)?.first_chunk().copied().map(i32::from_be_bytes)?;
    let chain = attribute(verdict, number::VERDICT_CHAIN).map(read_text).unwrap_or_default();
    Some(verdict_bytes(code, &chain))
}

/// The elements of an answer, each as its attributes.
pub(crate) fn raw_elements(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
    let list = attribute(answer, number::LIST_ELEMENTS).unwrap_or_default();
    attributes(list).filter(|(kind, _)| *kind == number::LIST_ELEM).map(|(_, element)| element)
}

/// Adds an element of a set, or of a map that is not a verdict map, from its bytes.
pub(crate) fn add_key<'a>(
    (table, set): (TableId<'a>, &'a str),
    key: &[u8],
    value: Option<&'a [u8]>,
) -> NftRequest<'a> {
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(table.family, number::NEWSETELEM) };
    let key = StoredKey::exact(key.to_vec());
    NftRequest::new(verb, move |body| {
        write_elements(body, (table, set), |list| {
            write_key(list, &key, |element| {
                if let Some(value) = value {
                    write_value(element, number::ELEM_DATA, value);
                }
            });
        });
    })
}

/// Deletes the element with this key.
pub(crate) fn delete_key<'a>(table: TableId<'a>, set: &'a str, key: &[u8]) -> NftRequest<'a> {
    delete_stored(table, set, &StoredKey::exact(key.to_vec()))
}

pub(crate) fn delete_stored<'a>(table: TableId<'a>, set: &'a str, key: &StoredKey) -> NftRequest<'a> {
    let key = key.clone();
    NftRequest::new(verb(table.family, number::DELSETELEM), move |body| {
        write_elements(body, (table, set), |list| write_key(list, &key, |_| {}));
    })
}

pub(crate) fn get_table(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::GETTABLE), move |body| {
        body.str(number::TABLE_NAME, table.name);
    })
}

/// All tables of the family, for a dump.
pub(crate) fn get_tables(family: TableFamily) -> NftRequest<'static> {
    NftRequest::new(verb(family, number::GETTABLE), |_| {})
}

pub(crate) fn name_of_table(table: &[u8]) -> Option<String> {
    attribute(table, number::TABLE_NAME).map(read_text)
}

pub(crate) fn is_dormant(table: &[u8]) -> bool {
    let flags = attribute(table, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
    flags.copied().map_or(0, u32::from_be_bytes) & number::TABLE_DORMANT != 0
}

/// For a dump. The kernel lists the chains of all tables of the family.
pub(crate) fn get_chains(family: TableFamily) -> NftRequest<'static> {
    NftRequest::new(verb(family, number::GETCHAIN), |_| {})
}

pub(crate) fn get_rules(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::GETRULE), move |body| body.str(number::RULE_TABLE, table.name))
}

pub(crate) fn delete_table(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::DELTABLE), move |body| {
        body.str(number::TABLE_NAME, table.name);
    })
}

/// Deletes a chain with its rules.
pub(crate) fn delete_chain<'a>(table: TableId<'a>, chain: &'a str) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::DELCHAIN), move |body| {
        body.str(number::CHAIN_TABLE, table.name);
        body.str(number::CHAIN_NAME, chain);
    })
}

/// Deletes a set with its elements. The kernel answers EBUSY if a rule uses it.
pub(crate) fn delete_set<'a>(table: TableId<'a>, set: String) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::DELSET), move |body| {
        body.str(number::SET_TABLE, table.name);
        body.str(number::SET_NAME, &set);
    })
}

/// Requests the generation: every change of any table increases it.
pub(crate) fn get_generation() -> NftRequest<'static> {
    NftRequest::new(MessageHeader { kind: number::GETGEN, flags: 0, family: 0, version: 0 }, |_| {})
}

#[derive(Clone, Copy)]
enum ElementPart {
    Key,
    KeyAndData,
    KeyAndDataExpiring,
}

const SHORTEST_TIMEOUT_MS: u64 = 1;

fn write(body: &mut Body<'_>, element: &Element<'_>, part: ElementPart) {
    write_elements(body, (element.table, &element.set), |list| write_one(list, element, part));
}

fn write_one(list: &mut Body<'_>, element: &Element<'_>, part: ElementPart) {
    let (key, end) = element.stored();
    write_key(list, &key, |body| match part {
        ElementPart::Key => {}
        ElementPart::KeyAndData => write_data(body, &element.data),
        ElementPart::KeyAndDataExpiring => {
            write_data(body, &element.data);
            body.bytes(number::ELEM_TIMEOUT, &SHORTEST_TIMEOUT_MS.to_be_bytes());
        }
    });
    if let Some(end) = &end {
        write_key(list, end, |_| {});
    }
}

fn write_set(body: &mut Body<'_>, table: TableId<'_>, set: &str) {
    body.str(number::LIST_TABLE, table.name);
    body.str(number::LIST_SET, set);
}

fn write_elements(
    body: &mut Body<'_>,
    (table, set): (TableId<'_>, &str),
    elements: impl FnOnce(&mut Body<'_>),
) {
    write_set(body, table, set);
    body.nest(number::LIST_ELEMENTS, elements);
}

/// One element, with further attributes.
fn write_key(list: &mut Body<'_>, key: &StoredKey, attributes: impl FnOnce(&mut Body<'_>)) {
    list.nest(number::LIST_ELEM, |element| {
        write_value(element, number::ELEM_KEY, &key.key);
        if let Some(last) = &key.last {
            write_value(element, number::ELEM_KEY_END, last);
        }
        if key.is_interval_end {
            element.bytes(number::ELEM_FLAGS, &number::ELEM_INTERVAL_END.to_be_bytes());
        }
        attributes(element);
    });
}

fn write_data(body: &mut Body<'_>, data: &Data<'_>) {
    match data {
        Data::None => {}
        Data::Value(fields) => write_value(body, number::ELEM_DATA, &bytes(fields)),
        Data::Verdict(verdict) => {
            let (code, chain) = verdict.parts();
            body.nest(number::ELEM_DATA, |data| {
                data.nest(number::DATA_VERDICT, |verdict| {
                    verdict.bytes(number::VERDICT_CODE, &code.to_be_bytes());
                    if let Some(chain) = chain {
                        verdict.str(number::VERDICT_CHAIN, chain);
                    }
                });
            });
        }
    }
}

fn write_value(body: &mut Body<'_>, kind: u16, value: &[u8]) {
    body.nest(kind, |data| data.bytes(number::DATA_VALUE, value));
}

pub(crate) fn generation(answer: &[u8]) -> Option<u32> {
    attribute(answer, number::GEN_ID)?.first_chunk().copied().map(u32::from_be_bytes)
}

/// Whether the element in the answer has the same data.
pub(crate) fn holds(element: &Element<'_>, answer: &[u8]) -> bool {
    value(answer) == element.value()
}

/// The pod that a host port is forwarded to. The element's value is an address and a port, each padded to four bytes.
pub(crate) fn pod_address(answer: &[u8]) -> Option<IpAddr> {
    let value = value(answer)?;
    let (address, _port) = value.split_last_chunk::<4>()?;
    match address.len() {
        4 => address.first_chunk::<4>().map(|ip| IpAddr::from(*ip)),
        16 => address.first_chunk::<16>().map(|ip| IpAddr::from(*ip)),
        _ => None,
    }
}

/// The data of the first element of an answer.
fn value(answer: &[u8]) -> Option<Vec<u8>> {
    elements(answer).next()?.value
}
