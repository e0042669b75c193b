use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use netlink::Refusal;
use rustix::io::Errno;

use crate::desired::pods::{self, Structure};
use crate::desired::{REVISION, REVISION_KEY, TABLE, Table, TableFamily, TableId};
use crate::diff;
use crate::element::{Element, Role};
use crate::error::Error;
use crate::pod::{FirewallPod, HostPort};
use crate::pod_elements;
use crate::program;
use crate::request;
use crate::socket::{NftRequest, NftSocket, RefusedTransaction};

/// Attempts to add a pod. Structure, elements of an earlier pod and the pod itself need three; the others are for races.
const TRIES: usize = 6;
/// How often the structure is applied for one pod. Another process may prune its network's chain before the pod is in it.
const MAX_APPLICATIONS: usize = 3;
/// Attempts if another process changes a table between a listing and the transaction.
const MAX_REMOVAL_ATTEMPTS: usize = 100;

/// The families of the tables of pods.
pub(crate) const BOTH: [TableFamily; 2] = [TableFamily::Inet, TableFamily::Bridge];

const ADD: &str = "add a pod to the firewall";
const REMOVE: &str = "remove a pod from the firewall";
const CHECK: &str = "check a pod in the firewall";

/// Podwire's tables in one network namespace.
pub struct Firewall {
    pub(crate) socket: NftSocket,
}

impl Firewall {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: NftSocket::open()? })
    }

    /// Adds all elements of the pod or none. Adding them again changes nothing. Missing tables are created. A host port of another
    /// pod is [`Error::PortTaken`].
    pub fn add_pod(&mut self, pod: &FirewallPod<'_>) -> Result<(), Error> {
        self.add_pod_after(pod, &mut NoOthers)
    }

    /// The same. If the tables were missing or of another version, they are applied, and [`OtherPods::restore`] restores the other
    /// pods before this one can take one of their host ports. Over tables of another version, the rules are applied with the
    /// elements of all running pods in one transaction: new rules may use new sets, and without elements they would drop packets
    /// of running pods.
    pub fn add_pod_after(&mut self, pod: &FirewallPod<'_>, others: &mut dyn OtherPods) -> Result<(), Error> {
        let mut elements = pod_elements::revisions(pod);
        elements.append(&mut pod_elements::of(pod)?);
        let mut replace = vec![Replace::No; elements.len()];
        let mut applications = 0;
        let mut last = Vec::new();
        for _ in 0..TRIES {
            let (requests, steps) = additions(&elements, &replace);
            let Err(refused) = self.socket.transact(&requests, None)? else { return Ok(()) };
            last = named(refused, &steps)?;
            let lacking: Vec<&Element<'_>> = last
                .iter()
                .filter(|(step, refusal)| lacks_structure(&elements[step.element], *step, refusal))
                .map(|(step, _)| &elements[step.element])
                .collect();
            if !lacking.is_empty() {
                if applications == MAX_APPLICATIONS {
                    break;
                }
                let is_of_network =
                    |e: &&Element<'_>| pod.masquerade.is_some_and(|chain| chain.has_set(&e.set));
                let is_first_of_network = lacking.iter().all(is_of_network);
                let is_other_version = self.is_of_another_version(pod_elements::families(pod))?;
                let mut apply = |running: &[FirewallPod<'_>]| self.apply_for(pod, running, applications > 0);
                // Rules of this version may use sets without elements of running pods.
                if is_other_version {
                    others.hold(&mut apply)?;
                } else {
                    apply(&[])?;
                }
                applications += 1;
                if !is_first_of_network {
                    others.restore();
                }
                continue;
            }
            for (step, refusal) in &last {
                replace[step.element] = self.resolve(pod, &elements[step.element], (*step, refusal))?;
            }
        }
        Err(last_error(&elements, last))
    }

    /// Applies the structure that a pod needs, with the elements of running pods in the same transaction. `was_pruned`: the chain of
    /// the pod's network was removed before the pod was in it, so it must not be empty this time.
    fn apply_for(
        &mut self,
        pod: &FirewallPod<'_>,
        running: &[FirewallPod<'_>],
        was_pruned: bool,
    ) -> Result<(), Error> {
        let families = pod_elements::families(pod);
        let all: Vec<FirewallPod<'_>> = [*pod].into_iter().chain(running.iter().copied()).collect();
        let structure = Structure::of(&all);
        let tables: Vec<Table> = families.iter().map(|family| structure.table(*family)).collect();
        // A pod without elements, because one of its ports is invalid, fails when it is restored.
        let mut elements: Vec<Element<'_>> =
            running.iter().filter_map(|pod| pod_elements::of(pod).ok()).flatten().collect();
        elements.retain(|e| matches!(e.role, Role::Member) && families.contains(&e.table.family));
        if let Some(chain) = pod.masquerade.filter(|_| was_pruned) {
            elements.extend(pod_elements::of(pod)?.into_iter().filter(|e| chain.has_set(&e.set)));
        }
        self.apply(&tables, &elements)
    }

    /// Whether another version applied one of the tables of pods.
    pub(crate) fn is_of_another_version(&mut self, families: &[TableFamily]) -> Result<bool, Error> {
        for &family in families {
            let table = TableId::of_pods(family);
            let revision = self.numbers(table, REVISION)?.get(&REVISION_KEY).copied();
            if revision != Some(pods::revision(family)) && self.exists(table)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an element that could not be added is replaced.
    fn resolve(
        &mut self,
        pod: &FirewallPod<'_>,
        element: &Element<'_>,
        (step, refusal): (ElementStep, &Refusal),
    ) -> Result<Replace, Error> {
        match (step.action, refusal.errno, element.role) {
            // The element to be replaced does not exist any more.
            (ElementAction::Delete, Errno::NOENT, _) => Ok(Replace::No),
            (ElementAction::Add, Errno::EXIST, Role::HostPort(port)) => match self.holder(element)? {
                // From an earlier pod with the same address.
                Some(holder) if pod.addresses.contains(&holder) && !step.replaced => Ok(Replace::Yes),
                Some(holder) => Err(taken(port, Some(holder))),
                None => Ok(Replace::No),
            },
            (_, _, _) => Err(Error::refused(ADD, element.to_string(), refusal.clone())),
        }
    }

    /// The pod that a host port is forwarded to.
    fn holder(&mut self, element: &Element<'_>) -> Result<Option<IpAddr>, Error> {
        let answer = self.socket.ask(&[request::get(element)])?.pop();
        Ok(answer.and_then(Result::ok).and_then(|found| request::pod_address(&found)))
    }

    /// Removes the elements of the pod. Missing elements are no error, and all others are removed. A host port that another pod has
    /// by now stays.
    pub fn remove_pod(&mut self, pod: &FirewallPod<'_>) -> Result<(), Error> {
        let elements = pod_elements::of(pod)?;
        for _ in 0..MAX_REMOVAL_ATTEMPTS {
            let (generation, own) = self.own(&elements)?;
            match self.remove(&own, generation)? {
                PodRemoval::Done => return Ok(()),
                PodRemoval::GenerationChanged => {}
            }
        }
        let source = Errno::RESTART.into();
        let (object, reason) = (pod.link.to_string(), "other tables kept changing".to_owned());
        Err(Error::Transaction { operation: REMOVE, object, reason, source })
    }

    /// The elements without host ports of other pods, and the generation of the tables at that time.
    fn own<'e, 'a>(
        &mut self,
        elements: &'e [Element<'a>],
    ) -> Result<(Option<u32>, Vec<&'e Element<'a>>), Error> {
        let is_port = |e: &&Element<'_>| matches!(e.role, Role::HostPort(_));
        let ports: Vec<&Element<'_>> = elements.iter().filter(is_port).collect();
        if ports.is_empty() {
            return Ok((None, elements.iter().collect()));
        }
        // The generation is read first, so that later changes are detected.
        let questions: Vec<NftRequest<'_>> =
            [request::get_generation()].into_iter().chain(ports.iter().map(|e| request::get(e))).collect();
        let mut answers = self.socket.ask(&questions)?.into_iter();
        let generation = answers.next().and_then(Result::ok).and_then(|found| request::generation(&found));
        let mut is_own =
            ports.iter().zip(answers).map(|(e, found)| found.is_ok_and(|found| request::holds(e, &found)));
        let keep = |e: &&Element<'_>| !is_port(e) || is_own.next().unwrap_or(false);
        Ok((generation, elements.iter().filter(keep).collect()))
    }

    /// Lets the elements expire. If the kernel does not support that, they are deleted.
    fn remove(&mut self, elements: &[&Element<'_>], generation: Option<u32>) -> Result<PodRemoval, Error> {
        let expired = self.change(request::expire, elements, generation);
        match expired {
            Ok(PodRemoval::Done) if self.is_expiring(elements)? => Ok(PodRemoval::Done),
            Ok(PodRemoval::GenerationChanged) => Ok(PodRemoval::GenerationChanged),
            // An older kernel ignored the timeout, or the tables are of an older version.
            Ok(PodRemoval::Done) | Err(Error::Transaction { .. }) => {
                self.change(request::delete, elements, generation)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the elements expire. One element is checked.
    fn is_expiring(&mut self, elements: &[&Element<'_>]) -> Result<bool, Error> {
        // The kernel of a process does not change.
        static KNOWN: AtomicBool = AtomicBool::new(false);
        let Some(first) = elements.first().filter(|_| !KNOWN.load(Ordering::Relaxed)) else {
            return Ok(true);
        };
        let answer = self.socket.ask(&[request::get(first)])?.pop();
        match answer {
            Some(Ok(found)) if !request::expires(&found) => Ok(false),
            // Only an element that expires proves it. One that does not exist may have been deleted.
            Some(Ok(_)) => {
                KNOWN.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Some(Err(_)) | None => Ok(true),
        }
    }

    /// The kernel refuses a transaction if an element, set or table does not exist, and reports each of them. They are left out of
    /// the next attempt.
    fn change(
        &mut self,
        how: for<'e> fn(&'e Element<'e>) -> NftRequest<'e>,
        elements: &[&Element<'_>],
        generation: Option<u32>,
    ) -> Result<PodRemoval, Error> {
        let mut remaining: Vec<&Element<'_>> = elements.to_vec();
        while !remaining.is_empty() {
            let requests: Vec<NftRequest<'_>> = remaining.iter().map(|e| how(e)).collect();
            let Err(refused) = self.socket.transact(&requests, generation)? else {
                return Ok(PodRemoval::Done);
            };
            if let Some(whole) = refused.whole {
                return match whole.errno {
                    Errno::RESTART => Ok(PodRemoval::GenerationChanged),
                    // The kernel lacks nf_tables, so there are no elements.
                    Errno::OPNOTSUPP => Ok(PodRemoval::Done),
                    _ => Err(Error::refused(REMOVE, TABLE.to_owned(), whole)),
                };
            }
            let mut absent = vec![false; remaining.len()];
            for (index, refusal) in refused.requests {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(REMOVE, remaining[index].to_string(), refusal));
                }
                absent[index] = true;
            }
            let mut absent = absent.into_iter();
            remaining.retain(|_| !absent.next().unwrap_or(false));
        }
        Ok(PodRemoval::Done)
    }

    /// The missing parts of the pod, in the syntax of nft.
    pub fn missing(&mut self, pod: &FirewallPod<'_>) -> Result<Vec<String>, Error> {
        let mut missing = self.missing_rules(pod)?;
        if !missing.is_empty() {
            // Another process may have replaced rules without having stored their digests yet.
            let second = self.missing_rules(pod)?;
            missing.retain(|what| second.contains(what));
        }
        let elements = pod_elements::of(pod)?;
        let questions: Vec<NftRequest<'_>> = elements.iter().map(request::get).collect();
        for (element, answer) in elements.iter().zip(self.socket.ask(&questions)?) {
            match answer {
                Ok(found) if request::holds(element, &found) => {}
                Ok(_) => missing.push(format!("element {element} (it has another value)")),
                Err(Refusal { errno: Errno::NOENT, .. }) => missing.push(format!("element {element}")),
                Err(refusal) => return Err(Error::refused(CHECK, element.to_string(), refusal)),
            }
        }
        Ok(missing)
    }

    /// How the tables that the pod needs differ from their description. Unmanaged objects in them, and digests that were not stored,
    /// do not affect the pod.
    fn missing_rules(&mut self, pod: &FirewallPod<'_>) -> Result<Vec<String>, Error> {
        let (structure, mut missing) = (Structure::of(std::slice::from_ref(pod)), Vec::new());
        for &family in pod_elements::families(pod) {
            let table = structure.table(family);
            match self.observe(table.id())? {
                Some(observed) => {
                    missing.extend(diff::shape(&table, &observed));
                    missing.extend(diff::changed(&table, &observed));
                }
                None => missing.push(format!("table {} is missing", table.id())),
            }
        }
        Ok(missing)
    }

    /// Whether a pod could be added: the kernel has nf_tables, and the nft program is installed. Changes nothing.
    pub fn is_available(&mut self) -> Result<(), Error> {
        program::check_program()?;
        let answer = self.socket.ask(&[request::get_table(TableId::of_pods(TableFamily::Inet))])?.pop();
        match answer {
            Some(Ok(_)) | Some(Err(Refusal { errno: Errno::NOENT, .. })) | None => Ok(()),
            Some(Err(refusal)) => Err(Error::refused(CHECK, TABLE.to_owned(), refusal)),
        }
    }

    /// Deletes the tables of pods and policies with their contents. Returns whether one existed.
    pub fn cleanup(&mut self) -> Result<bool, Error> {
        let mut removed = false;
        for family in BOTH {
            removed |= self.delete_table(TableId::of_pods(family))?;
        }
        removed |= self.remove_policies()?;
        Ok(removed)
    }
}

/// The other pods of this node.
pub trait OtherPods {
    /// Calls `act` once with the running pods. None of them may be removed before it returns.
    fn hold(&mut self, act: &mut dyn FnMut(&[FirewallPod<'_>]) -> Result<(), Error>) -> Result<(), Error>;
    /// Adds them to tables that were created again.
    fn restore(&mut self);
}

/// There are none.
pub struct NoOthers;

impl OtherPods for NoOthers {
    fn hold(&mut self, act: &mut dyn FnMut(&[FirewallPod<'_>]) -> Result<(), Error>) -> Result<(), Error> {
        act(&[])
    }

    fn restore(&mut self) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replace {
    No,
    Yes,
}

enum PodRemoval {
    Done,
    GenerationChanged,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementAction {
    Add,
    Delete,
}

/// The element and the action of a request.
#[derive(Clone, Copy)]
pub(crate) struct ElementStep {
    pub(crate) element: usize,
    pub(crate) action: ElementAction,
    /// The element was deleted in the same transaction.
    pub(crate) replaced: bool,
}

pub(crate) fn additions<'e>(
    elements: &'e [Element<'e>],
    replace: &[Replace],
) -> (Vec<NftRequest<'e>>, Vec<ElementStep>) {
    let (mut requests, mut steps) = (Vec::with_capacity(elements.len()), Vec::with_capacity(elements.len()));
    for (index, (element, replace)) in elements.iter().zip(replace).enumerate() {
        let replaced = *replace == Replace::Yes;
        if replaced {
            requests.push(request::delete(element));
            steps.push(ElementStep { element: index, action: ElementAction::Delete, replaced });
        }
        requests.push(request::add(element));
        steps.push(ElementStep { element: index, action: ElementAction::Add, replaced });
    }
    (requests, steps)
}

/// The refusals with their steps. A refusal of the whole transaction is an error.
pub(crate) fn named(
    refused: RefusedTransaction,
    steps: &[ElementStep],
) -> Result<Vec<(ElementStep, Refusal)>, Error> {
    if let Some(whole) = refused.whole {
        return Err(Error::refused(ADD, TABLE.to_owned(), whole));
    }
    Ok(refused
        .requests
        .into_iter()
        .filter_map(|(index, refusal)| Some((*steps.get(index)?, refusal)))
        .collect())
}

/// Whether a table, set or chain does not exist, or the table is of another version.
fn lacks_structure(element: &Element<'_>, step: ElementStep, refusal: &Refusal) -> bool {
    match (step.action, refusal.errno, element.role) {
        (ElementAction::Add, Errno::NOENT, _) | (ElementAction::Add, Errno::EXIST, Role::Revision) => true,
        (_, _, _) => false,
    }
}

/// The error after the last attempt.
fn last_error(elements: &[Element<'_>], refusals: Vec<(ElementStep, Refusal)>) -> Error {
    let Some((step, refusal)) = refusals.into_iter().next() else {
        return Error::Structure { message: "the kernel refused a pod without a reason".to_owned() };
    };
    let element = &elements[step.element];
    match (refusal.errno, element.role) {
        // No other pod has it: the pod requests it twice, with different targets.
        (Errno::EXIST, Role::HostPort(port)) => taken(port, None),
        (_, _) => Error::refused(ADD, element.to_string(), refusal),
    }
}

fn taken(port: &HostPort, holder: Option<IpAddr>) -> Error {
    let HostPort { host_ip, host_port, protocol, .. } = *port;
    Error::PortTaken { port: host_port, protocol, host_ip, holder }
}
