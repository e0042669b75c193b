//! Numbers of the kernel's interface (`linux/netfilter/nfnetlink.h`, `nf_tables.h`, `nfnetlink_conntrack.h`).

pub(crate) const BATCH_BEGIN: u16 = 0x10;
pub(crate) const BATCH_END: u16 = 0x11;
pub(crate) const BATCH_GENID: u16 = 1;

pub(crate) const SUBSYS_CONNTRACK: u16 = 1 << 8;
pub(crate) const SUBSYS_NFTABLES: u16 = 10 << 8;

pub(crate) const GETTABLE: u16 = SUBSYS_NFTABLES | 1;
pub(crate) const DELTABLE: u16 = SUBSYS_NFTABLES | 2;
pub(crate) const GETCHAIN: u16 = SUBSYS_NFTABLES | 4;
pub(crate) const DELCHAIN: u16 = SUBSYS_NFTABLES | 5;
pub(crate) const GETRULE: u16 = SUBSYS_NFTABLES | 7;
pub(crate) const GETSET: u16 = SUBSYS_NFTABLES | 10;
pub(crate) const DELSET: u16 = SUBSYS_NFTABLES | 11;
pub(crate) const NEWSETELEM: u16 = SUBSYS_NFTABLES | 12;
pub(crate) const GETSETELEM: u16 = SUBSYS_NFTABLES | 13;
pub(crate) const DELSETELEM: u16 = SUBSYS_NFTABLES | 14;
pub(crate) const GETGEN: u16 = SUBSYS_NFTABLES | 16;

pub(crate) const TABLE_NAME: u16 = 1;
pub(crate) const TABLE_FLAGS: u16 = 2;
pub(crate) const TABLE_DORMANT: u32 = 1 << 0;
pub(crate) const TABLE_OWNED: u32 = 1 << 1;
pub(crate) const CHAIN_TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const CHAIN_HOOK: u16 = 4;
pub(crate) const CHAIN_POLICY: u16 = 5;
pub(crate) const CHAIN_TYPE: u16 = 7;
pub(crate) const HOOK_NUMBER: u16 = 1;
pub(crate) const HOOK_PRIORITY: u16 = 2;
pub(crate) const RULE_TABLE: u16 = 1;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const RULE_USERDATA: u16 = 7;
pub(crate) const EXPR_NAME: u16 = 1;
pub(crate) const EXPR_DATA: u16 = 2;
pub(crate) const LOOKUP_SET: u16 = 1;
pub(crate) const CMP_DATA: u16 = 3;
pub(crate) const IMMEDIATE_DATA: u16 = 2;
pub(crate) const DATA_VERDICT: u16 = 2;
pub(crate) const VERDICT_CODE: u16 = 1;
pub(crate) const VERDICT_CHAIN: u16 = 2;
/// Of the expressions `target` and `match`, which wrap extensions of iptables.
pub(crate) const XT_NAME: u16 = 1;
pub(crate) const MATCH_INFO: u16 = 3;
pub(crate) const SET_TABLE: u16 = 1;
pub(crate) const SET_NAME: u16 = 2;
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
