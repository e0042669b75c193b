//! A packet socket on a link. It sends frames unchanged, as a root process in a pod can.

#![expect(unsafe_code, reason = "an address of a packet socket exists only as a C structure")]

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SendFlags, SocketType, send, socket};

use crate::Ns;

/// For sending only. It is bound to no protocol, so the kernel queues no received frames.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    pub fn open(ns: &Ns, dev: &str) -> Result<Self> {
        let opened = ns.enter(|| open_bound(dev))?;
        let socket =
            opened.with_context(|| format!("cannot open a packet socket on {dev} in {}", ns.name()))?;
        Ok(Self { socket })
    }

    /// Sends a frame that starts with the Ethernet header.
    pub fn send(&self, frame: &[u8]) -> std::io::Result<()> {
        Ok(send(&self.socket, frame, SendFlags::empty()).map(drop)?)
    }
}

fn open_bound(dev: &str) -> std::io::Result<OwnedFd> {
    let socket = socket(AddressFamily::PACKET, SocketType::RAW, None)?;
    let index = name_to_index(&socket, dev)?;
    // SAFETY: all bytes zero is a valid value of this plain C structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = i32::try_from(index).map_err(std::io::Error::other)?;
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(std::io::Error::other)?;
    // SAFETY: the pointer is to a structure of that length which lives until the call returns.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result == 0 { Ok(socket) } else { Err(std::io::Error::last_os_error()) }
}
