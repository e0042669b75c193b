//! Creates a tunnel device in one call, including the settings that the kernel accepts only after creation.

use types::IfName;

use crate::error::Error;
use crate::op::{AddVxlan, LinkRef, Op, SetLink};
use crate::rtsocket::RtSocket;

impl RtSocket {
    /// Creates the device with this alias and without a link-local address, sets it up, and returns its index. If the name, or
    /// the VNI and port, are in use, the call fails (`Error::is_exists`) and changes nothing. A partly created device is removed.
    ///
    /// Device and alias are sent together, so a process that is killed leaves no device without an alias.
    pub fn create_vxlan(&mut self, add: &AddVxlan<'_>, alias: Option<&str>) -> Result<u32, Error> {
        self.add_with_alias(add, alias)?;
        let link = self.index_of(add.name)?.ok_or_else(|| removed(add.name))?;
        let no_link_local = SetLink { no_link_local: true, alias, ..SetLink::of(LinkRef::Index(link)) };
        let up = SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(link)) };
        match self.run_every(&[Op::SetLink(no_link_local), Op::SetLink(up)]) {
            Ok(()) => Ok(link),
            Err(error) => {
                // The first error is reported. An error of the removal would hide it.
                let _ = self.run(&Op::DelLink(link));
                Err(error.during(format_args!("set up vxlan {}", add.name)))
            }
        }
    }

    /// Sets the alias by name, because the kernel does not return the index. The alias is sent only if the name is free, so that no
    /// other link gets it. If another process creates a link with this name at the same moment, the alias is removed from it again.
    fn add_with_alias(&mut self, add: &AddVxlan<'_>, alias: Option<&str>) -> Result<(), Error> {
        let set_alias = |alias| Op::SetLink(SetLink { alias, ..SetLink::of(LinkRef::Name(add.name)) });
        if alias.is_none() || self.index_of(add.name)?.is_some() {
            return self.run(&Op::AddVxlan(*add));
        }
        let mut results = self.run_all(&[Op::AddVxlan(*add), set_alias(alias)])?.into_iter();
        let (created, aliased) = (results.next().unwrap_or(Ok(())), results.next());
        if created.is_err() && matches!(aliased, Some(Ok(()))) {
            self.run(&set_alias(Some("")))?;
        }
        created
    }
}

fn removed(name: &IfName) -> Error {
    Error::Invalid {
        operation: format!("set up vxlan {name}"),
        reason: "another process removed it".to_owned(),
    }
}
