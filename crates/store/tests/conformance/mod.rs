//! What both backends promise.

mod commits;
mod leases;
mod reads;
mod watches;

/// Each test once with each backend.
macro_rules! both {
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test] async fn $name() { super::$name(&crate::common::World::embedded()).await; })+
        }
        mod etcd {
            $(#[tokio::test] async fn $name() { super::$name(&crate::common::World::etcd()).await; })+
        }
    };
}
use both;
