//! Reads the documents of files and sorts them by kind.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use model::kubernetes::{KubeNamespace, KubeNode, KubePod, RawNamespace, RawNode, RawPod, decode};
use model::objects::{ClusterNetworkPolicy, NetworkPolicy, TenantNetwork};
use model::{API_VERSION, Catalog, Document};
use serde_json::Value;

use super::cases::{self, PolicyCase};

/// Everything that files describe.
#[derive(Debug)]
pub(super) struct PolicyFiles {
    pub(super) catalog: Catalog,
    pub(super) namespaces: Vec<KubeNamespace>,
    pub(super) nodes: Vec<KubeNode>,
    pub(super) pods: Vec<KubePod>,
    pub(super) network_policies: Vec<NetworkPolicy>,
    pub(super) cluster_policies: Vec<ClusterNetworkPolicy>,
    pub(super) cases: Vec<PolicyCase>,
    /// Kinds of documents that do not decide about flows, such as Deployments, and their number.
    pub(super) ignored: BTreeMap<String, usize>,
}

/// What a document describes, by `apiVersion` and `kind`.
enum DocumentKind {
    Object,
    Case,
    Pod,
    Namespace,
    Node,
    NetworkPolicy,
    ClusterNetworkPolicy,
    Other,
}

impl PolicyFiles {
    /// Fails with all errors of all files.
    pub(super) fn read(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut documents = Vec::new();
        for path in paths {
            documents.extend(read_file(path.as_ref())?.into_iter().flat_map(items));
        }
        let default_net = types::DEFAULT_SUBNETS.split(',').map(|subnet| subnet.trim().parse());
        let default_net = default_net.collect::<Result<Vec<_>, _>>().context("default subnets")?;
        let margin = TenantNetwork::DEFAULT_MARGIN;
        let mut files = Self {
            catalog: Catalog::new(TenantNetwork::default_net(default_net, margin)),
            namespaces: Vec::new(),
            nodes: Vec::new(),
            pods: Vec::new(),
            network_policies: Vec::new(),
            cluster_policies: Vec::new(),
            cases: Vec::new(),
            ignored: BTreeMap::new(),
        };
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for document in documents {
            match DocumentKind::of(&document.body) {
                DocumentKind::Object => objects.push(document),
                kind => errors.extend(files.add(&kind, document).err().map(|error| format!("{error:#}"))),
            }
        }
        errors.extend(files.add_objects(objects));
        if !errors.is_empty() {
            bail!("{}", errors.join("\n"));
        }
        Ok(files)
    }

    /// Objects of the catalog refer to each other, so they are checked together.
    fn add_objects(&mut self, documents: Vec<Document>) -> Vec<String> {
        match self.catalog.plan(documents, &[]) {
            Ok(steps) => {
                let set = |step: model::ApplyStep| self.catalog.set(step.record.object, &[]).err();
                steps.into_iter().filter_map(set).map(|error| error.to_string()).collect()
            }
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        }
    }

    fn add(&mut self, kind: &DocumentKind, document: Document) -> Result<()> {
        let Document { origin, body } = document;
        match kind {
            DocumentKind::Case => self.cases.extend(cases::cases(Document { origin, body })?),
            DocumentKind::Pod => {
                let pod = decode::<RawPod, KubePod>(with_uid(body));
                self.pods.push(pod.with_context(|| format!("{origin}: Pod"))?);
            }
            DocumentKind::Namespace => {
                let namespace = decode::<RawNamespace, KubeNamespace>(body);
                self.namespaces.push(namespace.with_context(|| format!("{origin}: Namespace"))?);
            }
            DocumentKind::Node => {
                let node = decode::<RawNode, KubeNode>(body);
                self.nodes.push(node.with_context(|| format!("{origin}: Node"))?);
            }
            DocumentKind::NetworkPolicy => {
                let policy = NetworkPolicy::decode(body).map_err(|invalid| invalid.error);
                self.network_policies.push(policy.with_context(|| format!("{origin}: NetworkPolicy"))?);
            }
            DocumentKind::ClusterNetworkPolicy => {
                let policy = ClusterNetworkPolicy::decode(body).map_err(|invalid| invalid.error);
                let policy = policy.with_context(|| format!("{origin}: ClusterNetworkPolicy"))?;
                self.cluster_policies.push(policy);
            }
            DocumentKind::Object | DocumentKind::Other => {
                let kind = body.get("kind").and_then(Value::as_str);
                let kind = kind.with_context(|| format!("{origin}: the document has no kind"))?;
                *self.ignored.entry(kind.to_owned()).or_default() += 1;
            }
        }
        Ok(())
    }
}

impl DocumentKind {
    fn of(document: &Value) -> Self {
        let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default();
        match (text("apiVersion"), text("kind")) {
            (version, "PolicyTest") if version.starts_with("podwire.io/") => Self::Case,
            (version, _) if version == API_VERSION || version.starts_with("podwire.io/") => Self::Object,
            ("v1", "Pod") => Self::Pod,
            ("v1", "Namespace") => Self::Namespace,
            ("v1", "Node") => Self::Node,
            ("networking.k8s.io/v1", "NetworkPolicy") => Self::NetworkPolicy,
            ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => Self::ClusterNetworkPolicy,
            _ => Self::Other,
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<Document>> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let bytes = files::read_limited(&file, documents::MAX_SIZE as u64);
    Ok(documents::parse(&name, &bytes.with_context(|| format!("cannot read {name}"))?)?)
}

/// The items of a list, as `kubectl get -o yaml` prints it.
fn items(document: Document) -> Vec<Document> {
    let is_list =
        document.body.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match document.body.get("items").and_then(Value::as_array) {
        Some(items) if is_list => items
            .iter()
            .map(|body| Document { origin: document.origin.clone(), body: body.clone() })
            .collect(),
        Some(_) | None => vec![document],
    }
}

/// Pods of a file that did not come from a cluster have no uid. Names are unique at one time.
fn with_uid(mut pod: Value) -> Value {
    let text = |field: &str| pod.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    if text("uid").is_none() {
        let uid = format!("{}/{}", text("namespace").unwrap_or("default"), text("name").unwrap_or_default());
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".to_owned(), uid.into());
        }
    }
    pod
}
