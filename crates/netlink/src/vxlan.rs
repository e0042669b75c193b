//! A tunnel device in one call: creation, then what the kernel takes only afterwards.

use types::IfName;

use crate::error::Error;
use crate::op::{AddVxlan, LinkRef, Op, SetLink};
use crate::rtsocket::RtSocket;

impl RtSocket {
    /// Makes the device, without a link-local address of its own, with this alias, and up; its index. A name, or a VNI and
    /// port, that is taken is refused (`Error::is_exists`) and nothing is touched; what could not be finished is removed.
    ///
    /// The alias comes with the device in one send: whoever is killed leaves none behind that nobody knows.
    pub fn make_vxlan(&mut self, add: &AddVxlan<'_>, alias: Option<&str>) -> Result<u32, Error> {
        self.add_marked(add, alias)?;
        let link = self.index_of(add.name)?.ok_or_else(|| gone(add.name))?;
        let still = SetLink { no_link_local: true, alias, ..SetLink::of(LinkRef::Index(link)) };
        let up = SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(link)) };
        match self.run_every(&[Op::SetLink(still), Op::SetLink(up)]) {
            Ok(()) => Ok(link),
            Err(error) => {
                // The reason is told; that it could also not be removed would only hide it.
                let _ = self.run(&Op::DelLink(link));
                Err(error.during(format_args!("set up vxlan {}", add.name)))
            }
        }
    }

    /// By its name, because the kernel tells no index. So only where the name is free: a mark must not get on somebody
    /// else's link. One that comes at this very moment gets it, and loses it again.
    fn add_marked(&mut self, add: &AddVxlan<'_>, alias: Option<&str>) -> Result<(), Error> {
        let mark = |alias| Op::SetLink(SetLink { alias, ..SetLink::of(LinkRef::Name(add.name)) });
        if alias.is_none() || self.index_of(add.name)?.is_some() {
            return self.run(&Op::AddVxlan(*add));
        }
        let mut answers = self.run_all(&[Op::AddVxlan(*add), mark(alias)])?.into_iter();
        let (made, marked) = (answers.next().unwrap_or(Ok(())), answers.next());
        if made.is_err() && matches!(marked, Some(Ok(()))) {
            self.run(&mark(Some("")))?;
        }
        made
    }
}

fn gone(name: &IfName) -> Error {
    Error::Invalid {
        operation: format!("set up vxlan {name}"),
        reason: "somebody removed it at once".to_owned(),
    }
}
