//! Examples in the long help of every command. A test parses every line that starts with `podwire`.

pub(crate) const PODWIRE: &str = "\
Examples:
  # One node with two pods, in namespaces of this host
  podwire demo
  # A cluster of three nodes, in namespaces of this host
  podwire lab up --nodes 3
  # The state of this node, and a check of everything it needs
  podwire status
  podwire doctor";

pub(crate) const DEMO: &str = "\
Examples:
  podwire demo";

pub(crate) const AGENT: &str = "\
Examples:
  # Run with the default config file
  podwire agent
  # Check an edited config file before a restart
  podwire agent --config /etc/podwire/agent.toml --check-config
  # Write a config file with all keys and their defaults
  podwire agent --print-config-sample";

pub(crate) const STATUS: &str = "\
Examples:
  podwire status
  podwire status -o json";

pub(crate) const DOCTOR: &str = "\
Examples:
  podwire doctor
  # Repair bridges and firewall tables of a node without an agent
  podwire doctor --repair";

pub(crate) const PODS: &str = "\
Examples:
  podwire pods
  # With container, interface, mode, tenant and group
  podwire pods -o wide";

pub(crate) const NODES: &str = "\
Examples:
  podwire nodes
  # With versions
  podwire nodes -o wide";

pub(crate) const NODE: &str = "\
Examples:
  podwire node rm worker-3";

pub(crate) const NODE_RM: &str = "\
Examples:
  # Remove a node whose agent has ended
  podwire node rm worker-3
  # Remove it before its lease has expired
  podwire node rm worker-3 --force";

pub(crate) const ROUTES: &str = "\
Examples:
  podwire routes
  podwire routes -o json";

pub(crate) const BLOCKS: &str = "\
Examples:
  podwire blocks
  podwire blocks -o json";

pub(crate) const ATTACHMENT: &str = "\
Examples:
  podwire attachment show shop/web
  podwire attachment show 0f2c5a9be1d7";

pub(crate) const ATTACHMENT_SHOW: &str = "\
Examples:
  podwire attachment show shop/web
  # The first characters of the container ID are enough
  podwire attachment show 0f2c5a9be1d7
  # A pod with several interfaces
  podwire attachment show 0f2c5a9be1d7/eth1";

pub(crate) const INSTALL: &str = "\
Examples:
  # For the agent that runs on this node
  podwire install
  # A network without an agent
  podwire install --standalone
  podwire install --standalone --name blue --subnet 10.51.0.0/24";

pub(crate) const CLEANUP: &str = "\
Examples:
  podwire cleanup
  # Also the networks of other run directories
  podwire cleanup --all";

pub(crate) const VERSION: &str = "\
Examples:
  podwire version
  podwire version -o json";

pub(crate) const LAB: &str = "\
Examples:
  podwire lab up --nodes 3
  podwire lab test
  podwire lab exec n1 podwire status
  podwire lab down";

pub(crate) const LAB_UP: &str = "\
Examples:
  # Three nodes on one subnet, one etcd member, one pod on each node
  podwire lab up
  # Two subnets: VXLAN is used between them
  podwire lab up --nodes 4 --subnets 2 --etcd-members 3
  # One node without etcd, beside another lab
  podwire lab --name one up --nodes 1 --store embedded";

pub(crate) const LAB_LS: &str = "\
Examples:
  podwire lab ls
  podwire lab ls -o json";

pub(crate) const LAB_STATUS: &str = "\
Examples:
  podwire lab status
  # With subnets, processes and namespaces
  podwire lab status -o wide";

pub(crate) const LAB_TEST: &str = "\
Examples:
  podwire lab test
  podwire lab test --timeout 1 -o json";

pub(crate) const LAB_EXEC: &str = "\
Examples:
  podwire lab exec n1 podwire status
  # A shell in a node
  podwire lab exec n1
  podwire lab exec n1 ip -6 route show proto 113
  podwire lab exec p1 ping -c 1 10.42.1.2
  podwire lab exec n1 etcdctl get --prefix /podwire --keys-only";

pub(crate) const LAB_POD: &str = "\
Examples:
  podwire lab pod add n1 web
  podwire lab pod rm web";

pub(crate) const LAB_POD_ADD: &str = "\
Examples:
  podwire lab pod add n1
  podwire lab pod add n2 web
  # In a group of a tenant, which 'podwire group create' has created
  podwire lab pod add n1 db --tenant blue --group db";

pub(crate) const LAB_POD_RM: &str = "\
Examples:
  podwire lab pod rm web";

pub(crate) const LAB_CUT: &str = "\
Examples:
  podwire lab cut n2";

pub(crate) const LAB_HEAL: &str = "\
Examples:
  podwire lab heal n2";

pub(crate) const LAB_KILL: &str = "\
Examples:
  podwire lab kill agent n1
  podwire lab kill etcd
  podwire lab kill node n3";

pub(crate) const LAB_START: &str = "\
Examples:
  podwire lab start agent n1
  podwire lab start etcd
  podwire lab start node n3";

pub(crate) const LAB_RESTART: &str = "\
Examples:
  podwire lab restart agent n1";

pub(crate) const EXPLAIN: &str = "\
Examples:
  podwire explain shop/web shop/db --port 5432 -f policies.yaml
  # A saved state of a cluster
  podwire explain world shop/web --port 443 -f cluster.yaml
  podwire explain group:blue/web node:n1 --proto icmp -f policies.yaml";

pub(crate) const LAB_LOGS: &str = "\
Examples:
  podwire lab logs n1
  podwire lab logs etcd1 -n 20";

pub(crate) const LAB_DOWN: &str = "\
Examples:
  podwire lab down
  podwire lab down --all";

/// For `lab kill agent` and `lab start agent`.
pub(crate) const LAB_AGENT: &str = "\
Examples:
  podwire lab kill agent n1
  podwire lab start agent n1";

pub(crate) const LAB_ETCD: &str = "\
Examples:
  # All members
  podwire lab kill etcd
  podwire lab start etcd
  # One member
  podwire lab kill etcd etcd2
  podwire lab start etcd etcd2";

pub(crate) const LAB_NODE: &str = "\
Examples:
  podwire lab kill node n3
  podwire lab start node n3";
