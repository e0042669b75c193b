use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;

use crate::lab::LabInner;
use crate::{Ns, sweep};

/// A machine of the lab: a namespace and a directory for what a machine keeps on disk.
#[derive(Debug, Clone)]
pub struct Node {
    ns: Ns,
    name: String,
    dir: PathBuf,
    lab: Arc<LabInner>,
}

/// A pod's sandbox on a node: a namespace with only loopback, as a runtime hands it to a plugin.
#[derive(Debug)]
pub struct Pod {
    ns: Ns,
    id: String,
    node: Ns,
    lab: Arc<LabInner>,
}

impl Node {
    pub(crate) fn make(lab: &Arc<LabInner>, name: &str) -> Result<Self> {
        let ns = lab.make_namespace(name)?;
        let dir = lab.make_directory(name)?;
        Ok(Self { ns, name: name.to_owned(), dir, lab: Arc::clone(lab) })
    }

    /// One that an earlier run of the program made.
    pub(crate) fn known(lab: &Arc<LabInner>, name: &str) -> Self {
        Self {
            ns: lab.namespace(name),
            name: name.to_owned(),
            dir: lab.directory(name),
            lab: Arc::clone(lab),
        }
    }

    /// Takes the namespace away, as when the machine loses power. The directory is its disk, and stays.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.lab.remove_namespace(&self.ns)
    }

    /// The namespace again, after `destroy`.
    pub(crate) fn boot(&self) -> Result<()> {
        self.lab.make_namespace(&self.name).map(drop)
    }

    /// A pod that an earlier run of the program made.
    pub(crate) fn known_pod(&self, name: &str, id: &str) -> Pod {
        let ns = self.lab.namespace(&format!("{}-{name}", self.name));
        Pod { ns, id: id.to_owned(), node: self.ns.clone(), lab: Arc::clone(&self.lab) }
    }

    pub fn pod(&self, name: &str) -> Result<Pod> {
        let ns = self.lab.make_namespace(&format!("{}-{name}", self.name))?;
        // A sandbox that is made again under the same name is another container.
        let id = format!("{}-{}", ns.name(), self.lab.next_serial());
        Ok(Pod { ns, id, node: self.ns.clone(), lab: Arc::clone(&self.lab) })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// For the plugin's state; not made yet, the plugin does that.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub fn log_file(&self) -> PathBuf {
        self.dir.join("podwire.log")
    }

    pub fn config_file(&self) -> PathBuf {
        self.dir.join("10-podwire.conflist")
    }
}

impl Pod {
    pub fn netns_path(&self) -> &Path {
        self.ns.path()
    }

    /// The container id, unique on this machine.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn node(&self) -> &Ns {
        &self.node
    }

    /// Takes the namespace away without a DEL, as a crash does. The kernel removes its links a little later.
    pub fn destroy(&self) -> Result<()> {
        self.lab.remove_namespace(&self.ns)
    }

    /// Takes the namespace away but leaves its path, which is a plain file from now on.
    pub fn destroy_but_leave_file(&self) -> Result<()> {
        sweep::release_namespace(self.ns.path())
    }
}

impl Deref for Node {
    type Target = Ns;
    fn deref(&self) -> &Ns {
        &self.ns
    }
}

impl Deref for Pod {
    type Target = Ns;
    fn deref(&self) -> &Ns {
        &self.ns
    }
}
