mod build;
mod cluster_policies;
mod kernel;
mod lab;
mod network_policies;
mod random;
mod sets;
mod tenants;
