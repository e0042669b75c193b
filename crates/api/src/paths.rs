//! What can be asked on the socket.

/// POST a [`crate::CniCall`]; 200 with a [`crate::CniAnswer`], 500 with the CNI error object, 503 with one that says why
/// the agent cannot work now.
pub const CNI: &str = "/v1/cni";
/// GET: 200 while the process answers at all.
pub const HEALTH: &str = "/v1/health";
/// GET: 200 when ADDs are served, 503 with the conditions that keep it from them when not; [`crate::Readiness`].
pub const READY: &str = "/v1/ready";
/// GET: all attachments as they are recorded; `/v1/attachments/CONTAINER` those of one container.
pub const ATTACHMENTS: &str = "/v1/attachments";
/// GET: the agent's version and the API's.
pub const VERSION: &str = "/v1/version";
/// GET: a [`crate::Status`].
pub const STATUS: &str = "/v1/status";
/// GET: the CNI config that this agent wants runtimes to have, as the template renders it.
pub const CNI_CONFIG: &str = "/v1/cni-config";
/// GET: all nodes of the cluster, as [`crate::NodeView`]s. DELETE `/v1/nodes/NAME` removes one for good
/// (`?force=true`: also while its agent is alive) and answers with a [`crate::Removed`].
pub const NODES: &str = "/v1/nodes";
/// GET: the routes to other nodes, as a [`crate::RoutesView`].
pub const ROUTES: &str = "/v1/routes";
/// GET: who has which block, as a [`crate::BlocksView`].
pub const BLOCKS: &str = "/v1/blocks";
/// GET: metrics as Prometheus reads them.
pub const METRICS: &str = "/metrics";

/// The `v1` of all paths.
pub const API_VERSION: u32 = 1;

/// The error of a path that the agent does not know; the status is 404, as for objects that do not exist.
pub const PAGE_NOT_FOUND: &str = "page not found";

/// The largest request body: a config of 1 MiB as a JSON string (twice as long at worst but for control characters), and
/// the variables.
pub const MAX_BODY: usize = 3 << 20;
