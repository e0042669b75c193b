//! Guarantees of both backends.

mod commits;
mod leases;
mod reads;
mod watches;

/// Runs each test with each backend.
macro_rules! both {
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test] async fn $name() { super::$name(&crate::common::Testbed::embedded()).await; })+
        }
        mod etcd {
            $(#[tokio::test] async fn $name() { super::$name(&crate::common::Testbed::etcd()).await; })+
        }
    };
}
use both;
