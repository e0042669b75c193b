//! Safe wrappers of the ptrace requests that `trace` uses.

#![expect(unsafe_code, reason = "ptrace and waitpid with thread options exist only as raw calls")]

use std::ffi::c_void;
use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

use anyhow::Context as _;

/// The waitpid status of one thread.
pub(super) enum WaitStatus {
    Exited { tid: i32, status: ExitStatus },
    Syscall { tid: i32 },
    Event { tid: i32 },
    Signal { tid: i32, signal: i32 },
}

/// The thread that starts this command becomes its tracer, and the command stops right after its exec.
pub(super) fn trace_me_before_exec(command: &mut Command) {
    // SAFETY: between fork and exec only this one system call is made: no allocation, no lock.
    unsafe {
        command.pre_exec(|| {
            let null = std::ptr::null_mut::<c_void>();
            check(libc::ptrace(libc::PTRACE_TRACEME, 0, null, null))
        });
    }
}

/// Marks system-call stops, follows new threads, and kills the tracee with the tracer. A further exec becomes an event; by
/// default the program would get a fatal SIGTRAP.
pub(super) fn set_options(tid: i32) -> anyhow::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    // SAFETY: this request takes both numbers by value.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, tid, 0usize, options as usize) };
    check(result).with_context(|| format!("cannot set trace options of thread {tid}"))
}

/// Traces a running thread, and stops it.
pub(super) fn seize(tid: i32) -> anyhow::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD as usize;
    // SAFETY: both requests take numbers by value.
    let answers = unsafe {
        [
            libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, options),
            libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize),
        ]
    };
    answers.into_iter().try_for_each(check).with_context(|| format!("cannot stop thread {tid}"))
}

/// Ends the tracing of a stopped thread, which then runs. It may have ended.
pub(super) fn detach(tid: i32) {
    // SAFETY: this request takes both numbers by value.
    let _ = unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0usize, 0usize) };
}

/// Lets a stopped thread run to its next stop, with a signal to deliver or 0.
pub(super) fn resume(tid: i32, signal: i32) -> anyhow::Result<()> {
    // SAFETY: this request takes both numbers by value.
    let result = unsafe { libc::ptrace(libc::PTRACE_SYSCALL, tid, 0usize, signal as usize) };
    match check(result) {
        // Another thread ended the process; waitpid reports it.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result.with_context(|| format!("cannot resume traced thread {tid}")),
    }
}

/// The number of the system call if the thread stopped at an entry; `None` at an exit.
pub(super) fn entered_syscall(tid: i32) -> Option<u64> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes into `info`, which is zeroed and all integers.
    let (written, info) = unsafe {
        let written = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, info.as_mut_ptr());
        (written, info.assume_init())
    };
    if written <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: `op` says that this member of the union is the one in use.
    Some(unsafe { info.u.entry.nr })
}

/// Waits for any thread traced by the calling thread; `None` if there is none left.
pub(super) fn wait_for_any() -> Result<Option<WaitStatus>> {
    loop {
        let mut status = 0;
        // Without __WNOTHREAD this would also reap children of other threads of this process.
        // SAFETY: `status` outlives the call.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if tid > 0 {
            return Ok(Some(classify(tid, status)));
        }
        let error = Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ECHILD) => return Ok(None),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

fn classify(tid: i32, status: i32) -> WaitStatus {
    if !libc::WIFSTOPPED(status) {
        return WaitStatus::Exited { tid, status: ExitStatus::from_raw(status) };
    }
    match (status >> 16, libc::WSTOPSIG(status)) {
        (0, signal) if signal == libc::SIGTRAP | 0x80 => WaitStatus::Syscall { tid },
        (0, signal) => WaitStatus::Signal { tid, signal },
        (_, _) => WaitStatus::Event { tid },
    }
}

fn check(result: libc::c_long) -> Result<()> {
    if result == -1 { Err(Error::last_os_error()) } else { Ok(()) }
}
