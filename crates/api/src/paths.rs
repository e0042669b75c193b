//! Paths of the API.

/// POST a [`crate::CniCall`]. 200 with a [`crate::CniAnswer`], 500 with the CNI error object, 503 with an error object if
/// the agent cannot serve requests now.
pub const CNI: &str = "/v1/cni";
/// GET: 200 while the process answers.
pub const HEALTH: &str = "/v1/health";
/// GET: 200 if ADD requests are served, otherwise 503 with the conditions that prevent it; [`crate::Readiness`].
pub const READY: &str = "/v1/ready";
/// GET: all recorded attachments. `/v1/attachments/CONTAINER` returns those of one container.
pub const ATTACHMENTS: &str = "/v1/attachments";
/// GET: the versions of the agent and of the API.
pub const VERSION: &str = "/v1/version";
/// GET: a [`crate::Status`].
pub const STATUS: &str = "/v1/status";
/// GET: the CNI config for runtimes, as rendered from the template.
pub const CNI_CONFIG: &str = "/v1/cni-config";
/// GET: all nodes of the cluster, as [`crate::NodeView`]s. DELETE `/v1/nodes/NAME` removes a node permanently
/// (`?force=true`: also while its agent is alive) and returns a [`crate::Removed`].
pub const NODES: &str = "/v1/nodes";
/// GET: the routes to other nodes, as a [`crate::RoutesView`].
pub const ROUTES: &str = "/v1/routes";
/// GET: the blocks and their owners, as a [`crate::BlocksView`].
pub const BLOCKS: &str = "/v1/blocks";
/// GET: all objects as a [`crate::ObjectList`]; `/v1/objects/groups` those of a kind, `/v1/objects/groups/TENANT` those of a
/// tenant, `/v1/objects/groups/TENANT/NAME` and `/v1/objects/tenants/NAME` one document. PUT a document or DELETE one object
/// (`?dryRun=true` only checks), or POST a [`crate::ObjectChange`] to `/v1/objects`: these return [`crate::ObjectSteps`].
pub const OBJECTS: &str = "/v1/objects";
/// GET `/v1/object-details/groups/TENANT/NAME` or `/v1/object-details/tenants/NAME`: a [`crate::ObjectDetails`].
pub const OBJECT_DETAILS: &str = "/v1/object-details";
/// GET: metrics in the Prometheus format.
pub const METRICS: &str = "/metrics";

/// The `v1` of all paths.
pub const API_VERSION: u32 = 1;

/// The error for an unknown path. The status is 404, as for objects that do not exist.
pub const PAGE_NOT_FOUND: &str = "page not found";

/// The maximum size of a request body: a config of 1 MiB as a JSON string (at most twice as long without control
/// characters), and the variables.
pub const MAX_BODY: usize = 3 << 20;
