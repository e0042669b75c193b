//! Compares the tables of pods with their description, and repairs them.
//!
//! ```text
//! repair ─► apply the structure over the existing tables ─► the elements of all pods over netlink
//!        ─► still different (such as a set of another type): the tables with all elements again, one transaction
//! ```

use std::collections::HashSet;

use netlink::Refusal;
use rustix::io::Errno;

use crate::desired::pods::Structure;
use crate::desired::{Table, TableFamily, TableId};
use crate::diff;
use crate::element::{Element, Role, bytes};
use crate::error::Error;
use crate::firewall::{BOTH, ElementAction, Firewall, Replace, additions, named};
use crate::pod::FirewallPod;
use crate::pod_elements;

const REPAIR: &str = "restore a pod in the firewall";
/// Attempts: another process may prune chains before pods are in them.
const TRIES: usize = 3;
/// Elements in one transaction.
const BATCH: usize = 1000;

/// The result of adding a batch of elements.
enum Filled {
    All,
    /// A table or set was removed in the meantime.
    NoStructure,
}

impl Firewall {
    /// How the tables of pods differ from this structure, in words. Existing tables are compared even if they are not needed.
    /// [`Firewall::repair`] removes the differences. [`Firewall::missing_of`] compares elements.
    pub fn drift(&mut self, structure: &Structure<'_>) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for table in self.tables_of(structure)? {
            found.extend(self.lasting_drift_of(&table)?);
        }
        Ok(found)
    }

    /// The revision of a table of pods that another version of Podwire applied and no process changed since. Two agents of different
    /// versions would replace each other's tables without end if both did so immediately.
    pub fn other_version(&mut self, structure: &Structure<'_>) -> Result<Option<u32>, Error> {
        for table in self.tables_of(structure)? {
            let observed = self.observe(table.id())?;
            if let Some(found) = observed.filter(|observed| diff::is_intact_other(&table, observed)) {
                return Ok(found.revision);
            }
        }
        Ok(None)
    }

    /// The tables that are needed or exist.
    fn tables_of(&mut self, structure: &Structure<'_>) -> Result<Vec<Table>, Error> {
        let mut tables = Vec::new();
        for family in BOTH {
            if structure.needs(family) || self.exists(TableId::of_pods(family))? {
                tables.push(structure.table(family));
            }
        }
        Ok(tables)
    }

    /// Applies the structure before the first pod is added.
    pub fn prepare(&mut self, structure: &Structure<'_>) -> Result<(), Error> {
        let tables = self.tables_of(structure)?;
        self.apply(&tables, &[])
    }

    /// Applies the structure and adds these pods. Elements of other pods stay, unless a set of a wrong type makes it necessary to
    /// replace the table. Of two pods that request one host port, the first has it. Fails while another version of Podwire keeps
    /// changing the tables.
    pub fn repair(&mut self, structure: &Structure<'_>, pods: &[FirewallPod<'_>]) -> Result<(), Error> {
        let elements = elements_of(pods)?;
        let mut is_applied = true;
        // Another process may apply the tables at the same time and store its digests a moment later: one retry is enough.
        for _ in 0..TRIES {
            is_applied = self.reapply(structure, &elements)?;
            if !is_applied {
                break;
            }
            if self.drift(structure)?.is_empty() {
                return Ok(());
            }
        }
        let tables = self.tables_of(structure)?;
        if is_applied && self.is_of_another_version(&families(&tables))? {
            // Replacing the tables would not end this, and would remove the elements of other pods.
            let message = "another version of Podwire changes the same tables at the same time".to_owned();
            return Err(Error::Structure { message });
        }
        self.replace(&tables, &elements)?;
        self.expect_no_drift(structure)
    }

    /// As [`repair`](Self::repair), but elements of other pods always stay: there may be pods of other run directories. Fails if
    /// only replacing the table would help.
    pub fn repair_in_place(
        &mut self,
        structure: &Structure<'_>,
        pods: &[FirewallPod<'_>],
    ) -> Result<(), Error> {
        if !self.reapply(structure, &elements_of(pods)?)? {
            let message = "a set or chain in them cannot be changed in place".to_owned();
            return Err(Error::Structure { message });
        }
        self.expect_no_drift(structure)
    }

    fn expect_no_drift(&mut self, structure: &Structure<'_>) -> Result<(), Error> {
        match self.drift(structure)?.as_slice() {
            [] => Ok(()),
            drift => {
                let message = format!("still different after it was applied: {}", drift.join(", "));
                Err(Error::Structure { message })
            }
        }
    }

    /// False if existing objects conflict with the structure.
    fn reapply(&mut self, structure: &Structure<'_>, elements: &[Element<'_>]) -> Result<bool, Error> {
        for attempt in 0..TRIES {
            let tables = self.tables_of(structure)?;
            // New rules may use new sets: without elements they would drop packets of running pods. A retry also adds the elements at
            // once, because another process prunes chains that are empty.
            let is_filled = attempt > 0 || self.is_of_another_version(&families(&tables))?;
            let members = elements.iter().filter(|e| is_filled && matches!(e.role, Role::Member));
            match self.apply(&tables, members) {
                Ok(()) => {}
                // The text itself is valid, but conflicts with existing objects. If the kernel does not support it, replacing fails with
                // that reason.
                Err(Error::Structure { .. } | Error::Unsupported { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
            match self.fill(elements)? {
                Filled::All => return Ok(true),
                Filled::NoStructure => {}
            }
        }
        Ok(false)
    }

    fn fill(&mut self, elements: &[Element<'_>]) -> Result<Filled, Error> {
        for batch in elements.chunks(BATCH) {
            match self.fill_batch(batch)? {
                Filled::All => {}
                Filled::NoStructure => return Ok(Filled::NoStructure),
            }
        }
        Ok(Filled::All)
    }

    fn fill_batch(&mut self, elements: &[Element<'_>]) -> Result<Filled, Error> {
        let mut replace = vec![Replace::No; elements.len()];
        let mut last = None;
        for _ in 0..=TRIES {
            let (requests, steps) = additions(elements, &replace);
            let Err(refused) = self.socket.transact(&requests, None)? else { return Ok(Filled::All) };
            for (step, refusal) in named(refused, &steps)? {
                let element = &elements[step.element];
                replace[step.element] = match (step.action, refusal.errno, element.role) {
                    (ElementAction::Add, Errno::NOENT, _) => return Ok(Filled::NoStructure),
                    (ElementAction::Delete, Errno::NOENT, _) => Replace::No,
                    // A pod that is not in the list has no right to the port.
                    (ElementAction::Add, Errno::EXIST, Role::HostPort(_)) => Replace::Yes,
                    (_, _, _) => return Err(refused_element(element, refusal)),
                };
                last = Some((element, refusal));
            }
        }
        match last {
            Some((element, refusal)) => Err(refused_element(element, refusal)),
            None => Ok(Filled::All),
        }
    }
}

fn families(tables: &[Table]) -> Vec<TableFamily> {
    tables.iter().map(|table| table.family).collect()
}

fn refused_element(element: &Element<'_>, refusal: Refusal) -> Error {
    Error::refused(REPAIR, element.to_string(), refusal)
}

/// All elements of all pods, each key once. If two pods need the same key, the first one has it.
fn elements_of<'a>(pods: &[FirewallPod<'a>]) -> Result<Vec<Element<'a>>, Error> {
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for pod in pods {
        let own = pod_elements::of(pod)?.into_iter();
        all.extend(own.filter(|e| known.insert((e.table, e.set.to_string(), bytes(&e.key)))));
    }
    Ok(all)
}
