//! Memory that a crowd of clients left behind goes back to the machine. The allocator keeps what it had once, in many small
//! pieces; it gives whole free pages back when it is asked to.

use crate::metrics::resident_bytes;

/// One heap for each thread is what the allocator makes by itself, each with free pages of its own. They are not in each
/// other's way so often.
const HEAPS: i32 = 2;

/// More than the agent of a full node needs: below it nothing is worth the walk through all free pieces.
const PLENTY: u64 = 14 << 20;

/// Before the first thread is started.
pub(crate) fn share_heaps() {
    // SAFETY: mallopt takes numbers only; one that it does not know changes nothing.
    #[expect(unsafe_code, reason = "the allocator can be told through its C function only")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Costs a look at our own size, and some milliseconds where that is large.
pub(crate) fn give_back() {
    if resident_bytes() > PLENTY {
        // SAFETY: malloc_trim has no preconditions, and may be called from any thread.
        #[expect(unsafe_code, reason = "the allocator can be asked through its C function only")]
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
