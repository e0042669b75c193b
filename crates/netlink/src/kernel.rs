//! Constants of the kernel's interface (`include/uapi/linux`) that libc lacks or defines with a different type.

/// linux/socket.h
pub(crate) const AF_INET: u8 = libc::AF_INET as u8;
pub(crate) const AF_INET6: u8 = libc::AF_INET6 as u8;
pub(crate) const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;
/// linux/if.h
pub(crate) const IFF_UP: u32 = libc::IFF_UP.cast_unsigned();
pub(crate) const IFF_RUNNING: u32 = libc::IFF_RUNNING.cast_unsigned();
pub(crate) const IFF_NOARP: u32 = libc::IFF_NOARP.cast_unsigned();
pub(crate) const IFF_PROMISC: u32 = libc::IFF_PROMISC.cast_unsigned();

/// linux/netlink.h
pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;

/// linux/veth.h
pub(crate) const VETH_INFO_PEER: u16 = 1;
/// linux/if_link.h
pub(crate) const IFLA_BR_MCAST_SNOOPING: u16 = 23;
pub(crate) const IFLA_BRPORT_MODE: u16 = 4;
pub(crate) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(crate) const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
pub(crate) const IFLA_VXLAN_ID: u16 = 1;
pub(crate) const IFLA_VXLAN_GROUP: u16 = 2;
pub(crate) const IFLA_VXLAN_LINK: u16 = 3;
pub(crate) const IFLA_VXLAN_LOCAL: u16 = 4;
pub(crate) const IFLA_VXLAN_LEARNING: u16 = 7;
pub(crate) const IFLA_VXLAN_PORT: u16 = 15;
pub(crate) const IFLA_VXLAN_GROUP6: u16 = 16;
pub(crate) const IFLA_VXLAN_LOCAL6: u16 = 17;
pub(crate) const IFLA_VXLAN_UDP_CSUM: u16 = 18;
pub(crate) const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19;
pub(crate) const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20;

/// linux/rtnetlink.h
pub(crate) const RTAX_MTU: u16 = 2;
pub(crate) const RTAX_ADVMSS: u16 = 8;
/// Return the matching FIB entry instead of the resolved route.
pub(crate) const RTM_F_FIB_MATCH: u32 = 0x2000;
pub(crate) const RTNH_F_ONLINK: u32 = 4;

/// linux/if_addr.h
pub(crate) const IFA_PROTO: u16 = 11;

/// linux/neighbour.h
pub(crate) const NDA_PROTOCOL: u16 = 12;

/// linux/pkt_sched.h
pub(crate) const TC_H_ROOT: u32 = 0xffff_ffff;
pub(crate) const TC_H_INGRESS: u32 = 0xffff_fff1;
pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
pub(crate) const TCA_TBF_BURST: u16 = 6;
pub(crate) const TC_LINKLAYER_ETHERNET: u8 = 1;
/// The packet scheduler measures time in ticks of 64 ns (`PSCHED_SHIFT`, and the second number in /proc/net/psched).
pub(crate) const NS_PER_TICK: u64 = 64;

/// linux/pkt_cls.h
pub(crate) const TCA_U32_SEL: u16 = 5;
pub(crate) const TCA_U32_ACT: u16 = 7;
pub(crate) const TC_U32_TERMINAL: u8 = 1;
pub(crate) const TCA_ACT_KIND: u16 = 1;
pub(crate) const TCA_ACT_OPTIONS: u16 = 2;
pub(crate) const TC_ACT_STOLEN: u32 = 4;
/// linux/tc_act/tc_mirred.h
pub(crate) const TCA_MIRRED_PARMS: u16 = 2;
pub(crate) const TCA_EGRESS_REDIR: u32 = 1;
/// linux/netconf.h, and its message type from linux/rtnetlink.h
pub(crate) const RTM_NEWNETCONF: u16 = 80;
pub(crate) const NETCONFA_IFINDEX: u16 = 1;
pub(crate) const NETCONFA_FORWARDING: u16 = 2;

/// linux/genetlink.h
pub(crate) const GENL_ID_CTRL: u16 = 16;
pub(crate) const CTRL_CMD_GETFAMILY: u8 = 3;
pub(crate) const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub(crate) const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// linux/ethtool_netlink.h
pub(crate) const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
pub(crate) const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
pub(crate) const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
pub(crate) const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
pub(crate) const ETHTOOL_A_FEATURES_HW: u16 = 2;
pub(crate) const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
pub(crate) const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
pub(crate) const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
pub(crate) const ETHTOOL_A_BITSET_BITS: u16 = 3;
pub(crate) const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
pub(crate) const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
pub(crate) const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
