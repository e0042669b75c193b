use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use netlink::Refusal;
use rustix::io::Errno;

use crate::desired::pods::{self, Structure};
use crate::desired::{REVISION, REVISION_KEY, TABLE, Table, TableFamily, TableId};
use crate::diff;
use crate::element::{self, Element, Role};
use crate::error::Error;
use crate::pod::{FirewallPod, HostPort};
use crate::program;
use crate::request;
use crate::socket::{NftRequest, NftSocket, RefusedTransaction};

/// How often a pod is tried: structure, leftovers of another pod and the real thing need three; the rest is for races.
const TRIES: usize = 6;
/// How often the structure is made for one pod: somebody may prune its network's chain before the pod is in it.
const RENEWALS: usize = 3;
/// How often a reading is repeated because somebody changed any table between it and our transaction.
const GENERATIONS: usize = 100;

/// The families of the tables of pods.
pub(crate) const BOTH: [TableFamily; 2] = [TableFamily::Inet, TableFamily::Bridge];

const ADMIT: &str = "add a pod to the firewall";
const EXPEL: &str = "remove a pod from the firewall";
const LOOK: &str = "look up a pod in the firewall";

/// Our tables in one network namespace.
pub struct Firewall {
    pub(crate) socket: NftSocket,
}

impl Firewall {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: NftSocket::open()? })
    }

    /// Puts the pod in force, all of it or nothing. Doing it again changes nothing. The tables are made when they are
    /// missing. A host port of another pod is [`Error::PortTaken`].
    pub fn add_pod(&mut self, pod: &FirewallPod<'_>) -> Result<(), Error> {
        self.add_pod_after(pod, &mut NoOthers)
    }

    /// The same; when the tables themselves were missing or of another version, they are made again and [`OtherPods::restore`]
    /// puts back the pods that were in them, before this one can take a host port of theirs. Over tables of another version
    /// the rules come with the members of all running pods, in one transaction: new rules may use new sets, and without
    /// their elements they would drop what running pods send.
    pub fn add_pod_after(&mut self, pod: &FirewallPod<'_>, others: &mut dyn OtherPods) -> Result<(), Error> {
        let mut elements = element::revisions(pod);
        elements.append(&mut element::of(pod)?);
        let mut replace = vec![Replace::No; elements.len()];
        let mut renewals = 0;
        let mut last = Vec::new();
        for _ in 0..TRIES {
            let (requests, steps) = additions(&elements, &replace);
            let Err(refused) = self.socket.transact(&requests, None)? else { return Ok(()) };
            last = named(refused, &steps)?;
            let wanting: Vec<&Element<'_>> = last
                .iter()
                .filter(|(step, refusal)| wants_structure(&elements[step.element], *step, refusal))
                .map(|(step, _)| &elements[step.element])
                .collect();
            if !wanting.is_empty() {
                if renewals == RENEWALS {
                    break;
                }
                let is_of_network =
                    |e: &&Element<'_>| pod.masquerade.is_some_and(|chain| chain.has_set(&e.set));
                let is_first_of_network = wanting.iter().all(is_of_network);
                let is_other_version = self.is_of_another_version(element::families(pod))?;
                let mut make = |running: &[FirewallPod<'_>]| self.make(pod, running, renewals > 0);
                // Rules of another version may use sets that running pods are not in.
                if is_other_version {
                    others.hold(&mut make)?;
                } else {
                    make(&[])?;
                }
                renewals += 1;
                if !is_first_of_network {
                    others.restore();
                }
                continue;
            }
            for (step, refusal) in &last {
                replace[step.element] = self.settle(pod, &elements[step.element], (*step, refusal))?;
            }
        }
        Err(why(&elements, last))
    }

    /// Makes what a pod needs, with the elements of running pods in the same transaction. `was_pruned`: the chain of the pod's
    /// network was removed before the pod was in it, and must never be empty.
    fn make(
        &mut self,
        pod: &FirewallPod<'_>,
        running: &[FirewallPod<'_>],
        was_pruned: bool,
    ) -> Result<(), Error> {
        let families = element::families(pod);
        let all: Vec<FirewallPod<'_>> = [*pod].into_iter().chain(running.iter().copied()).collect();
        let structure = Structure::of(&all);
        let tables: Vec<Table> = families.iter().map(|family| structure.table(*family)).collect();
        // A pod that has no elements because a port of it is wrong fails when it is restored.
        let mut elements: Vec<Element<'_>> =
            running.iter().filter_map(|pod| element::of(pod).ok()).flatten().collect();
        elements.retain(|e| matches!(e.role, Role::Member) && families.contains(&e.table.family));
        if let Some(chain) = pod.masquerade.filter(|_| was_pruned) {
            elements.extend(element::of(pod)?.into_iter().filter(|e| chain.has_set(&e.set)));
        }
        self.apply(&tables, &elements)
    }

    /// Is one of the tables of pods there, and made by another version?
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

    /// What to do about one element that could not be added.
    fn settle(
        &mut self,
        pod: &FirewallPod<'_>,
        element: &Element<'_>,
        (step, refusal): (ElementStep, &Refusal),
    ) -> Result<Replace, Error> {
        match (step.action, refusal.errno, element.role) {
            // What was to be replaced has gone by itself.
            (ElementAction::Delete, Errno::NOENT, _) => Ok(Replace::No),
            (ElementAction::Add, Errno::EXIST, Role::HostPort(port)) => match self.holder(element)? {
                // From an earlier pod that had our address.
                Some(holder) if pod.addresses.contains(&holder) && !step.replaced => Ok(Replace::Yes),
                Some(holder) => Err(taken(port, Some(holder))),
                None => Ok(Replace::No),
            },
            (_, _, _) => Err(Error::refused(ADMIT, element.to_string(), refusal.clone())),
        }
    }

    /// The pod that a host port leads to.
    fn holder(&mut self, element: &Element<'_>) -> Result<Option<IpAddr>, Error> {
        let answer = self.socket.ask(&[request::get(element)])?.pop();
        Ok(answer.and_then(Result::ok).and_then(|found| request::pod_address(&found)))
    }

    /// Takes the pod out of force. What is already gone is no error, and keeps nothing else; a host port that another
    /// pod has by now stays.
    pub fn remove_pod(&mut self, pod: &FirewallPod<'_>) -> Result<(), Error> {
        let elements = element::of(pod)?;
        for _ in 0..GENERATIONS {
            let (generation, own) = self.own(&elements)?;
            match self.remove(&own, generation)? {
                PodRemoval::Done => return Ok(()),
                PodRemoval::Overtaken => {}
            }
        }
        let source = Errno::RESTART.into();
        let (object, reason) = (pod.link.to_string(), "other tables kept changing".to_owned());
        Err(Error::Transaction { operation: EXPEL, object, reason, source })
    }

    /// The elements without host ports that lead elsewhere, and the generation of the tables in which that was so.
    fn own<'e, 'a>(
        &mut self,
        elements: &'e [Element<'a>],
    ) -> Result<(Option<u32>, Vec<&'e Element<'a>>), Error> {
        let is_port = |e: &&Element<'_>| matches!(e.role, Role::HostPort(_));
        let ports: Vec<&Element<'_>> = elements.iter().filter(is_port).collect();
        if ports.is_empty() {
            return Ok((None, elements.iter().collect()));
        }
        // The generation is read first: a change after it is then noticed, wherever it falls.
        let questions: Vec<NftRequest<'_>> =
            [request::get_generation()].into_iter().chain(ports.iter().map(|e| request::get(e))).collect();
        let mut answers = self.socket.ask(&questions)?.into_iter();
        let generation = answers.next().and_then(Result::ok).and_then(|found| request::generation(&found));
        let mut ours =
            ports.iter().zip(answers).map(|(e, found)| found.is_ok_and(|found| request::holds(e, &found)));
        let keep = |e: &&Element<'_>| !is_port(e) || ours.next().unwrap_or(false);
        Ok((generation, elements.iter().filter(keep).collect()))
    }

    /// Lets the elements expire where the kernel can do that, and deletes them where it cannot.
    fn remove(&mut self, elements: &[&Element<'_>], generation: Option<u32>) -> Result<PodRemoval, Error> {
        let expired = self.change(request::expire, elements, generation);
        match expired {
            Ok(PodRemoval::Done) if self.is_expiring(elements)? => Ok(PodRemoval::Done),
            Ok(PodRemoval::Overtaken) => Ok(PodRemoval::Overtaken),
            // An older kernel took it for an element that is there already, or our tables are from an older version.
            Ok(PodRemoval::Done) | Err(Error::Transaction { .. }) => {
                self.change(request::delete, elements, generation)
            }
            Err(error) => Err(error),
        }
    }

    /// Did the kernel understand that these are to expire? One element tells.
    fn is_expiring(&mut self, elements: &[&Element<'_>]) -> Result<bool, Error> {
        // The kernel of a process does not change.
        static KNOWN: AtomicBool = AtomicBool::new(false);
        let Some(first) = elements.first().filter(|_| !KNOWN.load(Ordering::Relaxed)) else {
            return Ok(true);
        };
        let answer = self.socket.ask(&[request::get(first)])?.pop();
        match answer {
            Some(Ok(found)) if !request::expires(&found) => Ok(false),
            // Only an element that was seen expiring proves it; one that is gone already may have been deleted.
            Some(Ok(_)) => {
                KNOWN.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Some(Err(_)) | None => Ok(true),
        }
    }

    /// One missing element (or set, or table) makes the kernel refuse all, but it names every missing one: the second
    /// try is without them.
    fn change(
        &mut self,
        how: for<'e> fn(&'e Element<'e>) -> NftRequest<'e>,
        elements: &[&Element<'_>],
        generation: Option<u32>,
    ) -> Result<PodRemoval, Error> {
        let mut left: Vec<&Element<'_>> = elements.to_vec();
        while !left.is_empty() {
            let requests: Vec<NftRequest<'_>> = left.iter().map(|e| how(e)).collect();
            let Err(refused) = self.socket.transact(&requests, generation)? else {
                return Ok(PodRemoval::Done);
            };
            if let Some(whole) = refused.whole {
                return match whole.errno {
                    Errno::RESTART => Ok(PodRemoval::Overtaken),
                    // Without nf_tables in the kernel there is nothing of ours either.
                    Errno::OPNOTSUPP => Ok(PodRemoval::Done),
                    _ => Err(Error::refused(EXPEL, TABLE.to_owned(), whole)),
                };
            }
            let mut gone = vec![false; left.len()];
            for (place, refusal) in refused.requests {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(EXPEL, left[place].to_string(), refusal));
                }
                gone[place] = true;
            }
            let mut gone = gone.into_iter();
            left.retain(|_| !gone.next().unwrap_or(false));
        }
        Ok(PodRemoval::Done)
    }

    /// What of the pod is not in force, in words that nft understands; nothing means all is well.
    pub fn missing(&mut self, pod: &FirewallPod<'_>) -> Result<Vec<String>, Error> {
        let mut missing = self.missing_rules(pod)?;
        if !missing.is_empty() {
            // Another process may just have replaced rules, and not stored their digests yet.
            let again = self.missing_rules(pod)?;
            missing.retain(|what| again.contains(what));
        }
        let elements = element::of(pod)?;
        let questions: Vec<NftRequest<'_>> = elements.iter().map(request::get).collect();
        for (element, answer) in elements.iter().zip(self.socket.ask(&questions)?) {
            match answer {
                Ok(found) if request::holds(element, &found) => {}
                Ok(_) => missing.push(format!("element {element} (it is there with another value)")),
                Err(Refusal { errno: Errno::NOENT, .. }) => missing.push(format!("element {element}")),
                Err(refusal) => return Err(Error::refused(LOOK, element.to_string(), refusal)),
            }
        }
        Ok(missing)
    }

    /// How the tables that the pod needs differ from their description. Objects of other programs in them, and digests that were
    /// not stored, are no fault of the pod.
    fn missing_rules(&mut self, pod: &FirewallPod<'_>) -> Result<Vec<String>, Error> {
        let (structure, mut missing) = (Structure::of(std::slice::from_ref(pod)), Vec::new());
        for &family in element::families(pod) {
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

    /// Could a pod be admitted? The kernel and the nft program are there, which make and repair Podwire's tables. Changes
    /// nothing.
    pub fn is_available(&mut self) -> Result<(), Error> {
        program::check_program()?;
        let answer = self.socket.ask(&[request::get_table(TableId::of_pods(TableFamily::Inet))])?.pop();
        match answer {
            Some(Ok(_)) | Some(Err(Refusal { errno: Errno::NOENT, .. })) | None => Ok(()),
            Some(Err(refusal)) => Err(Error::refused(LOOK, TABLE.to_owned(), refusal)),
        }
    }

    /// Removes the tables of pods with everything in them. Was there one?
    pub fn cleanup(&mut self) -> Result<bool, Error> {
        let mut removed = false;
        for family in BOTH {
            removed |= self.delete_table(TableId::of_pods(family))?;
        }
        Ok(removed)
    }
}

/// The other pods of this node, which the caller knows.
pub trait OtherPods {
    /// Calls `act` once, with those that are running. None of them may be expelled before it returns.
    fn hold(&mut self, act: &mut dyn FnMut(&[FirewallPod<'_>]) -> Result<(), Error>) -> Result<(), Error>;
    /// Puts them back into tables that were made again.
    fn restore(&mut self);
}

/// The caller knows of none.
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
    Overtaken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementAction {
    Add,
    Delete,
}

/// What a request of ours is about.
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
    for (place, (element, replace)) in elements.iter().zip(replace).enumerate() {
        let replaced = *replace == Replace::Yes;
        if replaced {
            requests.push(request::delete(element));
            steps.push(ElementStep { element: place, action: ElementAction::Delete, replaced });
        }
        requests.push(request::add(element));
        steps.push(ElementStep { element: place, action: ElementAction::Add, replaced });
    }
    (requests, steps)
}

/// The refusals with what they are about; a refusal of the whole transaction is an error.
pub(crate) fn named(
    refused: RefusedTransaction,
    steps: &[ElementStep],
) -> Result<Vec<(ElementStep, Refusal)>, Error> {
    if let Some(whole) = refused.whole {
        return Err(Error::refused(ADMIT, TABLE.to_owned(), whole));
    }
    Ok(refused
        .requests
        .into_iter()
        .filter_map(|(place, refusal)| Some((*steps.get(place)?, refusal)))
        .collect())
}

/// No such table, set or chain; or a table of another version.
fn wants_structure(element: &Element<'_>, step: ElementStep, refusal: &Refusal) -> bool {
    match (step.action, refusal.errno, element.role) {
        (ElementAction::Add, Errno::NOENT, _) | (ElementAction::Add, Errno::EXIST, Role::Revision) => true,
        (_, _, _) => false,
    }
}

/// The error when trying again did not help.
fn why(elements: &[Element<'_>], refusals: Vec<(ElementStep, Refusal)>) -> Error {
    let Some((step, refusal)) = refusals.into_iter().next() else {
        return Error::Structure { message: "the kernel refused a pod and did not say why".to_owned() };
    };
    let element = &elements[step.element];
    match (refusal.errno, element.role) {
        // Nobody holds it in the kernel: the pod asks for it twice, for two purposes.
        (Errno::EXIST, Role::HostPort(port)) => taken(port, None),
        (_, _) => Error::refused(ADMIT, element.to_string(), refusal),
    }
}

fn taken(port: &HostPort, holder: Option<IpAddr>) -> Error {
    let HostPort { host_ip, host_port, protocol, .. } = *port;
    Error::PortTaken { port: host_port, protocol, host_ip, holder }
}
