//! Returns free heap memory to the kernel after a burst of requests. The allocator keeps free pages until it is asked to release
//! them.

use crate::metrics::resident_bytes;

/// By default the allocator creates one arena per thread, each with its own free pages. Two arenas cause little lock contention.
const ARENAS: i32 = 2;

/// More than the agent of a full node needs. Below this size a trim is not worth its cost.
const TRIM_ABOVE: u64 = 14 << 20;

/// Call it before the first thread is started.
pub(crate) fn limit_arenas() {
    // SAFETY: mallopt takes two integers and ignores unknown values.
    #[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Reads the process's memory size. Takes some milliseconds if it is large.
pub(crate) fn release_free_memory() {
    if resident_bytes() > TRIM_ABOVE {
        // SAFETY: malloc_trim has no preconditions, and may be called from any thread.
        #[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
