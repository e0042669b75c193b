//! The default pod subnets. They overlap no default network of common runtimes, CNI plugins and clouds.

pub const DEFAULT_SUBNET_V4: &str = "10.83.0.0/16";
pub const DEFAULT_SUBNET_V6: &str = "fd00:88::/64";
/// Both subnets, separated by a comma as in configs.
pub const DEFAULT_SUBNETS: &str = "10.83.0.0/16,fd00:88::/64";

#[cfg(test)]
mod tests {
    use ipnet::Ipv4Net;

    use super::*;

    /// Default networks of other software.
    const COMMON: [(&str, &str); 24] = [
        ("10.0.0.0/16", "cloud VPCs, docker swarm, Cilium, LXC"),
        ("10.1.0.0/16", "MicroK8s"),
        ("10.8.0.0/16", "OpenVPN"),
        ("10.16.0.0/16", "Kube-OVN"),
        ("10.22.0.0/16", "example of the CNI specification"),
        ("10.32.0.0/12", "Weave, k3s and RKE (10.42, 10.43)"),
        ("10.85.0.0/16", "CRI-O"),
        ("10.88.0.0/16", "podman"),
        ("10.89.0.0/16", "podman network create"),
        ("10.90.0.0/15", "podman network create"),
        ("10.92.0.0/14", "podman network create"),
        ("10.96.0.0/11", "podman network create, kubeadm services, EKS services"),
        (
            "10.128.0.0/9",
            "podman network create, GCP, OpenShift (10.128, 10.217), AKS (10.224), flannel (10.244)",
        ),
        ("100.64.0.0/10", "carriers, Tailscale, kops, OVN"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "docker, Nomad, AWS"),
        ("192.0.2.0/24", "documentation"),
        ("192.168.0.0/16", "Calico, libvirt, minikube, home networks"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "Ubuntu fan"),
        ("127.0.0.0/8", "loopback"),
    ];

    #[test]
    fn b10_the_default_subnet_overlaps_no_common_network() {
        let default: Ipv4Net = DEFAULT_SUBNET_V4.parse().unwrap();
        for (net, user) in COMMON {
            let net: Ipv4Net = net.parse().unwrap();
            assert!(!net.contains(&default) && !default.contains(&net), "{net}: {user}");
        }
    }

    #[test]
    fn default_subnets_contain_both_families() {
        assert_eq!(DEFAULT_SUBNETS, [DEFAULT_SUBNET_V4, DEFAULT_SUBNET_V6].join(","));
    }
}
