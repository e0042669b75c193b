//! Deletion without CAP_NET_ADMIN. In a separate process, because the waiting threads have the capabilities of the thread
//! that started them, and serve all callers.

use netlink::{NetNs, delete_link_early};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

#[test]
fn an_early_deletion_without_cap_net_admin_is_refused() {
    let delete = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        delete_link_early(1)
    };
    let host = NetNs::create().unwrap();
    // Capabilities are per thread, so the change ends with the thread.
    let refused = std::thread::scope(|scope| scope.spawn(|| host.run(delete)).join().unwrap());
    let refused = refused.unwrap().unwrap_err();
    assert!(refused.is_permission(), "{refused}");
}
