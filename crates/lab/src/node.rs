use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;

use crate::lab::LabInner;
use crate::{Ns, sweep};

/// A host of the lab: a namespace, and a directory as its disk.
#[derive(Debug, Clone)]
pub struct Node {
    ns: Ns,
    name: String,
    dir: PathBuf,
    lab: Arc<LabInner>,
}

/// A pod's sandbox on a node: a namespace with only loopback, as a runtime passes it to a plugin.
#[derive(Debug)]
pub struct Pod {
    ns: Ns,
    id: String,
    node: Ns,
    lab: Arc<LabInner>,
}

impl Node {
    pub(crate) fn create(lab: &Arc<LabInner>, name: &str) -> Result<Self> {
        let ns = lab.create_namespace(name)?;
        let dir = lab.create_directory(name)?;
        Ok(Self { ns, name: name.to_owned(), dir, lab: Arc::clone(lab) })
    }

    /// A node that an earlier run of the program created.
    pub(crate) fn known(lab: &Arc<LabInner>, name: &str) -> Self {
        Self {
            ns: lab.namespace(name),
            name: name.to_owned(),
            dir: lab.directory(name),
            lab: Arc::clone(lab),
        }
    }

    /// Removes the namespace, as a power loss does. The directory remains.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.lab.remove_namespace(&self.ns)
    }

    /// Creates the namespace again after `destroy`.
    pub(crate) fn boot(&self) -> Result<()> {
        self.lab.create_namespace(&self.name).map(drop)
    }

    /// A pod that an earlier run of the program created.
    pub(crate) fn known_pod(&self, name: &str, id: &str) -> Pod {
        let ns = self.lab.namespace(&format!("{}-{name}", self.name));
        Pod { ns, id: id.to_owned(), node: self.ns.clone(), lab: Arc::clone(&self.lab) }
    }

    pub fn pod(&self, name: &str) -> Result<Pod> {
        let ns = self.lab.create_namespace(&format!("{}-{name}", self.name))?;
        // Recreating a sandbox under the same name gives it a new container ID.
        let id = format!("{}-{}", ns.name(), self.lab.next_serial());
        Ok(Pod { ns, id, node: self.ns.clone(), lab: Arc::clone(&self.lab) })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The plugin's state directory. The plugin creates it.
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

    /// The container ID, unique on this host.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn node(&self) -> &Ns {
        &self.node
    }

    /// Removes the namespace without a DEL, as a crash does. The kernel removes its links asynchronously.
    pub fn destroy(&self) -> Result<()> {
        self.lab.remove_namespace(&self.ns)
    }

    /// Unmounts the namespace and leaves its path as a regular file.
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
