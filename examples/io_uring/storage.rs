//! Blocks of a file, written and read through registered buffers, several at once.

use std::error::Error;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugearena::{Arena, Chunk, PageSize, supply};
use io_uring::{IoUring, cqueue, opcode, types};

/// One transfer.
pub const BLOCK: usize = 128 << 10;
/// Transfers in flight.
const DEPTH: usize = 32;
/// io_uring refuses longer buffers with EFAULT.
pub const REGISTRATION_MAX: usize = 1 << 30;
/// What the ring itself is charged to RLIMIT_MEMLOCK, and more (Linux 6.14).
const RING_BYTES: u64 = 64 << 10;

pub struct Options {
    /// Where the file is made; it has no name there and is gone at the end.
    pub directory: PathBuf,
    pub file_bytes: u64,
    /// Written and read together; rounded up to whole passes over the file.
    pub total_bytes: u64,
    pub page_size: PageSize,
    pub arena_bytes: usize,
}

pub struct Report {
    pub obtained: String,
    pub registrations: usize,
    pub written_bytes: u64,
    pub read_bytes: u64,
    /// Blocks that were not what had been written.
    pub corrupted: u64,
    /// Page faults of the whole process, all threads, from the end of the first round on.
    pub steady_faults: u64,
    pub steady_bytes: u64,
    pub elapsed: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { registrations, corrupted, steady_faults, .. } = self;
        let [written, read, steady] = [self.written_bytes, self.read_bytes, self.steady_bytes].map(|bytes| bytes >> 20);
        let rate = (written + read) as f64 / self.elapsed.as_secs_f64();
        writeln!(f, "{}", self.obtained)?;
        writeln!(f, "registered in {registrations} buffers")?;
        writeln!(f, "{written} MiB written, {read} MiB read, {rate:.0} MiB/s; {corrupted} blocks corrupted")?;
        write!(f, "{steady_faults} page faults in the {steady} MiB after the first round")
    }
}

pub fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let arena = Arena::builder().page_size(options.page_size).capacity(options.arena_bytes).open()?;
    let obtained = arena.obtained().to_string();
    let pages = arena.capacity() / arena.page_size().bytes();
    let mut storage = Storage::new(arena.claim(pages).ok_or("all pages are free")?, &options.directory)?;
    let registrations = storage.chunk.regions(REGISTRATION_MAX).iter().len();
    let blocks = options.file_bytes.div_ceil(BLOCK as u64);
    storage.file.set_len(blocks * BLOCK as u64)?;
    let rounds = options.total_bytes.div_ceil(2 * blocks * BLOCK as u64);
    let (start, mut corrupted, mut faults_before) = (Instant::now(), 0, 0);
    for round in 0..rounds {
        storage.pass(Direction::Write, round, blocks)?;
        corrupted += storage.pass(Direction::Read, round, blocks)?;
        if round == 0 {
            faults_before = page_faults();
        }
    }
    let elapsed = start.elapsed();
    let bytes = rounds * blocks * BLOCK as u64;
    Ok(Report {
        obtained,
        registrations,
        written_bytes: bytes,
        read_bytes: bytes,
        corrupted,
        steady_faults: page_faults() - faults_before,
        steady_bytes: (rounds - 1) * 2 * blocks * BLOCK as u64,
        elapsed,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Write,
    Read,
}

/// A ring, the buffers that are registered with it, and a file.
struct Storage {
    ring: IoUring,
    file: File,
    /// After the ring, and released only when nothing is in flight: see `drop`.
    chunk: Chunk,
    /// The block of the file that each slot of the chunk transfers.
    blocks: [u64; DEPTH],
    free_slots: Vec<usize>,
}

impl Storage {
    fn new(chunk: Chunk, directory: &Path) -> Result<Storage, Box<dyn Error>> {
        if chunk.len() < DEPTH * BLOCK {
            return Err(format!("{} bytes hold no {DEPTH} blocks of {BLOCK}", chunk.len()).into());
        }
        let flags = libc::O_DIRECT | libc::O_TMPFILE;
        let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(directory);
        let file = file.map_err(|error| format!("a file with O_DIRECT in {}: {error}", directory.display()))?;
        let ring = IoUring::new(DEPTH as u32)
            .map_err(|error| format!("cannot make a ring: {}", with_limit(error, RING_BYTES)))?;
        let storage = Storage { ring, file, chunk, blocks: [0; DEPTH], free_slots: (0..DEPTH).collect() };
        // SAFETY: the chunk is in the same struct, whose `drop` waits for all that is in flight.
        unsafe { register(&storage.ring, &storage.chunk)? };
        Ok(storage)
    }

    /// Transfers every block of the file once; returns how many came back other than they were written.
    fn pass(&mut self, direction: Direction, round: u64, blocks: u64) -> io::Result<u64> {
        let (mut next, mut corrupted) = (0, 0);
        while next < blocks || self.free_slots.len() < DEPTH {
            while next < blocks
                && let Some(&slot) = self.free_slots.last()
            {
                self.start(direction, slot, round, next)?;
                self.free_slots.pop();
                next += 1;
            }
            self.ring.submit_and_wait(1)?;
            corrupted += self.finish(direction, round)?;
        }
        Ok(corrupted)
    }

    /// Where a slot's block is, from the start of the chunk: slots are spread over all of it.
    fn offset_of(&self, slot: usize) -> usize {
        self.chunk.len() / DEPTH / BLOCK * BLOCK * slot
    }

    fn start(&mut self, direction: Direction, slot: usize, round: u64, block: u64) -> io::Result<()> {
        let located = self.chunk.regions(REGISTRATION_MAX).locate(self.offset_of(slot), BLOCK);
        // Regions are whole pages, and slots multiples of a block, so no block lies in two of them.
        let (index, buffer) = located.ok_or(io::ErrorKind::InvalidInput)?;
        let (fd, position) = (types::Fd(self.file.as_raw_fd()), block * BLOCK as u64);
        let (at, len, index) = (buffer.as_ptr(), BLOCK as u32, index as u16);
        let entry = match direction {
            Direction::Read => opcode::ReadFixed::new(fd, at, len, index).offset(position).build(),
            Direction::Write => {
                // SAFETY: the slot is free, so no transfer uses it, and nobody else has the chunk.
                fill(unsafe { std::slice::from_raw_parts_mut(at.cast::<u64>(), BLOCK / 8) }, seed(round, block));
                opcode::WriteFixed::new(fd, at, len, index).offset(position).build()
            }
        };
        self.blocks[slot] = block;
        // SAFETY: the buffer is registered and stays until the completion comes, as does the file.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        pushed.map_err(|_| io::Error::other("the ring has as many entries as there are slots"))
    }

    /// The next completion that is there; its slot is free again.
    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        let done = self.ring.completion().next()?;
        self.free_slots.push(done.user_data() as usize);
        Some(done)
    }

    /// Takes all completions that are there; returns how many blocks are not what they should be.
    fn finish(&mut self, direction: Direction, round: u64) -> io::Result<u64> {
        let (mut corrupted, mut failure) = (0, None);
        while let Some(done) = self.next_completion() {
            let slot = done.user_data() as usize;
            match done.result() {
                transferred if transferred == BLOCK as i32 => {}
                transferred if transferred >= 0 => failure = Some(io::ErrorKind::UnexpectedEof.into()),
                errno => failure = Some(io::Error::from_raw_os_error(-errno)),
            }
            if direction == Direction::Read {
                // SAFETY: the transfer is over; nobody else has the chunk. Every byte of it is initialized.
                let words = unsafe {
                    let at = self.chunk.as_ptr().add(self.offset_of(slot)).cast::<u64>();
                    std::slice::from_raw_parts_mut(at.as_ptr(), BLOCK / 8)
                };
                corrupted += u64::from(!is_filled(words, seed(round, self.blocks[slot])));
                // A read that transfers nothing must not find what the last one left.
                words.fill(0);
            }
        }
        failure.map_or(Ok(corrupted), Err)
    }
}

impl Drop for Storage {
    /// Closing a ring does not wait: the kernel goes on writing into pages that it has pinned, and by then they would
    /// be somebody else's chunk.
    fn drop(&mut self) {
        while self.free_slots.len() < DEPTH {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                // Not even waiting works: nothing may go on as if the pages were free.
                Err(_) => std::process::abort(),
            }
            while self.next_completion().is_some() {}
        }
    }
}

/// Registers a chunk in as few buffers as there can be, and names the limit if that fails.
///
/// # Safety
///
/// The chunk is held until nothing that uses its buffers is in flight.
pub unsafe fn register(ring: &IoUring, chunk: &Chunk) -> Result<(), Box<dyn Error>> {
    let iovec =
        |region: std::ptr::NonNull<[u8]>| libc::iovec { iov_base: region.as_ptr().cast(), iov_len: region.len() };
    let buffers: Vec<_> = chunk.regions(REGISTRATION_MAX).iter().map(iovec).collect();
    // SAFETY: the regions are mapped and populated; the caller holds the chunk as long as they are used.
    unsafe { ring.submitter().register_buffers(&buffers) }.map_err(|error| {
        let why = with_limit(error, chunk.len() as u64 + RING_BYTES);
        format!("cannot register {} bytes in {} buffers with io_uring: {why}", chunk.len(), buffers.len()).into()
    })
}

/// The kernel says `ENOMEM` when RLIMIT_MEMLOCK does not allow so many bytes more.
fn with_limit(error: io::Error, bytes: u64) -> String {
    let limit = if error.raw_os_error() == Some(libc::ENOMEM) { supply::pin_limit(bytes) } else { None };
    limit.map_or_else(|| error.to_string(), |limit| format!("{error}; {limit}"))
}

/// What tells one block of one round from every other.
fn seed(round: u64, block: u64) -> u64 {
    (round << 40 | block).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Word `index` of a block (SplitMix64's finalizer): no two words are alike, so nothing can be exchanged unseen.
fn word(seed: u64, index: usize) -> u64 {
    let mixed = seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 27
}

fn fill(words: &mut [u64], seed: u64) {
    words.iter_mut().enumerate().for_each(|(index, at)| *at = word(seed, index));
}

fn is_filled(words: &[u64], seed: u64) -> bool {
    words.iter().enumerate().all(|(index, at)| *at == word(seed, index))
}

/// Minor and major, all threads, those of the kernel that work for the ring included.
fn page_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct; zeroes are valid numbers.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_minflt + usage.ru_majflt) as u64
}
