//! Calls about this process and its threads: limits, waiting, thread exit, fork.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use super::check;
use super::file::uncancelled;
use crate::error::Errno;

/// A resource limit of getrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// RLIMIT_AS: bytes of address space.
    AddressSpace,
    /// RLIMIT_MEMLOCK: bytes of locked memory.
    LockedMemory,
    /// RLIMIT_FSIZE: bytes of a file.
    FileSize,
}

/// The soft limit, or `None` when it is unlimited.
pub fn soft_limit(resource: Resource) -> Option<u64> {
    let which = match resource {
        Resource::AddressSpace => libc::RLIMIT_AS,
        Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
        Resource::FileSize => libc::RLIMIT_FSIZE,
    };
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit fills the struct; it fails only for a bad pointer or resource.
    unsafe { libc::getrlimit(which, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Sleeps until [`wake_one`] on the same word, unless it no longer holds `expected`. May wake for no reason.
pub fn wait_while(word: &AtomicU32, expected: u32) {
    // SAFETY: FUTEX_WAIT reads the word, which lives for the call; every outcome is "look again".
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes one thread that sleeps in [`wait_while`] on this word.
pub fn wake_one(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE only uses the address as a key.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// A pthread key: `at_exit` runs at the end of every thread that has stored a non-null value under it.
#[derive(Clone, Copy, Debug)]
pub struct ThreadKey(libc::pthread_key_t);

impl ThreadKey {
    /// pthread_key_create(3).
    ///
    /// # Safety
    ///
    /// `at_exit` may be called with any value that was stored and does not unwind.
    pub unsafe fn new(at_exit: unsafe extern "C" fn(*mut libc::c_void)) -> Result<ThreadKey, Errno> {
        let mut key = 0;
        // SAFETY: the key is written on success; the caller vouches for the destructor.
        match unsafe { libc::pthread_key_create(&mut key, Some(at_exit)) } {
            0 => Ok(ThreadKey(key)),
            errno => Err(Errno(errno)),
        }
    }

    /// The key as a number, to keep in an atomic.
    pub fn to_raw(self) -> u32 {
        self.0
    }

    /// pthread_key_delete(3): threads that end later call nothing. Whoever stores a value afterwards may find the key to be
    /// somebody else's.
    pub fn delete(self) {
        // SAFETY: the key came from pthread_key_create, and its owner does not use it any more.
        unsafe { libc::pthread_key_delete(self.0) };
    }

    /// The key that [`to_raw`](Self::to_raw) gave.
    pub fn from_raw(raw: u32) -> ThreadKey {
        ThreadKey(raw)
    }

    /// pthread_setspecific(3) for this thread. Fails only with `ENOMEM`.
    pub fn set(self, value: *mut u8) -> Result<(), Errno> {
        // SAFETY: the key came from pthread_key_create; one that was deleted is an error.
        match unsafe { libc::pthread_setspecific(self.0, value.cast()) } {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }
}

/// Fork handlers of one kind, registered by whoever needs them first.
///
/// Not `Once`: a child that is forked while another thread is in that would wait for a thread which it has not. So
/// threads that come at the same time, and such a child, register the handlers more than once, which they have to bear.
#[derive(Debug)]
pub struct Registration {
    is_done: AtomicBool,
}

impl Registration {
    pub const fn new() -> Registration {
        Registration { is_done: AtomicBool::new(false) }
    }

    /// Calls `register` unless that has been done. The handlers run around every fork that begins after it returns; one
    /// that has begun keeps the C library's list of handlers locked, so that registering waits for its end. Except
    /// during other people's `prepare` handlers, where glibc lets go of the list from 2.36 on: a child of such a fork
    /// is not handled, and nothing can be done about it.
    #[inline]
    pub fn ensure(&self, register: impl FnOnce()) {
        // Acquire and release order the registration before whatever its callers do, as the C library's lock does
        // for the thread that forks.
        if !self.is_done.load(Acquire) {
            register();
            self.is_done.store(true, Release);
        }
    }
}

/// pthread_atfork(3).
///
/// # Safety
///
/// The handlers do not unwind, and are safe to run around any fork of the process from now on.
pub unsafe fn at_fork(
    prepare: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the handlers.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// How often this process's memory has been copied by fork(2) since the first call: a number that a child has
/// not in common with its parent. Unlike a process id it is never reused, in no pid namespace.
pub fn forks() -> u64 {
    static COUNT: Registration = Registration::new();
    unsafe extern "C" fn nothing() {}
    unsafe extern "C" fn count() {
        FORKS.fetch_add(1, Relaxed);
    }
    COUNT.ensure(|| {
        // Registered twice, they count a fork as two.
        // SAFETY: the handlers touch an atomic. Without memory for them, forks go unnoticed.
        let _ = unsafe { at_fork(nothing, nothing, count) };
    });
    FORKS.load(Relaxed)
}

static FORKS: AtomicU64 = AtomicU64::new(0);

/// What [`forks`] says, for hot paths of those who have asked that before.
#[inline]
pub fn forks_counted() -> u64 {
    FORKS.load(Relaxed)
}

/// The thread that is inside fork(2), by its pthread_self(3), which it keeps in the child; 0 for none.
static FORKER: AtomicUsize = AtomicUsize::new(0);

/// Says that this thread has all that fork handlers take, until [`end_fork`].
pub fn begin_fork() {
    // SAFETY: no preconditions.
    FORKER.store(unsafe { libc::pthread_self() } as usize, Relaxed);
}

/// Says that this thread is about to give it back, in the parent or in the child.
pub fn end_fork() {
    FORKER.store(0, Relaxed);
}

/// Whether this thread is between [`begin_fork`] and [`end_fork`]. What others store in the meantime is never this
/// thread's, so no order is needed.
pub fn is_forking() -> bool {
    // SAFETY: no preconditions.
    FORKER.load(Relaxed) == unsafe { libc::pthread_self() } as usize
}

/// Writes `message` to standard error and aborts: for a broken invariant below the heap, where a panic would
/// allocate from the heap that is broken.
pub fn abort_with(message: &str) -> ! {
    // Whether anybody reads it or not, this is the end.
    let _ = uncancelled::write(2, message.as_bytes());
    std::process::abort()
}

/// sched_yield(2): lets another runnable thread go first.
pub fn yield_now() {
    // SAFETY: no preconditions; it cannot fail on Linux.
    let _ = check(unsafe { libc::sched_yield() });
}

/// sched_setscheduler(`SCHED_IDLE`) for this thread: it runs only while no other thread wants its CPU.
pub fn run_when_idle() -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this thread; the call reads the struct.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) })
}

/// sched_setscheduler(`SCHED_OTHER`) for a thread that is under `SCHED_IDLE`. Refused with `EPERM` to those who have
/// neither `CAP_SYS_NICE` nor an RLIMIT_NICE that allows its nice value.
pub fn run_as_usual(thread: i32) -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the struct.
    check(unsafe { libc::sched_setscheduler(thread, libc::SCHED_OTHER, &param) })
}

/// gettid(2).
pub fn thread_id() -> i32 {
    // SAFETY: no preconditions; it cannot fail.
    unsafe { libc::gettid() }
}

/// Page faults of this thread so far that needed no I/O, from getrusage(2): those that populating takes included.
pub fn minor_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct; it fails only for a bad pointer or argument.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt as u64
}

/// getuid(2).
pub fn real_user() -> u32 {
    // SAFETY: no preconditions; it cannot fail.
    unsafe { libc::getuid() }
}

/// geteuid(2).
pub fn effective_user() -> u32 {
    // SAFETY: no preconditions; it cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_is_forked_in_the_middle_of_a_registration_does_not_wait_for_it() {
        static HANDLERS: Registration = Registration::new();
        let mut status = -1;
        HANDLERS.ensure(|| {
            // SAFETY: the child touches an atomic and ends, by SIGALRM if it waits; the parent's status is live.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(20);
                    let mut is_registered = false;
                    HANDLERS.ensure(|| is_registered = true);
                    libc::_exit(i32::from(!is_registered));
                }
                libc::waitpid(child, &mut status, 0);
            }
        });
        assert_eq!(status, 0);
        HANDLERS.ensure(|| panic!("once is enough"));
    }
}
