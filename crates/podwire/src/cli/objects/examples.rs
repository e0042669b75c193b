//! Examples in the long help of the commands for objects.

pub(super) const APPLY: &str = "\
Examples:
  podwire apply -f tenants.yaml
  # Check only
  podwire apply -f tenants.yaml --dry-run";

pub(super) const GET: &str = "\
Examples:
  podwire get
  podwire get groups --tenant blue
  podwire get policy from-web --tenant blue -o yaml";

pub(super) const DELETE: &str = "\
Examples:
  podwire delete group web --tenant blue
  podwire delete -f tenants.yaml";

/// Of the commands of one kind.
pub(super) struct KindExamples {
    pub(super) all: &'static str,
    pub(super) create: &'static str,
    pub(super) ls: &'static str,
    pub(super) inspect: &'static str,
    pub(super) rm: &'static str,
}

pub(super) const TENANT: KindExamples = KindExamples {
    all: "\
Examples:
  podwire tenant create blue
  podwire tenant ls",
    create: "\
Examples:
  podwire tenant create blue
  # Only a pod's own node reaches it
  podwire tenant create blue --nodes deny",
    ls: "\
Examples:
  podwire tenant ls
  podwire tenant ls -o yaml",
    inspect: "\
Examples:
  podwire tenant inspect blue",
    rm: "\
Examples:
  podwire tenant rm blue
  # Check only
  podwire tenant rm blue --dry-run",
};

pub(super) const NETWORK: KindExamples = KindExamples {
    all: "\
Examples:
  podwire network create front -t blue --subnet 10.3.0.0/16
  podwire network inspect front -t blue",
    create: "\
Examples:
  podwire network create front -t blue --subnet 10.3.0.0/16
  # Both address families, and an own MTU
  podwire network create back --subnet 10.4.0.0/16 --subnet fd00:4::/64 --mtu 1400",
    ls: "\
Examples:
  podwire network ls
  podwire network ls -t blue",
    inspect: "\
Examples:
  podwire network inspect front -t blue",
    rm: "\
Examples:
  podwire network rm front -t blue",
};

pub(super) const GROUP: KindExamples = KindExamples {
    all: "\
Examples:
  podwire group create web -t blue --network front --policy p1
  podwire group inspect web -t blue",
    create: "\
Examples:
  podwire group create web -t blue --network front --policy p1
  # With a profile and own addresses
  podwire group create db --network default-net --profile gold --pool 10.83.1.0/24",
    ls: "\
Examples:
  podwire group ls
  podwire group ls -t blue",
    inspect: "\
Examples:
  podwire group inspect web -t blue",
    rm: "\
Examples:
  podwire group rm web -t blue",
};

pub(super) const POLICY: KindExamples = KindExamples {
    all: "\
Examples:
  podwire policy create p1 -t blue
  podwire policy rule add p1 -t blue --in --from group:db --deny
  podwire policy inspect p1 -t blue
  podwire policy test -f policies.yaml -f cases.yaml",
    create: "\
Examples:
  podwire policy create p1 -t blue",
    ls: "\
Examples:
  podwire policy ls
  podwire policy ls -t blue",
    inspect: "\
Examples:
  podwire policy inspect p1 -t blue
  podwire policy inspect p1 -t blue -o json",
    rm: "\
Examples:
  podwire policy rm p1 -t blue",
};

pub(super) const PROFILE: KindExamples = KindExamples {
    all: "\
Examples:
  podwire profile create gold --ingress 100M --egress 50M
  podwire profile ls",
    create: "\
Examples:
  podwire profile create gold --ingress 100M --egress 50M --burst 1M
  podwire profile create voice -t blue --dscp 46",
    ls: "\
Examples:
  podwire profile ls",
    inspect: "\
Examples:
  podwire profile inspect gold",
    rm: "\
Examples:
  podwire profile rm gold",
};

pub(super) const SHARE: KindExamples = KindExamples {
    all: "\
Examples:
  podwire share create dns -t blue --with red --group dns --port udp/53
  podwire share ls",
    create: "\
Examples:
  podwire share create dns -t blue --with red --group dns --port udp/53
  # All tenants, all pods of a network
  podwire share create metrics -t blue --with-all --network front",
    ls: "\
Examples:
  podwire share ls
  podwire share ls -t blue",
    inspect: "\
Examples:
  podwire share inspect dns -t blue",
    rm: "\
Examples:
  podwire share rm dns -t blue",
};

pub(super) const RULE: &str = "\
Examples:
  podwire policy rule add p1 --in --from group:db --deny
  podwire policy rule ls p1
  podwire policy rule rm p1 3";

pub(super) const RULE_ADD: &str = "\
Examples:
  # Only group web reaches the database
  podwire policy rule add p1 --in --protocol tcp --port 5432 --deny
  podwire policy rule add p1 --in --from group:web --allow --priority 10
  podwire policy rule add p1 --out --to 192.0.2.0/24 --deny";

pub(super) const RULE_RM: &str = "\
Examples:
  podwire policy rule rm p1 3
  podwire policy rule rm p1 3 4 -t blue";

pub(super) const RULE_LS: &str = "\
Examples:
  podwire policy rule ls p1
  podwire policy rule ls p1 -o yaml";

pub(super) const POLICY_TEST: &str = "\
Examples:
  # A document of kind PolicyTest has the cases; docs/policies.md has an example
  podwire policy test -f policies.yaml -f cases.yaml
  podwire policy test -f cases.yaml -o json";
