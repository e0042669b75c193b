pub(crate) mod agent;
pub(crate) mod attachment;
pub(crate) mod cleanup;
pub(crate) mod demo;
pub(crate) mod install;
pub(crate) mod pods;
pub(crate) mod status;
