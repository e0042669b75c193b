//! docs/reference/api.md lists every route, with its method and whether it is served over TCP.

use std::collections::BTreeSet;

use super::*;

const PAGE: &str = include_str!("../../../../../docs/reference/api.md");

/// How the page writes a route. A new route needs an arm here, and a row there.
fn written(route: &ApiRoute) -> String {
    let path = match route {
        ApiRoute::Cni => api::CNI.to_owned(),
        ApiRoute::Pod(Command::Add) => contiv::ADD_POD.to_owned(),
        ApiRoute::Pod(_) => contiv::DEL_POD.to_owned(),
        ApiRoute::Health => api::HEALTH.to_owned(),
        ApiRoute::Ready => api::READY.to_owned(),
        ApiRoute::Version => api::VERSION.to_owned(),
        ApiRoute::Local(LocalQuery::Attachments(None)) => api::ATTACHMENTS.to_owned(),
        ApiRoute::Local(LocalQuery::Attachments(Some(id))) => format!("{}/{id}", api::ATTACHMENTS),
        ApiRoute::Local(LocalQuery::Status) => api::STATUS.to_owned(),
        ApiRoute::Local(LocalQuery::CniConfig) => api::CNI_CONFIG.to_owned(),
        ApiRoute::Local(LocalQuery::Metrics) => api::METRICS.to_owned(),
        ApiRoute::Cluster(ClusterQuery::Nodes) => api::NODES.to_owned(),
        ApiRoute::Cluster(ClusterQuery::Routes) => api::ROUTES.to_owned(),
        ApiRoute::Cluster(ClusterQuery::Blocks) => api::BLOCKS.to_owned(),
        ApiRoute::Cluster(ClusterQuery::Remove(name)) => format!("{}/{name}", api::NODES),
        ApiRoute::Objects(ObjectPath::List { .. }) => api::OBJECTS.to_owned(),
        ApiRoute::Objects(ObjectPath::One(id)) => {
            format!("{}/{}/{}/{}", api::OBJECTS, id.kind().plural(), id.tenant_name(), id.name())
        }
        ApiRoute::ObjectDetails(id) => {
            format!("{}/{}/{}/{}", api::OBJECT_DETAILS, id.kind().plural(), id.tenant_name(), id.name())
        }
    };
    let method = route.method().map_or_else(|| "GET".to_owned(), |method| method.to_string());
    format!("`{method} {path}`")
}

#[test]
fn documented_routes_are_the_routes_of_the_agent() {
    let all = [
        ApiRoute::Cni,
        ApiRoute::Pod(Command::Add),
        ApiRoute::Pod(Command::Del),
        ApiRoute::Health,
        ApiRoute::Ready,
        ApiRoute::Version,
        ApiRoute::Local(LocalQuery::Attachments(None)),
        ApiRoute::Local(LocalQuery::Attachments(Some("CONTAINER".to_owned()))),
        ApiRoute::Local(LocalQuery::Status),
        ApiRoute::Local(LocalQuery::CniConfig),
        ApiRoute::Local(LocalQuery::Metrics),
        ApiRoute::Cluster(ClusterQuery::Nodes),
        ApiRoute::Cluster(ClusterQuery::Routes),
        ApiRoute::Cluster(ClusterQuery::Blocks),
        ApiRoute::Cluster(ClusterQuery::Remove("NAME".to_owned())),
        ApiRoute::Objects(ObjectPath::List { kind: None, tenant: None }),
        ApiRoute::ObjectDetails(ObjectId::parse(model::ObjectKind::Group, "blue", "web").unwrap()),
    ];
    let wanted: BTreeSet<(String, &str)> =
        all.iter().map(|route| (written(route), if route.is_public() { "TCP" } else { "" })).collect();
    let table = PAGE.split("| method and path |").nth(1).unwrap().split("\n\n").next().unwrap();
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let rows: Vec<Vec<&str>> = table.lines().filter(|line| line.starts_with("| `")).map(cells).collect();
    let documented: BTreeSet<(String, &str)> = rows.iter().map(|row| (row[0].to_owned(), row[3])).collect();
    assert_eq!(documented, wanted);
    for row in rows {
        let path = row[0].trim_matches('`').split_once(' ').unwrap().1;
        let route = ApiRoute::find(path).unwrap_or_else(|| panic!("{path} is no route"));
        assert_eq!(written(&route), row[0]);
    }
}
