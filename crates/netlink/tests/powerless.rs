//! Without the right to change links. In a process of its own: threads that sit out deletions have the rights of whoever
//! started them, and serve all callers.

use netlink::{NetNs, delete_link_early};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

#[test]
fn an_early_deletion_says_that_the_kernel_refused_it() {
    let powerless = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        delete_link_early(1)
    };
    let host = NetNs::create().unwrap();
    // Rights are a thread's own; this one ends with it.
    let refused = std::thread::scope(|scope| scope.spawn(|| host.run(powerless)).join().unwrap());
    let refused = refused.unwrap().unwrap_err();
    assert!(refused.is_permission(), "{refused}");
}
