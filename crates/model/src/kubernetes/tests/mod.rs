mod cluster_policy;
mod network_policy;
mod workload;
